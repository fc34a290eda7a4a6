"""The time of a round on several ranks, predicted from the network's latency and bandwidth.

A round is the work of the busiest rank, then per exchange a ring all-reduce of what clients sent, that is
2·(W − 1) consecutive messages of 1/W of the bytes each, after one latency for receivers to signal that
they are ready, and one small all-reduce in which the ranks agree to continue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlead.errors import FairleadError


@dataclass(frozen=True)
class Network:
    """latency: seconds one way; bandwidth: bytes per second of a rank's link; overhead: seconds of processing
    per message, independent of distance."""

    latency: float
    bandwidth: float
    overhead: float = 60e-6

    def __post_init__(self) -> None:
        if self.latency < 0 or self.overhead < 0 or not self.bandwidth > 0:
            raise FairleadError("latency and overhead must be at least 0, and bandwidth positive")

    def message(self, size: float) -> float:
        """Seconds until a message arrives."""
        return self.overhead + self.latency + size / self.bandwidth

    def all_reduce(self, size: float, ranks: int) -> float:
        """Seconds to sum `size` bytes over ranks in a ring."""
        return 2 * (ranks - 1) * self.message(size / ranks)


@dataclass(frozen=True)
class RoundCost:
    """Seconds of a round, by part."""

    work: float
    sums: float
    agreement: float

    @property
    def total(self) -> float:
        return self.work + self.sums + self.agreement


def round_cost(
    network: Network,
    *,
    ranks: int,
    cohort: int,
    client_seconds: float,
    dim: int,
    vectors: int = 1,
    exchanges: int = 1,
    item: int = 4,
) -> RoundCost:
    """The time of a round on `ranks` ranks.

    client_seconds: one client's local work on one rank (a round of one process over its clients).
    dim: parameters; vectors: how many such vectors a client sends per round, over all exchanges.

    >>> lan = Network(latency=1e-4, bandwidth=1.25e9)
    >>> cost = round_cost(lan, ranks=8, cohort=80, client_seconds=0.02, dim=1_000_000)
    >>> round(cost.work, 3), round(cost.sums, 4)
    (0.2, 0.0079)
    """
    if min(ranks, cohort, dim, vectors, exchanges) < 1:
        raise FairleadError("ranks, cohort, dim, vectors and exchanges must all be at least 1")
    work = math.ceil(cohort / ranks) * client_seconds
    if ranks == 1:
        return RoundCost(work, 0.0, 0.0)
    each = item * dim * vectors / exchanges
    sums = exchanges * (network.latency + network.all_reduce(each, ranks))
    return RoundCost(work, sums, network.all_reduce(24, ranks))
