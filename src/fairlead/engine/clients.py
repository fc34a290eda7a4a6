"""Clients as their programs see them: S at once as rows of a matrix, or one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.method import Client, Step
from fairlead.core.records import Memory, Upload
from fairlead.data.batches import Draw
from fairlead.engine.state.outbox import Outbox
from fairlead.engine.work import FULL, LOADER, Work, large_batch, step_keys
from fairlead.errors import FairleadError
from fairlead.gradients.deferred import Vector, settled
from fairlead.probe.base import Measure, Sums, added
from fairlead.rng import Purpose, Word, normal
from fairlead.schedules import Rate
from fairlead.task.task import Block

U = TypeVar("U", bound=Upload)
Ids = NDArray[np.int64]
GATHERED = 1 << 20
"""Bytes of samples that are gathered together for one client's next steps."""


class _Common(Client[Any]):
    """What clients one at a time and S at once share."""

    work: Work
    outbox: Outbox
    buffers: Tensor
    measures: tuple[Measure, ...] = ()
    start: Tensor | None = None
    """Where the clients start: the first vector of the broadcast."""

    def _begin(self, measures: tuple[Measure, ...], broadcast: Mapping[str, Any]) -> None:
        self.measures = measures
        self.start = next((v for v in broadcast.values() if isinstance(v, Tensor)), None)
        self.moved: Any = None
        self.gradients: Any = 0
        self.measured: Sums = {}
        self.stepped = False
        self.passed: Tensor | None = None  # buffers after a full pass
        self._noises = 0

    def step_keys(self, purpose: Purpose, step: int) -> Tensor:
        """Two random words per client for one of its steps."""
        return step_keys(self.work, purpose, self.outbox.keys, step)

    def augment_keys(self, step: int) -> Tensor | None:
        """For the transform of a step's samples."""
        return None if self.work.task.transform is None else self.step_keys(Purpose.AUGMENT, step)

    def takes_all(self, batch: int | None, largest: int) -> bool:
        """Whether a batch is all data of clients of at most this size. Where the model draws, the samples of all
        clients of a task are taken in the same way, as what they draw depends on their order."""
        task = self.work.task
        return batch is None or batch >= (task.sizes.max() if task.draws_masks else largest)

    def mask_keys(self, step: int) -> Tensor | None:
        """For what the model draws in a step."""
        return self.step_keys(Purpose.MASK, step) if self.work.task.draws_masks else None

    @property
    def held(self) -> dict[str, Tensor]:
        """New residuals of compressors with error feedback."""
        return self.outbox.held

    def bits(self, upload: Upload) -> tuple[int | Tensor, float]:
        """Bits of the upload, exact and nominal."""
        return self.outbox.bits(upload)

    def moved_buffers(self) -> Tensor | None:
        """The buffers that a client sends: those its steps moved, or, in an exchange without steps, those
        of its first full pass."""
        return self.buffers if self.stepped else self.passed

    def measure(self, y: Any, active: Any) -> None:
        """Measure a point after a local step."""
        if self.start is None:
            return
        point = y.point() if isinstance(y, Vector) else y
        for measure in self.measures:
            found = {measure.name: measure.point(point, self.start, active)}
            self.measured = added(self.measured, found)

    def _noise(self, keys: Tensor, round: Word, like: Tensor) -> Tensor:
        self._noises += 1
        work, d = self.work, like.shape[-1]
        return normal(work.seed, round, keys, self._noises, d, Purpose.METHOD).to(like)


class Stacked(_Common):
    """S clients at once: every vector has a leading client axis."""

    def __init__(
        self,
        work: Work,
        rows: Ids,
        draw: Draw,
        memory: Memory | None,
        outbox: Outbox,
        measures: tuple[Measure, ...] = (),
        broadcast: Mapping[str, Any] | None = None,
    ) -> None:
        task = work.task
        self.work, self.draw, self.memory, self.outbox = work, draw, memory, outbox
        self.rows = rows
        self.keys = outbox.keys
        self.owners = torch.from_numpy(rows).to(task.store, non_blocking=True)
        self.index = draw.index.to(task.store, non_blocking=True)
        self.next: tuple[int, Future[tuple[Block, Tensor | None]]] | None = None
        self.buffers = self.starting_buffers()
        self._begin(measures, broadcast or {})

    def steps(self, lr: Rate) -> Iterator[Step]:
        task, count = self.work.task, self.draw.count
        applied = (count > 0) * self.rates(lr, count.shape[1])
        rates = torch.from_numpy(applied).to(task.device, task.dtype, non_blocking=True)
        total = torch.from_numpy(applied.sum(1, keepdims=True))
        self.moved = total.to(task.device, task.dtype, non_blocking=True)
        for k in range(count.shape[1]):
            yield StackedStep(self, k, rates[:, k : k + 1])

    # what differs where the clients are those of several runs, or a round is captured

    @property
    def largest(self) -> int:
        """Samples of the largest client."""
        return int(self.work.task.sizes[self.rows].max())

    def starting_buffers(self) -> Tensor:
        return self.work.buffers.expand(len(self.rows), -1)

    def rates(self, lr: Rate, count: int) -> NDArray[np.float64]:
        return self.work.rates(lr, count)

    def counted(self, samples: Ids) -> Any:
        """The gradients of single samples, from those of every client."""
        return int(samples.sum())

    def step_taken(self, k: int) -> None:
        """Count the gradients of a step's samples."""
        self.gradients += self.counted(self.draw.count[:, k])

    def full_pass(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of all data, and the buffers after the pass."""
        self.gradients += self.counted(self.work.task.sizes[self.rows])
        work = self.work
        return work.gradients.full_stacked(
            self.rows, x, self.buffers, work.limit, self.mask_keys(FULL)
        )

    def large_batch(self, size: int) -> tuple[Block, Tensor | None]:
        """The samples of a large batch, and their weights."""
        draw = self.drawn_large(size)
        self.gradients += self.counted(draw.count.sum(1))
        return self._block(draw.index[:, 0].to(self.work.task.store), draw.count[:, 0], None)

    def drawn_large(self, size: int) -> Draw:
        return large_batch(self.work, self.rows, size)

    def gradient_noise(self, step: int, d: int) -> Tensor:
        return normal(self.work.seed, self.work.round, self.keys, step, d)

    def noise(self, like: Tensor) -> Tensor:
        return self._noise(self.keys, self.work.round, like)

    # ---

    def grad(self, x: Tensor, batch: int | None = None) -> Tensor:
        task = self.work.task
        if batch is None or self.takes_all(batch, self.largest):
            g, buffers = self.full_pass(x)
            self.passed = buffers if self.passed is None else self.passed
            return g
        block, weights = self.large_batch(batch)
        keys = self.mask_keys(FULL + 1)
        g, _ = self.work.gradients.stacked(x, block, weights, self.buffers, keys)
        return task.regularised(g, x)

    def encode(self, upload: U, by: Compressor | None) -> U:
        return upload if by is None else self.outbox.encode(upload, by)

    def batch(self, k: int) -> tuple[Block, Tensor | None]:
        """The samples of step k, and their weights unless all batches are equally long. Where data
        are not on the device, those of step k + 1 are gathered meanwhile."""
        if not self.work.task.ahead:
            return self._batch(k)
        found = self.next[1].result() if self.next and self.next[0] == k else self._batch(k)
        if k + 1 < self.draw.count.shape[1]:
            self.next = k + 1, LOADER.submit(self._batch, k + 1)
        return found

    def _batch(self, k: int) -> tuple[Block, Tensor | None]:
        with torch.no_grad():
            return self._block(self.index[:, k], self.draw.count[:, k], self.augment_keys(k))

    def _block(self, index: Tensor, count: Ids, keys: Tensor | None) -> tuple[Block, Tensor | None]:
        task, width = self.work.task, int(count.max())
        block = task.samples(self.owners, index[:, :width], keys)
        if (count == width).all():
            return block, None
        n = torch.from_numpy(count).to(task.device, non_blocking=True)[:, None]
        inside = torch.arange(width, device=task.device) < n
        return block, inside.to(task.dtype) / n.clamp(min=1)


class StackedStep(Step):
    def __init__(self, client: Stacked, k: int, lr: Tensor) -> None:
        self.client, self.k, self.lr = client, k, lr
        self._batch: tuple[Block, Tensor | None] | None = None

    def at(self, y: Tensor) -> Tensor:
        if self.client.measures:
            self.client.measure(y, self.lr > 0)
        return y

    def grad(self, y: Tensor) -> Tensor:
        client, work, task = self.client, self.client.work, self.client.work.task
        first = self._batch is None
        if self._batch is None:
            self._batch = client.batch(self.k)
        keys = client.mask_keys(self.k)
        g, buffers = work.gradients.stacked(y, *self._batch, client.buffers, keys)
        client.step_taken(self.k)
        if (
            first and buffers.shape[1]
        ):  # a batch moves the statistics once, however often it is used
            client.buffers = torch.where(self.lr > 0, buffers, client.buffers)
            client.stepped = True
        if task.noise:
            g = g + task.noise * client.gradient_noise(self.k, y.shape[-1]).to(g.dtype)
        return task.regularised(g, y)


class Single(_Common):
    """One client by plain autograd: vectors are (d,), nothing is padded."""

    def __init__(
        self,
        work: Work,
        row: int,
        draw: Draw,
        memory: Memory | None,
        outbox: Outbox,
        measures: tuple[Measure, ...] = (),
        broadcast: Mapping[str, Any] | None = None,
    ) -> None:
        self.work, self.row, self.draw, self.memory = work, row, draw, memory
        self.outbox, task = outbox, work.task
        self.keys = outbox.keys
        self.owner = torch.tensor([row], device=task.store)
        self.index = draw.index[0].to(task.store, non_blocking=True)
        self.ahead: list[Block] = []
        self.ahead_to = 0
        self.buffers = work.buffers
        self._begin(measures, broadcast or {})
        self.moved = torch.zeros(1, dtype=task.dtype, device=task.device)
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
        if batch is None or self.takes_all(batch, int(task.sizes[self.row])):
            self.gradients += int(task.sizes[self.row])
            keys = self.mask_keys(FULL)
            g, buffers = work.gradients.full_single(self.row, x, self.buffers, work.limit, keys)
            self.passed = buffers if self.passed is None else self.passed
        else:
            index = large_batch(work, np.array([self.row]), batch).of(0, 0).to(task.store)
            block = tuple(t[0] for t in task.samples(self.owner, index[None]))
            self.gradients += len(index)
            g = task.regularised(self.gradient(x, block, FULL + 1)[0], x)
        return self.finite("the full gradient", g)

    def gradient(self, y: Tensor, block: Block, step: int) -> tuple[Any, Tensor]:
        """The gradient of a block's loss, and the buffers after the pass."""
        oracle = self.work.gradients
        of = oracle.plain if self.work.check else oracle.single
        return of(y, block, self.buffers, self.mask_keys(step))

    def samples(self, k: int) -> Block:
        """The samples of step k. Those of the next steps are gathered with them where there is no
        transform and they are few bytes."""
        task, count = self.work.task, int(self.draw.count[0, k])
        if k >= self.ahead_to:
            n = 1
            if task.transform is None:
                alike = self.draw.count[0, k : k + max(1, GATHERED // (count * task.sample_bytes))]
                n = int((alike != count).argmax()) or len(alike)
            index, keys = self.index[k : k + n, :count], self.augment_keys(k)
            found = task.samples(self.owner, index.reshape(1, -1), keys)
            blocks = zip(*(t[0].split(count) for t in found), strict=True)
            self.ahead, self.ahead_to = list(blocks), k + n
        return self.ahead[k - self.ahead_to]

    def encode(self, upload: U, by: Compressor | None) -> U:
        if by is None:
            return upload
        rows = settled(upload).map(lambda v: v[None])
        sent = self.outbox.encode(rows, by).map(lambda v: v[0])
        for name, (coded, _) in self.outbox.sent.items():
            self.outbox.sent[name] = coded, sent.tensors()[name]
        return sent

    def noise(self, like: Tensor) -> Tensor:
        return self._noise(self.keys, self.work.round, like)[0]

    def finite(self, what: str, value: Any) -> Any:
        """The value; where values are checked, refused if it is not finite."""
        if self.work.check and not bool(torch.isfinite(value).all()):
            raise FairleadError(f"{what} holds NaN or infinite values: try a smaller step size")
        return value


class _SingleStep(Step):
    def __init__(self, client: Single, k: int, lr: float) -> None:
        self.client, self.k, self.lr = client, k, lr
        self._block: Block | None = None

    def at(self, y: Tensor) -> Tensor:
        if self.client.measures:
            self.client.measure(y, 1.0)
        return y

    def grad(self, y: Any) -> Tensor:
        client, task = self.client, self.client.work.task
        point = y.point() if isinstance(y, Vector) else y
        client.finite("the point y", point)
        first = self._block is None
        if self._block is None:
            self._block = client.samples(self.k)
        g, buffers = client.gradient(point, self._block, self.k)
        client.gradients += int(client.draw.count[0, self.k])
        if first and buffers.numel():
            client.buffers, client.stepped = buffers, True
        if task.noise:
            work = client.work
            more = normal(work.seed, work.round, client.keys, self.k, len(point))[0]
            g = g + task.noise * more.to(point)
        return client.finite("the gradient", task.regularised(g, y))
