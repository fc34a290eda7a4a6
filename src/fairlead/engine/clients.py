"""The client side of the simulate engine: S clients as rows of a matrix, or one at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Client, Memory, Step, Upload
from fairlead.compress import Compressor
from fairlead.data.batches import Batches, Draw
from fairlead.engine.state.residuals import Mail
from fairlead.errors import FairleadError
from fairlead.gradients.deferred import settled
from fairlead.rng import Purpose, normal, words
from fairlead.schedules import Rate, rate_at
from fairlead.task.task import Block, Task

U = TypeVar("U", bound=Upload)
AT_ONCE = 1 << 20
"""Bytes of samples that are gathered together for a client's next steps."""


@dataclass
class Work:
    """What the clients of a round work on: everything that is the same for all of them."""

    task: Task
    seed: int
    round: int
    first_step: int
    """Local steps counted over the earlier rounds, for schedules over steps."""
    buffers: Tensor
    """The server's buffers at the start of the round."""
    limit: int = 1 << 16
    """Samples at a time in a full gradient."""
    check: bool = False
    """Look at every value and name round, client and step when something is wrong."""

    def rates(self, lr: Rate, count: int) -> NDArray[np.float64]:
        return np.array([rate_at(lr, self.round, self.first_step + k) for k in range(count)])


def large_batch(work: Work, ids: NDArray[np.int64], size: int) -> Draw:
    """One batch without replacement of a round and client, apart from those of its steps."""
    one = Batches(batch_size=size, steps=1)
    return one.draw(work.seed, work.round, ids, work.task.sizes[ids], Purpose.LARGE_BATCH,
                    work.task.store)  # fmt: skip


class _Carrier:
    """One thread that brings samples; a forked process gets one of its own."""

    def __init__(self) -> None:
        self.process, self.pool = -1, None

    def submit(self, *work: Any) -> Future[Any]:
        if self.pool is None or self.process != os.getpid():
            self.process, self.pool = os.getpid(), ThreadPoolExecutor(1, "fairlead-samples")
        return self.pool.submit(*work)


CARRIER = _Carrier()


def augment_keys(work: Work, ids: Tensor, step: int) -> Tensor | None:
    """Two random words a client for the transform of a step's samples."""
    if work.task.transform is None:
        return None
    return words(work.seed, Purpose.AUGMENT, work.round, ids, step, 0)[:, :2]


class _Statistics:
    """Which buffers a client sends: those its steps moved, or, in an exchange without steps, those
    of its first full pass."""

    buffers: Tensor
    stepped: bool
    passed: Tensor | None

    def moved_buffers(self) -> Tensor | None:
        return self.buffers if self.stepped else self.passed


class Stacked(_Statistics, Client[Any]):
    """S clients at once: every vector has a leading client axis."""

    def __init__(
        self, work: Work, ids: NDArray[np.int64], draw: Draw, memory: Memory | None, mail: Mail
    ) -> None:
        task = work.task
        self.work, self.draw, self.memory, self.mail = work, draw, memory, mail
        self.host_ids = ids
        self.ids = torch.from_numpy(ids).to(task.device, non_blocking=True)
        self.owners = (
            self.ids.to(task.store) if task.store == task.device else torch.from_numpy(ids)
        )
        self.index = draw.index.to(task.store, non_blocking=True)
        self.next: tuple[int, Future[tuple[Block, Tensor | None]]] | None = None
        self.buffers = self.starting_buffers()
        self.moved: Any = None
        self.gradients: Any = 0
        self.stepped = False
        self.passed: Tensor | None = None  # buffers after a full pass

    def steps(self, lr: Rate) -> Iterator[Step]:
        task, count = self.work.task, self.draw.count
        applied = (count > 0) * self.rates(lr, count.shape[1])
        rates = torch.from_numpy(applied).to(task.device, task.dtype, non_blocking=True)
        total = torch.from_numpy(applied.sum(1, keepdims=True))
        self.moved = total.to(task.device, task.dtype, non_blocking=True)
        for k in range(count.shape[1]):
            yield self.step(k, rates[:, k : k + 1])

    def step(self, k: int, lr: Tensor) -> Step:
        return _StackedStep(self, k, lr)

    # what differs where the clients are those of several runs, or a round is recorded

    @property
    def largest(self) -> int:
        """Samples of the client that has most."""
        return int(self.work.task.sizes[self.host_ids].max())

    def starting_buffers(self) -> Tensor:
        return self.work.buffers.expand(len(self.host_ids), -1)

    def rates(self, lr: Rate, count: int) -> NDArray[np.float64]:
        return self.work.rates(lr, count)

    def counted(self, samples: NDArray[np.int64]) -> Any:
        """The gradients of single samples, from those of every client."""
        return int(samples.sum())

    def step_taken(self, k: int) -> None:
        """Count the gradients of a step's samples."""
        self.gradients += self.counted(self.draw.count[:, k])

    def full_pass(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of all data, and the buffers after the pass."""
        self.gradients += self.counted(self.work.task.sizes[self.host_ids])
        return self.work.task.full_grads(self.host_ids, x, self.buffers, self.work.limit)

    def large_batch(self, size: int) -> tuple[Block, Tensor | None]:
        """The samples of a large batch, and their weights."""
        draw = self.drawn_large(size)
        self.gradients += self.counted(draw.count.sum(1))
        return self._block(draw.index[:, 0].to(self.work.task.store), draw.count[:, 0], None)

    def drawn_large(self, size: int) -> Draw:
        return large_batch(self.work, self.host_ids, size)

    def keys(self, step: int) -> Tensor | None:
        return augment_keys(self.work, self.ids, step)

    def noise(self, step: int, d: int) -> Tensor:
        return normal(self.work.seed, self.work.round, self.ids, step, d)

    # ---

    def grad(self, x: Tensor, batch: int | None = None) -> Tensor:
        task = self.work.task
        if batch is None or batch >= self.largest:
            g, buffers = self.full_pass(x)
            self.passed = buffers if self.passed is None else self.passed
            return g
        block, weights = self.large_batch(batch)
        return task.regularised(task.grads(x, block, weights, self.buffers)[0], x)

    def encode(self, upload: U, by: Compressor | None) -> U:
        return self.mail.encode(upload, by, self.host_ids, self.ids)

    def batch(self, k: int) -> tuple[Block, Tensor | None]:
        """The samples of step k, and their weights unless all batches are equally long. Where data
        are brought from elsewhere, those of step k + 1 set out now."""
        if not self.work.task.ahead:
            return self._batch(k)
        found = self.next[1].result() if self.next and self.next[0] == k else self._batch(k)
        if k + 1 < self.draw.count.shape[1]:
            self.next = k + 1, CARRIER.submit(self._batch, k + 1)
        return found

    def _batch(self, k: int) -> tuple[Block, Tensor | None]:
        with torch.no_grad():
            return self._block(self.index[:, k], self.draw.count[:, k], self.keys(k))

    def _block(
        self, index: Tensor, count: NDArray[np.int64], keys: Tensor | None
    ) -> tuple[Block, Tensor | None]:
        task, width = self.work.task, int(count.max())
        block = task.samples(self.owners, index[:, :width], keys)
        if (count == width).all():
            return block, None
        n = torch.from_numpy(count).to(task.device, non_blocking=True)[:, None]
        inside = torch.arange(width, device=task.device) < n
        return block, inside.to(task.dtype) / n.clamp(min=1)


class _StackedStep(Step):
    def __init__(self, client: Stacked, k: int, lr: Tensor) -> None:
        self.client, self.k, self.lr = client, k, lr
        self._batch: tuple[Block, Tensor | None] | None = None

    def grad(self, y: Tensor) -> Tensor:
        client, work = self.client, self.client.work
        first = self._batch is None
        if self._batch is None:
            self._batch = client.batch(self.k)
        g, buffers = work.task.grads(y, *self._batch, client.buffers)
        client.step_taken(self.k)
        if (
            first and buffers.shape[1]
        ):  # a batch moves the statistics once, however often it is used
            active = self.lr > 0
            client.buffers = torch.where(active, buffers, client.buffers)
            client.stepped = True
        if work.task.noise:
            g = g + work.task.noise * client.noise(self.k, y.shape[-1]).to(g.dtype)
        return work.task.regularised(g, y)


class Single(_Statistics, Client[Any]):
    """One client by plain autograd: vectors are (d,), nothing is padded."""

    def __init__(
        self, work: Work, client: int, draw: Draw, memory: Memory | None, mail: Mail
    ) -> None:
        self.work, self.client, self.draw, self.memory = work, client, draw, memory
        self.mail = mail
        self.id = torch.tensor([client], device=work.task.device)
        self.owner = torch.tensor([client], device=work.task.store)
        self.index = draw.index[0].to(work.task.store, non_blocking=True)
        self.ahead: list[Block] = []
        self.ahead_to = 0
        self.buffers = work.buffers
        self.moved: Any = torch.zeros(1, dtype=work.task.dtype, device=work.task.device)
        self.gradients = 0
        self.stepped = False
        self.passed: Tensor | None = None  # buffers after a full pass
        self.at = "before its first step"

    def steps(self, lr: Rate) -> Iterator[Step]:
        rates = self.work.rates(lr, int(self.draw.steps[0]))
        self.moved = torch.full_like(self.moved, float(rates.sum()))
        for k, rate in enumerate(rates.tolist()):
            self.at = f"step {k}"
            yield _SingleStep(self, k, rate)
        self.at = "after its last step"

    def grad(self, x: Tensor, batch: int | None = None) -> Tensor:
        task, work, x = self.work.task, self.work, settled(x)
        if batch is None or batch >= task.sizes[self.client]:
            self.gradients += int(task.sizes[self.client])
            g, buffers = task.full_grad(self.client, x, self.buffers, work.limit)
            self.passed = buffers if self.passed is None else self.passed
        else:
            index = large_batch(work, np.array([self.client]), batch).of(0, 0).to(task.store)
            block = tuple(t[0] for t in task.samples(self.owner, index[None]))
            self.gradients += batch
            g = task.regularised(self.gradient(x, block)[0], x)
        return self.finite("the full gradient", g)

    def gradient(self, y: Tensor, block: Block) -> tuple[Any, Tensor]:
        """The gradient of a block's loss, and the buffers after the pass."""
        of = self.work.task.grad_block if self.work.check else self.work.task.gradient
        return of(y, block, self.buffers)

    def samples(self, k: int) -> Block:
        """The samples of step k. Those of the next steps come with them where nothing is made of them and
        they are few bytes."""
        task, count = self.work.task, int(self.draw.count[0, k])
        if k >= self.ahead_to:
            n = 1
            if task.transform is None:
                alike = self.draw.count[0, k : k + max(1, AT_ONCE // (count * task.sample_bytes))]
                n = int((alike != count).argmax()) or len(alike)
            index, keys = self.index[k : k + n, :count], augment_keys(self.work, self.id, k)
            found = task.samples(self.owner, index.reshape(1, -1), keys)
            blocks = zip(*(t[0].split(count) for t in found), strict=True)
            self.ahead, self.ahead_to = list(blocks), k + n
        return self.ahead[k - self.ahead_to]

    def encode(self, upload: U, by: Compressor | None) -> U:
        if by is None:
            return upload
        rows = settled(upload).map(lambda v: v[None])
        sent = self.mail.encode(rows, by, np.array([self.client]), self.id)
        one = sent.map(lambda v: v[0])
        object.__setattr__(one, "wire", sent.wire)
        return one

    def finite(self, what: str, value: Any) -> Any:
        if self.work.check and not bool(torch.isfinite(value).all()):
            raise FairleadError(f"{what} holds NaN or infinite values: try a smaller step size")
        return value


class _SingleStep(Step):
    def __init__(self, client: Single, k: int, lr: float) -> None:
        self.client, self.k, self.lr = client, k, lr
        self._block: Block | None = None

    def grad(self, y: Tensor) -> Tensor:
        client, task, y = self.client, self.client.work.task, settled(y)
        count = int(client.draw.count[0, self.k])
        client.finite("the point y", y)
        first = self._block is None
        if self._block is None:
            self._block = client.samples(self.k)
        g, buffers = client.gradient(y, self._block)
        client.gradients += count
        if first and buffers.numel():
            client.buffers, client.stepped = buffers, True
        if task.noise:
            work = client.work
            more = normal(work.seed, work.round, client.id, self.k, len(y))[0]
            g = g + task.noise * more.to(y)
        return client.finite("the gradient", task.regularised(g, y))


@dataclass
class Counters:
    """Oracle calls and exchanges, as integers."""

    gradients: int = 0
    """Gradients of single samples."""
    steps: int = 0
    """Local steps of the longest client, summed over rounds."""
    exchanges: int = 0
    """Times the server talked to a cohort."""
    lost: int = field(default=0)
    """Sampled clients that did not answer."""
