"""The predicted time of a round on several ranks."""

from __future__ import annotations

import pytest

import fairlead as fl
from fairlead.study.cluster_cost import Network, round_cost

WORK = {"cohort": 9, "client_seconds": 0.5, "dim": 1000}


def test_one_rank_only_works_and_several_also_add_up() -> None:
    network = Network(latency=0.1, bandwidth=1000.0, overhead=0.0)
    assert round_cost(network, ranks=1, **WORK).total == 4.5
    cost = round_cost(network, ranks=2, **WORK)
    assert cost.work == 2.5  # the busier rank has five clients
    assert cost.sums == pytest.approx(0.1 + 2 * (0.1 + 2.0))
    assert cost.total == cost.work + cost.sums + cost.agreement


def test_impossible_networks_and_rounds_are_refused() -> None:
    with pytest.raises(fl.FairleadError, match="bandwidth positive"):
        Network(latency=0.1, bandwidth=0.0)
    with pytest.raises(fl.FairleadError, match="at least 1"):
        round_cost(Network(0.1, 1.0), ranks=0, **WORK)
