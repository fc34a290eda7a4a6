"""Cohorts and dropouts."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fairlead as fl
from fairlead.sampling import answered, as_sampler


def test_sizes_and_fractions() -> None:
    assert len(fl.Uniform(3).cohort(0, 0, 10)) == 3
    assert len(fl.Uniform(0.2).cohort(0, 0, 100)) == 20
    assert len(fl.Uniform(0.001).cohort(0, 0, 100)) == 1
    assert as_sampler(None).cohort(0, 0, 4).tolist() == [0, 1, 2, 3]
    assert as_sampler([[2, 0]]).cohort(0, 0, 4).tolist() == [0, 2]


def test_cohorts_are_distinct_seeded_and_change_by_round() -> None:
    sampler = fl.Uniform(10)
    cohorts = [tuple(sampler.cohort(5, k, 50)) for k in range(30)]
    assert all(len(set(c)) == 10 for c in cohorts)
    assert len(set(cohorts)) == 30
    assert cohorts[7] == tuple(sampler.cohort(5, 7, 50))
    assert cohorts[7] != tuple(sampler.cohort(6, 7, 50))


def test_uniform_takes_everyone_equally_often() -> None:
    """Each count within five standard deviations: a false alarm once in about 100,000 seeds."""
    rounds = 4000
    counts = np.zeros(20)
    for k in range(rounds):
        counts[fl.Uniform(5).cohort(1, k, 20)] += 1
    assert np.abs(counts - rounds / 4).max() < 5 * math.sqrt(rounds * 3 / 16)


def test_weighted_draws_in_proportion() -> None:
    rounds, weights = 6000, [1.0, 2.0, 5.0]
    counts = np.zeros(3)
    for k in range(rounds):
        counts[fl.Weighted(1, weights=weights).cohort(0, k, 3)] += 1
    p = np.array(weights) / 8
    assert (np.abs(counts / rounds - p) < 5 * np.sqrt(p * (1 - p) / rounds)).all()


def test_dropout_loses_the_stated_share_by_client() -> None:
    ids = np.arange(20_000)
    kept = answered(ids, 0.3, seed=1, round=4)
    assert abs(len(kept) / 20_000 - 0.7) < 5 * math.sqrt(0.21 / 20_000)
    some = ids[::3]
    assert set(answered(some, 0.3, 1, 4)) == set(some) & set(kept)
    assert answered(np.array([1, 2, 5]), [[2, 9]], 0, 0).tolist() == [1, 5]


@pytest.mark.parametrize(
    ("cohort", "message"),
    [
        (11, "cohort is 11 but there are 10 clients"),
        (0, "cohort is 0"),
        (1.5, "cohort is 1.5"),
        ([[0]], "1 cohorts are given for 2 rounds"),
        ([[0], [0, 0]], "names a client twice"),
        ([[0], [10]], "names client 10"),
        (fl.Weighted(1, weights=[1.0]), "1 sampling weights for 10 clients"),
        (fl.Weighted(1, weights=[-1.0] * 10), "must be positive"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_training(cohort, message: str) -> None:
    task = fl.problems.random_quadratics(clients=10)
    with pytest.raises(fl.FairleadError, match=message):
        fl.train(task, fl.FedAvg(lr=0.1), rounds=2, cohort=cohort)
    with pytest.raises(fl.FairleadError, match="dropout is 1"):
        fl.train(task, fl.FedAvg(lr=0.1), rounds=2, dropout=1.0)
    with pytest.raises(fl.FairleadError, match="dropouts are listed for 1 of 2"):
        fl.train(task, fl.FedAvg(lr=0.1), rounds=2, dropout=[[1]])
