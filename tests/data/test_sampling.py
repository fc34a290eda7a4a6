"""Cohorts and dropouts."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fairlead as fl
from fairlead.data import sampling
from fairlead.data.sampling import answered, answered_many, as_sampler


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
    cohorts = fl.Uniform(5).cohorts(1, range(rounds), 20)
    assert all((fl.Uniform(5).cohort(1, k, 20) == cohorts[k]).all() for k in range(0, rounds, 100))
    counts = np.bincount(np.concatenate(cohorts), minlength=20)
    assert np.abs(counts - rounds / 4).max() < 5 * math.sqrt(rounds * 3 / 16)


def test_always_takes_its_clients_and_others_equally_often() -> None:
    rounds, sampler = 2000, fl.Always([7, 0], more=2)
    cohorts = sampler.cohorts(1, range(rounds), 12)
    assert all((sampler.cohort(1, k, 12) == cohorts[k]).all() for k in range(0, rounds, 100))
    assert all(len(set(ids)) == 4 and (np.diff(ids) > 0).all() for ids in cohorts)
    counts = np.bincount(np.concatenate(cohorts), minlength=12)
    assert counts[[0, 7]].tolist() == [rounds, rounds]
    others = np.delete(counts, [0, 7])
    assert np.abs(others - rounds / 5).max() < 5 * math.sqrt(rounds * 4 / 25)
    assert fl.Always([3]).cohort(0, 5, 6).tolist() == [3]
    assert fl.Always([5], more=5).cohort(0, 0, 6).tolist() == [*range(6)]
    assert (sampler.most(12, 3), sampler.most(12, 100)) == (8, 12)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (fl.Always([]), "distinct ids in 0 … 9"),
        (fl.Always([10]), "distinct ids in 0 … 9"),
        (fl.Always([1, 1]), "distinct ids"),
        (fl.Always([1], more=10), "more is 10, but 9 of the 10 clients are left"),
    ],
)
def test_wrong_cohorts_with_fixed_clients(sampler, message: str) -> None:
    with pytest.raises(fl.FairleadError, match=message):
        sampler.check(10, 3)


LARGE = [(5000, 20), (5000, 0.125), (100_003, 3), (1_000_000, 1000), (4097, 512)]


@pytest.mark.parametrize(("clients", "size"), LARGE)
def test_small_cohorts_of_many_are_distinct_rising_and_as_large_as_asked(clients, size) -> None:
    sampler = fl.Uniform(size)
    for k in range(20):
        ids = sampler.cohort(3, k, clients)
        assert ids.dtype == np.int64
        assert len(ids) == sampler.count(clients)
        assert (np.diff(ids) > 0).all()
        assert 0 <= ids[0] <= ids[-1] < clients


def test_small_cohorts_of_many_take_everyone_equally_often() -> None:
    """χ² of the counts of bins of clients, of single clients and of pairs of neighbours in a cohort:
    each within five standard deviations."""
    clients, size, rounds = 8000, 500, 1600
    cohorts = np.stack(fl.Uniform(size).cohorts(9, range(rounds), clients))
    counts = np.bincount(cohorts.reshape(-1), minlength=clients)
    p = size / clients
    # a client's count is binomial; that all sum to rounds·size takes one degree of freedom
    each = ((counts - rounds * p) ** 2 / (rounds * p * (1 - p))).sum() * (clients - 1) / clients
    assert abs(each - (clients - 1)) < 5 * math.sqrt(2 * (clients - 1))
    bins = counts.reshape(100, -1).sum(1)
    spread = 80 * rounds * p * (1 - p)
    chi = ((bins - 80 * rounds * p) ** 2 / spread).sum()
    assert abs(chi - 99) < 5 * math.sqrt(2 * 99)
    # the smallest client of a cohort: P(min ≥ m) = C(N − m, S)/C(N, S), whose mean is (N − S)/(S + 1)
    least = cohorts[:, 0]
    mean = (clients - size) / (size + 1)
    assert abs(least.mean() - mean) < 5 * mean / math.sqrt(rounds) * 1.1


def test_small_cohorts_of_many_are_independent_of_how_many_draws_are_looked_at() -> None:
    whole = sampling._one_by_one(2, range(5), 5000, 600, 800)
    for tries in (4, 601, 5000):
        again = sampling._one_by_one(2, range(5), 5000, 600, tries)
        assert all(np.array_equal(a, b) for a, b in zip(whole, again, strict=True))


class Even(fl.Uniform):
    """A sampler of one's own."""

    def cohort(self, seed: int, round: int, clients: int):
        return np.arange(0, clients, 2)


@pytest.mark.parametrize("clients", [7, 60, 5000])
@pytest.mark.parametrize(
    "sampler",
    [
        fl.Everyone(), fl.Uniform(5), fl.Uniform(0.1), fl.Uniform(1.0), fl.AllFirst(3), Even(1),
        fl.Weighted(2, weights=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
        fl.Replay([[k % 7, (k + 3) % 7] for k in range(40)]),
    ],
    ids=lambda s: type(s).__name__,
)  # fmt: skip
def test_cohorts_of_several_rounds_are_those_of_each(
    sampler: sampling.Sampler, clients: int, monkeypatch
) -> None:
    if isinstance(sampler, fl.Weighted):  # one weight per client
        sampler = fl.Weighted(2, weights=[1.0 + k for k in range(clients)])
    for rounds in (range(40), range(7, 9), range(3, 3)):
        for at_once in (1 << 20, 10):
            monkeypatch.setattr(sampling, "AT_ONCE", at_once)
            many = sampler.cohorts(4, rounds, clients)
            assert len(many) == len(rounds)
            for k, ids in zip(rounds, many, strict=True):
                assert np.array_equal(ids, sampler.cohort(4, k, clients))


@pytest.mark.parametrize("dropout", [0.0, 0, 0.4, [[k, 2] for k in range(20)]])
def test_answers_of_several_rounds_are_those_of_each(dropout) -> None:
    for rounds in (range(12), range(5, 6), range(2, 2)):
        cohorts = fl.Uniform(6).cohorts(0, rounds, 30)
        many = answered_many(cohorts, dropout, 8, rounds)
        assert len(many) == len(rounds)
        for k, ids, kept in zip(rounds, cohorts, many, strict=True):
            assert np.array_equal(kept, answered(ids, dropout, 8, k))


def test_few_clients_are_drawn_as_ever() -> None:
    """Cohorts of earlier versions, which runs of theirs go on with."""
    assert fl.Uniform(5).cohort(0, 3, 20).tolist() == [8, 10, 11, 12, 18]
    assert fl.Uniform(4).cohort(7, 11, 4096).tolist() == [418, 815, 1538, 3150]


def test_weighted_draws_in_proportion() -> None:
    rounds, weights = 3000, [1.0, 2.0, 5.0]
    cohorts = fl.Weighted(1, weights=weights).cohorts(0, range(rounds), 3)
    counts = np.bincount(np.concatenate(cohorts), minlength=3)
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
        ([[0], [0, 0]], "lists a client twice"),
        ([[0], [10]], "lists client 10"),
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
