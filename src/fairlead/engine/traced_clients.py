"""Clients as a program sees them while it is traced: all that differs from round to round is an input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead.engine.api import Request
from fairlead.engine.clients import Stacked, StackedStep
from fairlead.engine.graph_inputs import Inputs
from fairlead.engine.state.outbox import Outbox
from fairlead.engine.tracing import BEFORE, Recorder, Untraceable
from fairlead.engine.work import FULL
from fairlead.gradients.oracle import Gradients
from fairlead.rng import Purpose, normal, words
from fairlead.schedules import Rate
from fairlead.task.task import Block


class _Gradients(Gradients):
    """A gradient oracle whose calls are entries of a recording."""

    def __init__(self, real: Gradients, recorder: Recorder) -> None:
        self.__dict__.update(real.__dict__)
        self.real, self.recorder = real, recorder

    def stacked(
        self,
        x: Tensor,
        block: Block,
        weights: Tensor | None,
        buffers: Tensor,
        keys: Tensor | None = None,
        first: int = 0,
    ) -> tuple[Tensor, Tensor]:
        count = len(block[0])
        g, after = x.new_empty((count, x.shape[-1])), buffers.new_empty(buffers.shape)
        given = (x, block, weights, buffers, keys, first)
        self.recorder.note(self.real.stacked, given, {}, (g, after))
        return g, after


class _Outbox(Outbox):
    """An outbox whose residuals and round are inputs."""

    given: Inputs

    @property
    def round(self) -> Tensor:
        return self.given.round

    @round.setter
    def round(self, value: Any) -> None:
        """It is an input."""

    def residual(self, name: str, like: Tensor) -> Tensor:
        return self.given.residual(name, like)


@dataclass
class Counted:
    """The gradients that clients take: how often in each traced step, on all data, and on large batches."""

    steps: list[int]
    passes: int = 0
    large: list[int] = field(default_factory=list)

    def total(self, request: Request, sizes: Any) -> int:
        """Gradients of single samples in an exchange."""
        per_step, spent = request.draw.per_step, 0
        if self.steps:
            times = np.full(len(per_step), self.steps[-1])
            times[: len(self.steps)] = self.steps[: len(times)]
            spent = int(times @ per_step)
        if self.passes or self.large:
            own = sizes[request.clients]
            spent += self.passes * int(own.sum())
            spent += sum(int(np.minimum(own, size).sum()) for size in self.large)
        return spent


class TracedClients(Stacked):
    """The clients of a captured exchange: all that changes is in inputs."""

    def __init__(self, given: Inputs, recorder: Recorder, counted: Counted, steps: int) -> None:
        session, request = given.session, given.request
        self.given, self.recorder, self.counts, self.traced = given, recorder, counted, steps
        work = session.work(0)
        oracle = _Gradients(work.gradients, recorder)
        self.work = replace(work, gradients=oracle, seed=given.seed)
        self.rows, self.owners, self.keys = request.clients, given["ids"], given["keys"]
        self.outbox = _Outbox(
            session.residuals, given.seed, 0, request.exchange, self.rows, self.keys
        )
        self.outbox.given = given
        self.memory, self.index = given.memory, given["index"]
        self.buffers = given.buffers
        self._begin(request.measures, given.broadcast)

    @property
    def largest(self) -> int:
        return self.given.largest

    def steps(self, lr: Rate) -> Iterator[Any]:
        if self.recorder.step != BEFORE:
            raise Untraceable("its client program has several loops over steps")
        rates, self.moved = self.given.step_sizes(lr)
        for k in range(self.traced):
            self.recorder.begin(k)
            yield StackedStep(self, k, rates.select(0, k))
        self.recorder.begin(self.traced)

    def step_taken(self, k: int) -> None:
        self.counts.steps[k] += 1

    def full_pass(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.counts.passes += 1
        work, sizes = self.work, self.given["sizes"]
        return work.gradients.full_padded(
            self.owners, sizes, self.largest, x, self.buffers, work.limit, self.mask_keys(FULL)
        )

    def large_batch(self, size: int) -> tuple[Block, Tensor | None]:
        index, count = self.given.large_batch(len(self.counts.large), size)
        self.counts.large.append(size)
        return self.work.task.samples(self.owners, index, None), self._inside(index, count)

    def _inside(self, index: Tensor, count: Tensor) -> Tensor:
        """The weights of the samples of batches with so many of them."""
        n = count[:, None]
        inside = torch.arange(index.shape[1], device=index.device) < n
        return inside.to(self.work.task.dtype) / n.clamp(min=1)

    def step_keys(self, purpose: Purpose, step: int) -> Tensor:
        k = step if step >= FULL else self.given["steps"].select(0, step)
        return words(self.work.seed, purpose, self.given.round, self.keys, k, 0)[:, :2]

    def gradient_noise(self, step: int, d: int) -> Tensor:
        k = self.given["steps"].select(0, step)
        return normal(self.work.seed, self.given.round, self.keys, k, d)

    def noise(self, like: Tensor) -> Tensor:
        return self._noise(self.keys, self.given.round, like)

    def batch(self, k: int) -> tuple[Block, Tensor | None]:
        index = self.index.select(0, k)
        block = self.work.task.samples(self.owners, index, self.augment_keys(k))
        if self.given.even:
            return block, None
        return block, self._inside(index, self.given["count"].select(0, k))
