"""What the clients of a round share, their large batches, and the keys of what they draw."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fairlead.data.batches import Batches, Draw
from fairlead.gradients.oracle import Gradients
from fairlead.rng import Purpose, words
from fairlead.schedules import Rate, rate_at
from fairlead.task.task import Task

Ids = NDArray[np.int64]


@dataclass
class Work:
    """What is the same for all clients of a round."""

    gradients: Gradients
    seed: Any
    """One number, or one per client where these are the clients of several runs."""
    round: int
    first_step: int
    """Local steps counted over the earlier rounds, for schedules over steps."""
    buffers: Tensor
    """The server's buffers at the start of the round."""
    identities: Ids
    """The number of every client for random draws, by its row in the data."""
    limit: int = 1 << 16
    """Samples at a time in a full gradient."""
    check: bool = False
    """Check every value, and name round, client and step when something is wrong."""

    @property
    def task(self) -> Task:
        """What is trained."""
        return self.gradients.task

    def rates(self, lr: Rate, count: int) -> NDArray[np.float64]:
        """The step sizes of the round's steps."""
        if isinstance(lr, int | float):
            return np.full(count, float(lr))
        return np.array([rate_at(lr, self.round, self.first_step + k) for k in range(count)])


def large_batch(work: Work, rows: Ids, size: int) -> Draw:
    """One batch without replacement per round and client, apart from those of its steps."""
    task, ids = work.task, work.identities[rows]
    return one_batch(size).draw(
        work.seed, work.round, ids, task.sizes[rows], Purpose.LARGE_BATCH, task.store, rows
    )


def one_batch(size: int) -> Batches:
    """A single batch without replacement."""
    return Batches(batch_size=size, steps=1)


class _Loader:
    """One thread that gathers samples; a forked process gets its own."""

    def __init__(self) -> None:
        self.process, self.pool = -1, None

    def submit(self, *work: Any) -> Future[Any]:
        if self.pool is None or self.process != os.getpid():
            self.process, self.pool = os.getpid(), ThreadPoolExecutor(1, "fairlead-samples")
        return self.pool.submit(*work)


LOADER = _Loader()


FULL = 1 << 31
"""Among the steps: a pass over all data; the next one is a large batch."""


def step_keys(work: Work, purpose: Purpose, keys: Tensor, step: int) -> Tensor:
    """Two random words per client for one of its steps."""
    return words(work.seed, purpose, work.round, keys, step, 0)[:, :2]
