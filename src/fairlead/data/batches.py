"""Which samples each client uses in each local step.

>>> Batches(batch_size=0.2, epochs=2).steps_of(np.array([10, 100]))
array([10, 10])
>>> draw = Batches(batch_size=4, steps=3).draw(0, 0, np.array([7]), np.array([10]))
>>> draw.count  # ten samples in batches of four: the third is short
array([[4, 4, 2]])
>>> sorted(draw.of(0, 0).tolist() + draw.of(0, 1).tolist() + draw.of(0, 2).tolist())
[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.errors import FairleadError
from fairlead.rng import Purpose, Word, host_words, uniform, words

Ints: TypeAlias = NDArray[np.int64]
BatchList: TypeAlias = Sequence[Sequence[int]]
BatchTable: TypeAlias = Mapping[tuple[int, int], BatchList] | Callable[[int, int], BatchList]


FEW = 1 << 14
"""Blocks of four samples up to which numpy shuffles faster on a CPU than torch; the result is the same."""


@dataclass(frozen=True)
class Draw:
    """The batches of S clients in one round, padded to a common shape."""

    index: Tensor
    """(S, K, B): positions in each client's own samples; entries beyond `count` are padding."""
    count: Ints
    """(S, K): samples in each batch, zero after a client's last step."""

    @cached_property
    def steps(self) -> Ints:
        """Each client's number of steps."""
        return (self.count > 0).sum(1)

    @cached_property
    def longest(self) -> int:
        """The largest number of steps of any client."""
        return int(self.steps.max(initial=0))

    @cached_property
    def even(self) -> bool:
        """Whether there is no padding."""
        return bool((self.count == self.index.shape[2]).all())

    @cached_property
    def per_step(self) -> Ints:
        """Samples in each step, over all clients."""
        return self.count.sum(0)

    def over(self, index: Tensor) -> Draw:
        """Other samples in batches of the same sizes, which share the cached properties."""
        other, shared = Draw(index, self.count), ("steps", "longest", "even", "per_step")
        other.__dict__.update({name: getattr(self, name) for name in shared})
        return other

    def of(self, client: int, step: int) -> Tensor:
        """One batch without its padding."""
        return self.index[client, step, : int(self.count[client, step])]


@dataclass(frozen=True)
class Geometric:
    """A random number of local steps, the same for all clients in a round: after each step they
    stop with probability p.

    >>> [Geometric(0.2).draw(seed=0, round=k) for k in range(4)]
    [1, 3, 1, 5]
    """

    p: float

    def draw(self, seed: int, round: int) -> int:
        """The number of steps in a round."""
        if self.p == 1:
            return 1
        u = float(uniform(seed, Purpose.STEPS, round, torch.tensor([0]), 1))
        return 1 + int(math.log(u) / math.log1p(-self.p))


@dataclass(frozen=True)
class Batches:
    """How clients iterate over their data.

    batch_size: samples per step; a float is a fraction of the client's data (rounded up);
        None is all of it.
    steps, epochs: local steps per round (one number, or one per client), or passes over the data;
        one pass by default.
    replacement: draw every batch independently instead of cutting up a permutation per epoch.
    drop_last: skip an epoch's short last batch (unless it is the client's only one).
    replay: explicit batches, `table[round, client]` or `table(round, client)`: a list of index
        lists into the client's own samples.

    >>> import fairlead as fl
    >>> task = fl.problems.synthetic_logistic(clients=2, samples=10)
    >>> run = fl.train(task, fl.FedAvg(lr=0.1), rounds=1, batch_size=4, epochs=2)  # 4 + 4 + 2 samples, twice
    >>> run.counters.gradients, run.counters.steps
    (40, 6)
    """

    batch_size: int | float | None = None
    steps: int | Sequence[int] | Geometric | None = None
    epochs: int | None = None
    replacement: bool = False
    drop_last: bool = False
    replay: BatchTable | None = None

    def check(self, sizes: Ints) -> None:
        """Reject contradictory settings before training."""
        size = self.batch_size
        if isinstance(size, float) and not 0 < size <= 1:
            raise FairleadError(f"batch_size is {size}: a fraction must be in (0, 1]")
        if isinstance(size, int) and size < 1:
            raise FairleadError(f"batch_size is {size}: give at least 1, or None for all data")
        if self.steps is not None and self.epochs is not None:
            raise FairleadError("both steps and epochs are given: give only one")
        if self.epochs is not None and (not isinstance(self.epochs, int) or self.epochs < 1):
            raise FairleadError(f"epochs is {self.epochs}: it must be an integer of at least 1")
        if isinstance(self.steps, Geometric):
            if not 0 < self.steps.p <= 1:
                raise FairleadError(f"p is {self.steps.p}: it must be in (0, 1]")
        elif self.steps is not None:
            steps = np.atleast_1d(np.asarray(self.steps))
            if steps.dtype.kind not in "iu" or steps.min() < 1:
                raise FairleadError(
                    f"steps is {self.steps}: it must be an integer of at least 1 for every client"
                )
            if steps.size not in (1, len(sizes)):
                raise FairleadError(
                    f"{steps.size} step counts for {len(sizes)} clients: give one, or one per client"
                )

    def sizes_of(self, n: Ints) -> Ints:
        """The batch size of clients with `n` samples."""
        if self.batch_size is None:
            return n
        if isinstance(self.batch_size, float):
            return np.maximum(1, np.ceil(self.batch_size * n - 1e-9).astype(np.int64))
        full = np.full_like(n, self.batch_size)
        return full if self.replacement else np.minimum(full, n)

    def per_epoch(self, n: Ints) -> Ints:
        """Batches in one pass over `n` samples."""
        size = self.sizes_of(n)
        return np.maximum(1, n // size) if self.drop_last else -(-n // size)

    def smallest(self, n: Ints) -> Ints:
        """The size of the smallest batch of clients with `n` samples."""
        size = self.sizes_of(n)
        if self.replacement:
            return size
        return np.minimum(size, n - (self.per_epoch(n) - 1) * size)

    def steps_of(self, n: Ints, ids: Ints | None = None, seed: int = 0, round: int = 0) -> Ints:
        """Local steps per round of the clients `ids` with `n` samples."""
        if isinstance(self.steps, Geometric):
            return np.full_like(n, self.steps.draw(seed, round))
        if self.steps is None:
            return (self.epochs or 1) * self.per_epoch(n)
        steps = np.asarray(self.steps, dtype=np.int64)
        return np.full_like(n, steps) if steps.ndim == 0 else steps[ids]

    def most_steps(self, n: Ints, rounds: int, seed: int) -> int:
        """An upper bound on the local steps of any client in a run."""
        if isinstance(self.steps, Geometric):
            return sum(self.steps.draw(seed, k) for k in range(rounds))
        if self.replay is not None:
            table = self.replay
            longest = 1 if callable(table) else max((len(b) for b in table.values()), default=1)
            return rounds * longest
        return rounds * int(self.steps_of(n, np.arange(len(n))).max())

    def cost(self, seed: int, round: int, ids: Ints, n: Ints) -> NDArray[np.float64]:
        """Samples processed by each client in a round."""
        if self.replay is not None:
            return self._replayed(round, ids, n).count.sum(1).astype(float)
        return (self.steps_of(n, ids, seed, round) * self.sizes_of(n)).astype(float)

    def longest(self, seed: int, round: int, ids: Ints, n: Ints) -> int:
        """The largest number of steps of any client."""
        if self.replay is not None:
            return int(self._replayed(round, ids, n).steps.max())
        return int(self.steps_of(n, ids, seed, round).max())

    @property
    def ahead(self) -> bool:
        """Whether the batches of several rounds can be drawn together."""
        return self.replay is None and not isinstance(self.steps, Geometric)

    def draw(
        self,
        seed: int,
        round: int | Ints,
        ids: Ints,
        n: Ints,
        purpose: Purpose = Purpose.BATCH,
        device: torch.device | None = None,
        rows: Ints | None = None,
    ) -> Draw:
        """The batches of the clients `ids` with `n` samples in a round: a pure function, computed on
        a device with the same result. Where `ahead` says so, every client may have its own round, so
        that several rounds are drawn at once. rows: their positions in the task, where these are not
        the numbers that randomness goes by."""
        rows = ids if rows is None else rows
        if self.replay is not None:
            return self._replayed(_one(round), rows, n)
        put = partial(_put, device=device)
        size, each = self.sizes_of(n), self.per_epoch(n)
        steps = self.steps_of(n, rows, seed, 0 if isinstance(round, np.ndarray) else round)
        k = np.arange(steps.max())
        start = (k % each[:, None]) * size[:, None]  # where in its epoch a batch starts
        count = np.broadcast_to(size[:, None], start.shape)
        if not self.replacement:
            count = np.minimum(count, n[:, None] - start)
        count = np.where(k < steps[:, None], count, 0)
        width = int(count.max())
        inside = torch.arange(width, device=device)
        if self.replacement:
            when = put(round)[:, None, None] if isinstance(round, np.ndarray) else round
            index = _with_replacement(seed, when, put(ids), put(n), put(k), width)
        else:
            index = inside.expand(*count.shape, width)  # a full batch needs no order
            some = size < n
            if some.any():
                passes = np.where(some, -(-steps // each), 0)
                shuffled, starts = _permutations(seed, purpose, round, ids, n, passes, put)
                first = np.cumsum(passes) - passes  # the row of a client's first epoch
                epoch = np.minimum(k // each[:, None], np.maximum(passes, 1)[:, None] - 1)
                row = np.minimum(first[:, None] + epoch, len(starts) - 1)
                at = put(starts[row] + start)[..., None] + inside
                cut = shuffled[at.clamp_(max=len(shuffled) - 1)]
                index = cut if some.all() else torch.where(put(some)[:, None, None], cut, index)
        if (count == width).all():
            return Draw(index, count)
        padding = inside >= put(count)[..., None]
        return Draw(index.masked_fill(padding, 0), count)

    def _replayed(self, round: int, ids: Ints, n: Ints) -> Draw:
        table = self.replay
        assert table is not None
        get = table if callable(table) else lambda r, c: table[r, c]
        try:
            lists = [[torch.as_tensor(b) for b in get(round, int(i))] for i in ids]
        except KeyError as error:
            raise FairleadError(
                f"replay has no batches for (round, client) {error}: add them"
            ) from error
        count = np.zeros((len(ids), max(len(steps) for steps in lists)), dtype=np.int64)
        for s, batches in enumerate(lists):
            for k, batch in enumerate(batches):
                count[s, k] = len(batch)
                if len(batch) == 0 or int(batch.min()) < 0 or int(batch.max()) >= n[s]:
                    raise FairleadError(
                        f"replayed batch {k} of client {ids[s]} in round {round} is empty or has an "
                        f"index outside the client's {n[s]} samples"
                    )
        index = torch.zeros((*count.shape, int(count.max())), dtype=torch.int64)
        for s, batches in enumerate(lists):
            for k, batch in enumerate(batches):
                index[s, k, : len(batch)] = batch
        return Draw(index, count)


def _one(round: int | Ints) -> int:
    if isinstance(round, np.ndarray):
        raise ValueError("replayed batches are read one round at a time")
    return round


def _put(values: NDArray[Any], device: torch.device | None) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True)


def _with_replacement(
    seed: int, round: Word, ids: Tensor, n: Tensor, steps: Tensor, width: int
) -> Tensor:
    """`width` independent samples per client and step: (S, K, width)."""
    blocks = torch.arange(-(-width // 4), device=ids.device)
    client, step = ids[:, None, None], steps[:, None]
    bits = words(seed, Purpose.BATCH, round, client, step, blocks).flatten(2)[..., :width]
    return (bits * n[:, None, None]) >> 32


def _permutations(
    seed: int,
    purpose: Purpose,
    round: int | Ints,
    ids: Ints,
    n: Ints,
    epochs: Ints,
    put: Callable[[NDArray[Any]], Tensor],
) -> tuple[Tensor, Ints]:
    """One permutation per client and epoch, each padded to a multiple of four, and their starts."""
    rows = np.repeat(np.arange(len(ids)), epochs)
    epoch = np.arange(len(rows)) - np.repeat(np.cumsum(epochs) - epochs, epochs)
    blocks = -(-n[rows] // 4)
    starts = np.cumsum(blocks) - blocks
    rounds = round[rows] if isinstance(round, np.ndarray) else np.full(len(rows), round)
    listed = np.stack([np.arange(len(rows)), starts, ids[rows], epoch, n[rows], rounds])
    total = int(blocks.sum())
    if total <= FEW and put(blocks).device.type == "cpu":
        row, start, client, step, size, when = listed.repeat(blocks, 1)
        block = np.arange(total) - start
        bits = host_words(seed, purpose, when, client, step, block)
        position = 4 * block[:, None] + np.arange(4)
        beyond = (position >= size[:, None]).astype(np.int64)
        key = torch.from_numpy((row[:, None] << 33) | (beyond << 32) | bits)
        order = key.flatten().sort(stable=True).indices
        return torch.from_numpy(position.reshape(-1))[order], 4 * starts
    row, start, client, step, size, when = put(listed).repeat_interleave(
        put(blocks), 1, output_size=total
    )
    block = torch.arange(total, device=row.device) - start
    bits = words(seed, purpose, when, client, step, block)
    position = 4 * block[:, None] + torch.arange(4, device=row.device)
    beyond = position >= size[:, None]
    key = (row[:, None] << 33) | (beyond.long() << 32) | bits
    order = key.flatten().sort(stable=True).indices
    return position.flatten()[order], 4 * starts
