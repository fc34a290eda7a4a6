"""What a round on several ranks costs, from the network's latency and bandwidth: to be asked before a
cluster is rented.

A round is the work of the busiest rank, then for each exchange a ring all-reduce of what clients sent,
2·(W − 1) messages one after another of a W-th of the bytes each, before which a latency passes until
receivers have said that they are ready, and one small all-reduce in which the ranks agree to go on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlead.errors import FairleadError


@dataclass(frozen=True)
class Network:
    """latency: seconds one way; bandwidth: bytes a second of a rank's link; overhead: seconds that a message
    costs the two processes, however near they are."""

    latency: float
    bandwidth: float
    overhead: float = 60e-6

    def __post_init__(self) -> None:
        if self.latency < 0 or self.overhead < 0 or not self.bandwidth > 0:
            raise FairleadError("latency and overhead are zero or more, the bandwidth is positive")

    def message(self, size: float) -> float:
        """Seconds until a message has arrived."""
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
    """A round's time on `ranks` ranks.

    client_seconds: one client's local work on one rank (a round of one process over its clients).
    dim: parameters; vectors: how many such vectors a client sends in a round, over all exchanges.

    >>> lan = Network(latency=1e-4, bandwidth=1.25e9)
    >>> cost = round_cost(lan, ranks=8, cohort=80, client_seconds=0.02, dim=1_000_000)
    >>> round(cost.work, 3), round(cost.sums, 4)
    (0.2, 0.0079)
    """
    if min(ranks, cohort, dim, vectors, exchanges) < 1:
        raise FairleadError("ranks, cohort, dim, vectors and exchanges are at least 1")
    work = math.ceil(cohort / ranks) * client_seconds
    if ranks == 1:
        return RoundCost(work, 0.0, 0.0)
    each = item * dim * vectors / exchanges
    sums = exchanges * (network.latency + network.all_reduce(each, ranks))
    return RoundCost(work, sums, network.all_reduce(24, ranks))
