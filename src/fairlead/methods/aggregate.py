"""Aggregations: what the server takes for the clients' step, instead of the mean.

`FedAvg(lr=0.1, aggregate=fl.aggregate.Median())`; any function of `fl.Replies` that returns an upload is one.
Clients send the same as ever, so the ledger does not change. Only uploads are aggregated this way: the
statistics of BatchNorm layers are still averaged.

>>> import fairlead as fl
>>> task = fl.problems.quadratics([[[1.0]]] * 5, [[0.0], [0.1], [0.2], [0.3], [90.0]])  # one client is off
>>> runs = [fl.train(task, fl.FedAvg(lr=0.5, aggregate=a), rounds=20) for a in (None, fl.aggregate.Median())]
>>> [round(float(run.x), 1) for run in runs]
[18.1, 0.2]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from fairlead.core.replies import Replies
from fairlead.errors import FairleadError, positive

Aggregate: TypeAlias = Callable[[Replies[Any]], Any]


@dataclass(frozen=True)
class Median:
    """The median of every coordinate (Yin et al. 2018): fewer than half of the clients cannot move it out of
    the range of the others."""

    def __call__(self, replies: Replies[Any]) -> Any:
        return replies.median


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of every coordinate without its extremes (Yin et al. 2018).

    share: of the clients, left out at either end and rounded up; as many hostile ones cannot move it out of
    the range of the others.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 0.5:
            raise FairleadError(f"share is {self.share}: must be in [0, 0.5]")

    def __call__(self, replies: Replies[Any]) -> Any:
        return replies.trimmed_mean(self.share)


@dataclass(frozen=True)
class ClippedMean:
    """The mean of uploads shortened to a norm, plus noise (see `fl.DPFedAvg`).

    norm: the largest norm of an upload. noise: its standard deviation is noise·norm over the number of clients.
    """

    norm: float
    noise: float = 0.0

    def __post_init__(self) -> None:
        positive("norm", self.norm)
        if not 0 <= self.noise < float("inf"):
            raise FairleadError(f"noise is {self.noise}: must be at least 0")

    def __call__(self, replies: Replies[Any]) -> Any:
        return replies.clipped_mean(self.norm, self.noise)


AGGREGATES: dict[str, type[Any]] = {
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "clipped-mean": ClippedMean,
}
