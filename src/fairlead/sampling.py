"""Who takes part in a round, and who of them answers.

>>> Uniform(3).cohort(seed=0, round=5, clients=10).shape
(3,)
>>> Replay([[0, 2], [1]]).cohort(seed=0, round=1, clients=3)
array([1])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fairlead.errors import FairleadError
from fairlead.rng import Purpose, uniform

Ids: TypeAlias = NDArray[np.int64]


class Sampler(ABC):
    """Draws the cohort of a round: client ids in rising order."""

    @abstractmethod
    def cohort(self, seed: int, round: int, clients: int) -> Ids: ...

    def check(self, clients: int, rounds: int) -> None:
        """Refuse what cannot be drawn from that many clients."""
        return


@dataclass(frozen=True)
class Everyone(Sampler):
    """All clients, every round."""

    def cohort(self, seed: int, round: int, clients: int) -> Ids:
        return np.arange(clients)


def _top(keys: torch.Tensor, size: int) -> Ids:
    return np.sort(keys.topk(size).indices.numpy())


def _draws(seed: int, round: int, clients: int) -> torch.Tensor:
    return uniform(seed, Purpose.COHORT, round, torch.tensor([0]), clients)[0]


@dataclass(frozen=True)
class Uniform(Sampler):
    """A number of clients, or a fraction of them, uniformly without replacement."""

    size: int | float

    def count(self, clients: int) -> int:
        """How many clients a round takes."""
        if isinstance(self.size, float):
            return max(1, round(self.size * clients))
        return self.size

    def cohort(self, seed: int, round: int, clients: int) -> Ids:
        return _top(_draws(seed, round, clients), self.count(clients))

    def check(self, clients: int, rounds: int) -> None:
        if isinstance(self.size, float) and not 0 < self.size <= 1:
            raise FairleadError(f"cohort is {self.size}: a fraction lies above 0 and at most at 1")
        if not 1 <= self.count(clients) <= clients:
            raise FairleadError(
                f"cohort is {self.size} but there are {clients} clients: "
                f"take between 1 and {clients}, or a fraction such as 0.2"
            )


@dataclass(frozen=True)
class Weighted(Uniform):
    """As Uniform, but one after another with probability proportional to `weights`."""

    weights: Sequence[float] = ()

    def cohort(self, seed: int, round: int, clients: int) -> Ids:
        weights = torch.tensor(self.weights, dtype=torch.float64)
        keys = _draws(seed, round, clients).log() / weights  # Efraimidis and Spirakis 2006
        return _top(keys, self.count(clients))

    def check(self, clients: int, rounds: int) -> None:
        super().check(clients, rounds)
        if len(self.weights) != clients:
            raise FairleadError(
                f"{len(self.weights)} sampling weights for {clients} clients: give one a client"
            )
        if not all(np.isfinite(w) and w > 0 for w in self.weights):
            raise FairleadError("sampling weights must be positive and finite")


@dataclass(frozen=True)
class AllFirst(Uniform):
    """Everyone in the first round, then as Uniform: what FedGLOMO's theory asks for."""

    def cohort(self, seed: int, round: int, clients: int) -> Ids:
        return np.arange(clients) if round == 0 else super().cohort(seed, round, clients)


@dataclass(frozen=True)
class Replay(Sampler):
    """Given cohorts, one list of client ids a round."""

    cohorts: Sequence[Sequence[int]]

    def cohort(self, seed: int, round: int, clients: int) -> Ids:
        return np.sort(np.asarray(self.cohorts[round], dtype=np.int64))

    def check(self, clients: int, rounds: int) -> None:
        if len(self.cohorts) < rounds:
            raise FairleadError(
                f"{len(self.cohorts)} cohorts are given for {rounds} rounds: give one a round"
            )
        for k, ids in enumerate(self.cohorts):
            if len(set(ids)) != len(ids) or not ids:
                raise FairleadError(f"the cohort of round {k} is empty or names a client twice")
            if min(ids) < 0 or max(ids) >= clients:
                raise FairleadError(
                    f"the cohort of round {k} names client {max(ids)}: ids run to {clients - 1}"
                )


Cohorts: TypeAlias = int | float | Sampler | Sequence[Sequence[int]] | None
Dropouts: TypeAlias = float | Sequence[Sequence[int]]


def as_sampler(cohort: Cohorts) -> Sampler:
    """None is everyone, a number or fraction is uniform, a list of lists is replayed."""
    if cohort is None:
        return Everyone()
    if isinstance(cohort, Sampler):
        return cohort
    if isinstance(cohort, int | float | np.number):
        return Uniform(float(cohort) if isinstance(cohort, float | np.floating) else int(cohort))
    lists = [np.asarray(ids).tolist() for ids in cohort]
    if not all(isinstance(ids, list) for ids in lists):
        raise FairleadError(
            "cohort is one list of client ids: give a list of such lists, one a round"
        )
    return Replay(lists)


def answered(ids: Ids, dropout: Dropouts, seed: int, round: int) -> Ids:
    """Those of the cohort that answer: each is lost with probability `dropout`, or as listed."""
    if isinstance(dropout, int | float):
        if dropout == 0:
            return ids
        draws = uniform(seed, Purpose.DROPOUT, round, torch.from_numpy(ids), 1)[:, 0]
        return ids[(draws >= dropout).numpy()]
    return np.setdiff1d(ids, np.asarray(dropout[round], dtype=np.int64))


def check_dropout(dropout: Dropouts, rounds: int) -> None:
    """Refuse shares outside [0, 1) and lists that end before the run."""
    if isinstance(dropout, int | float):
        if not 0 <= dropout < 1:
            raise FairleadError(f"dropout is {dropout}: give a share from 0 up to, not with, 1")
    elif len(dropout) < rounds:
        raise FairleadError(
            f"dropouts are listed for {len(dropout)} of {rounds} rounds: give a list a round"
        )
