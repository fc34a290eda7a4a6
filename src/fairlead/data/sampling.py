"""Which clients are sampled in a round, and which of them respond.

>>> Uniform(3).cohort(seed=0, round=5, clients=10).shape
(3,)
>>> Replay([[0, 2], [1]]).cohort(seed=0, round=1, clients=3)
array([1])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fairlead.describe import counted
from fairlead.errors import FairleadError
from fairlead.rng import Purpose, uniform, words

Ids: TypeAlias = NDArray[np.int64]

MANY = 4096
"""Above this many clients, a cohort of at most an eighth of them is drawn client by client, at a cost
that depends only on the cohort."""
AT_ONCE = 1 << 20
"""Random numbers drawn per call."""


class Sampler(ABC):
    """Draws the cohort of a round: client ids in ascending order."""

    @abstractmethod
    def cohort(self, seed: int, round: int, clients: int) -> Ids: ...

    def cohorts(self, seed: int, rounds: range, clients: int) -> list[Ids]:
        """The cohorts of several rounds, the same as from `cohort`."""
        return [self.cohort(seed, k, clients) for k in rounds]

    def most(self, clients: int, rounds: int) -> int:
        """The largest number of clients that can participate in a run."""
        return clients

    def check(self, clients: int, rounds: int) -> None:
        """Reject settings that do not fit the number of clients or rounds."""
        return


@dataclass(frozen=True)
class Everyone(Sampler):
    """All clients, every round.

    >>> Everyone().cohort(seed=0, round=3, clients=4)
    array([0, 1, 2, 3])
    """

    def cohort(self, seed: int, round: int, clients: int) -> Ids:
        return np.arange(clients)

    def cohorts(self, seed: int, rounds: range, clients: int) -> list[Ids]:
        return [np.arange(clients)] * len(rounds)


def _top(keys: torch.Tensor, size: int) -> list[Ids]:
    """The indices of the largest keys in every row."""
    return list(np.sort(keys.topk(size).indices.numpy(), axis=1))


def _draws(seed: int, rounds: range, clients: int) -> torch.Tensor:
    """One number per round and client: (R, N)."""
    when = torch.tensor(rounds, dtype=torch.int64)[:, None]
    return uniform(seed, Purpose.COHORT, when, torch.tensor([0]), clients)


def _one_by_one(seed: int, rounds: range, clients: int, size: int, tries: int) -> list[Ids]:
    """The first `size` distinct ids of an endless sequence of uniform draws, `tries` at first."""
    fair = (1 << 32) - (1 << 32) % clients  # larger words would favour the first clients
    when = torch.tensor(rounds, dtype=torch.int64)[:, None]
    drawn = words(seed, Purpose.COHORT, when, 0, 1, torch.arange(-(-tries // 4))).flatten(1)
    found = []
    for k, row in zip(rounds, drawn.numpy(), strict=True):
        ids = row[row < fair] % clients
        first = np.sort(np.unique(ids, return_index=True)[1])[:size]
        more = len(first) < size
        again = _one_by_one(seed, range(k, k + 1), clients, size, 2 * tries) if more else []
        found.append(again[0] if more else np.sort(ids[first]))
    return found


def _parts(rounds: range, numbers: int) -> Iterator[range]:
    """The rounds in blocks of at most AT_ONCE random numbers, at `numbers` per round."""
    step = max(1, AT_ONCE // numbers)
    for first in range(0, len(rounds), step):
        yield rounds[first : first + step]


def _uniform(seed: int, rounds: range, clients: int, size: int) -> list[Ids]:
    """Cohorts of `size` clients, uniformly without replacement."""
    found: list[Ids] = []
    if clients > MANY and size <= clients // 8:
        tries = size + size // 8 + 16
        for part in _parts(rounds, tries):
            found += _one_by_one(seed, part, clients, size, tries)
    else:
        for part in _parts(rounds, clients):
            found += _top(_draws(seed, part, clients), size)
    return found


@dataclass(frozen=True)
class Uniform(Sampler):
    """A number of clients, or a fraction of them, uniformly without replacement.

    >>> Uniform(0.2).count(50), Uniform(3).most(clients=50, rounds=10)
    (10, 30)
    """

    size: int | float

    def count(self, clients: int) -> int:
        """Clients per round."""
        if isinstance(self.size, float):
            return max(1, round(self.size * clients))
        return self.size

    def cohort(self, seed: int, round: int, clients: int) -> Ids:
        return _uniform(seed, range(round, round + 1), clients, self.count(clients))[0]

    def cohorts(self, seed: int, rounds: range, clients: int) -> list[Ids]:
        if type(self).cohort is not Uniform.cohort:  # overridden in a subclass
            return super().cohorts(seed, rounds, clients)
        return _uniform(seed, rounds, clients, self.count(clients))

    def most(self, clients: int, rounds: int) -> int:
        return min(clients, rounds * self.count(clients))

    def check(self, clients: int, rounds: int) -> None:
        if isinstance(self.size, float) and not 0 < self.size <= 1:
            raise FairleadError(f"cohort is {self.size}: a fraction must be in (0, 1]")
        if not 1 <= self.count(clients) <= clients:
            raise FairleadError(
                f"cohort is {self.size} but there {'is' if clients == 1 else 'are'} "
                f"{counted(clients, 'client')}: give 1 to {clients}, or a fraction such as 0.2"
            )


@dataclass(frozen=True)
class Weighted(Uniform):
    """Like Uniform, but drawn one by one with probability proportional to `weights`.

    >>> often = Weighted(1, weights=[1.0, 1.0, 8.0])
    >>> drawn = [int(often.cohort(seed=0, round=k, clients=3)[0]) for k in range(100)]
    >>> [drawn.count(client) for client in range(3)]
    [13, 11, 76]
    """

    weights: Sequence[float] = ()

    @cached_property
    def _weights(self) -> torch.Tensor:
        return torch.from_numpy(np.array(self.weights, dtype=np.float64))

    def cohort(self, seed: int, round: int, clients: int) -> Ids:
        draws = _draws(seed, range(round, round + 1), clients)
        keys = draws.log() / self._weights  # Efraimidis and Spirakis 2006
        return _top(keys, self.count(clients))[0]

    def check(self, clients: int, rounds: int) -> None:
        super().check(clients, rounds)
        if len(self.weights) != clients:
            raise FairleadError(
                f"{len(self.weights)} sampling weights for {clients} clients: give one per client"
            )
        weights = np.asarray(self.weights, dtype=np.float64)
        if not np.isfinite(weights).all() or (weights <= 0).any():
            raise FairleadError("sampling weights must be positive and finite")


@dataclass(frozen=True)
class AllFirst(Uniform):
    """All clients in the first round, then like Uniform: FedGLOMO's theory requires this.

    >>> [len(AllFirst(2).cohort(seed=0, round=k, clients=5)) for k in (0, 1, 2)]
    [5, 2, 2]
    """

    def cohort(self, seed: int, round: int, clients: int) -> Ids:
        return np.arange(clients) if round == 0 else super().cohort(seed, round, clients)

    def cohorts(self, seed: int, rounds: range, clients: int) -> list[Ids]:
        drawn = _uniform(seed, rounds, clients, self.count(clients))
        return [ids if k else np.arange(clients) for k, ids in zip(rounds, drawn, strict=True)]

    def most(self, clients: int, rounds: int) -> int:
        return clients


@dataclass(frozen=True)
class Always(Sampler):
    """The clients `ids` in every round, and `more` of the others, uniformly without replacement.

    >>> cohort = Always([19], more=1).cohort(seed=0, round=5, clients=20)  # one of the others and 19
    >>> len(cohort), int(cohort[1])
    (2, 19)
    """

    ids: Sequence[int]
    more: int = 0

    def cohort(self, seed: int, round: int, clients: int) -> Ids:
        return self.cohorts(seed, range(round, round + 1), clients)[0]

    def cohorts(self, seed: int, rounds: range, clients: int) -> list[Ids]:
        fixed = np.sort(np.asarray(self.ids, dtype=np.int64))
        if not self.more:
            return [fixed] * len(rounds)
        drawn = np.stack(_uniform(seed, rounds, clients - len(fixed), self.more))
        for client in fixed:  # the k-th of the others, as a client's number
            drawn += drawn >= client
        return [np.sort(np.r_[fixed, ids]) for ids in drawn]

    def most(self, clients: int, rounds: int) -> int:
        return min(clients, len(self.ids) + rounds * self.more)

    def check(self, clients: int, rounds: int) -> None:
        ids = list(self.ids)
        if not ids or len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) >= clients:
            raise FairleadError(
                f"the clients in every cohort are {ids}: give distinct ids in 0 … {clients - 1}"
            )
        if not 0 <= self.more <= clients - len(ids):
            raise FairleadError(
                f"more is {self.more}, but {clients - len(ids)} of the {clients} clients are left to sample"
            )


@dataclass(frozen=True)
class Replay(Sampler):
    """Given cohorts, one list of client ids per round.

    >>> Replay([[0, 2], [1]]).cohort(seed=7, round=0, clients=3)
    array([0, 2])
    """

    lists: Sequence[Sequence[int]]

    def cohort(self, seed: int, round: int, clients: int) -> Ids:
        return np.sort(np.asarray(self.lists[round], dtype=np.int64))

    def most(self, clients: int, rounds: int) -> int:
        return len(set().union(*self.lists[:rounds]))

    def check(self, clients: int, rounds: int) -> None:
        if len(self.lists) < rounds:
            raise FairleadError(
                f"{len(self.lists)} cohorts are given for {rounds} rounds: give one per round"
            )
        for k, ids in enumerate(self.lists):
            if len(set(ids)) != len(ids) or not ids:
                raise FairleadError(f"the cohort of round {k} is empty or lists a client twice")
            if min(ids) < 0 or max(ids) >= clients:
                raise FairleadError(
                    f"the cohort of round {k} lists client {min(ids) if min(ids) < 0 else max(ids)}: "
                    f"ids must be in 0 … {clients - 1}"
                )


Cohorts: TypeAlias = int | float | Sampler | Sequence[Sequence[int]] | None
Dropouts: TypeAlias = float | Sequence[Sequence[int]]


def as_sampler(cohort: Cohorts) -> Sampler:
    """None means all clients, a number or fraction uniform sampling, a list of lists a replay."""
    if cohort is None:
        return Everyone()
    if isinstance(cohort, Sampler):
        return cohort
    if isinstance(cohort, int | float | np.number):
        return Uniform(float(cohort) if isinstance(cohort, float | np.floating) else int(cohort))
    lists = [np.asarray(ids).tolist() for ids in cohort]
    if not all(isinstance(ids, list) for ids in lists):
        raise FairleadError(
            "cohort is one list of client ids: give a list of such lists, one per round"
        )
    return Replay(lists)


def answered(ids: Ids, dropout: Dropouts, seed: int, round: int) -> Ids:
    """The clients of the cohort that respond: each drops out with probability `dropout`, or as listed."""
    if isinstance(dropout, int | float):
        if dropout == 0:
            return ids
        draws = uniform(seed, Purpose.DROPOUT, round, torch.from_numpy(ids), 1)[:, 0]
        return ids[(draws >= dropout).numpy()]
    return np.setdiff1d(ids, np.asarray(dropout[round], dtype=np.int64))


def answered_many(cohorts: Sequence[Ids], dropout: Dropouts, seed: int, rounds: range) -> list[Ids]:
    """The clients that respond in several rounds, the same as from `answered`."""
    if not isinstance(dropout, int | float) or dropout == 0 or not cohorts:
        pairs = zip(cohorts, rounds, strict=True)
        return [answered(ids, dropout, seed, k) for ids, k in pairs]
    sizes = [len(ids) for ids in cohorts]
    when = torch.from_numpy(np.repeat(np.array(rounds, dtype=np.int64), sizes))[:, None]
    everyone = torch.from_numpy(np.concatenate([*cohorts, np.zeros(0, np.int64)]))
    draws = uniform(seed, Purpose.DROPOUT, when, everyone, 1)[:, 0].numpy()
    parts = np.split(draws >= dropout, np.cumsum(sizes)[:-1])
    return [ids[kept] for ids, kept in zip(cohorts, parts, strict=True)]


def check_dropout(dropout: Dropouts, rounds: int) -> None:
    """Reject probabilities outside [0, 1) and lists shorter than the run."""
    if isinstance(dropout, int | float):
        if not 0 <= dropout < 1:
            raise FairleadError(f"dropout is {dropout}: it must be in [0, 1)")
    elif len(dropout) < rounds:
        raise FairleadError(
            f"dropouts are listed for {len(dropout)} of {rounds} rounds: give one list per round"
        )
