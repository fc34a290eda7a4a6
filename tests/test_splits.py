"""Splits: always a partition, always end, always the same for a seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fairlead as fl
from fairlead import splits

LABELS = st.lists(st.integers(0, 6), min_size=24, max_size=200).map(np.array)


def _is_partition(split: splits.Split, n: int) -> None:
    assert np.array_equal(np.sort(split.order), np.arange(n))
    assert (split.sizes > 0).all()
    assert split.sizes.sum() == n


@given(
    labels=LABELS, clients=st.integers(1, 12), percent=st.floats(0, 100), seed=st.integers(0, 99)
)
@settings(max_examples=100, deadline=None)
def test_similarity_is_a_partition_of_equal_parts(labels, clients, percent, seed) -> None:
    split = splits.similarity(labels, clients, percent, seed)
    _is_partition(split, len(labels))
    assert split.sizes.max() - split.sizes.min() <= 2


@given(labels=LABELS, clients=st.integers(1, 12), per=st.integers(1, 2), seed=st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_shards_are_a_partition(labels, clients, per, seed) -> None:
    split = splits.shards(labels, clients, per, seed)
    _is_partition(split, len(labels))
    assert split.sizes.max() - split.sizes.min() <= per


@given(
    labels=LABELS,
    clients=st.integers(1, 24),
    alpha=st.sampled_from([1e-3, 0.01, 0.1, 1.0, 100.0, 1e6]),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_dirichlet_is_a_partition_even_for_tiny_alpha(labels, clients, alpha, seed) -> None:
    split = splits.dirichlet(labels, clients, alpha, seed)
    _is_partition(split, len(labels))
    again = splits.dirichlet(labels, clients, alpha, seed)
    assert np.array_equal(split.order, again.order)


@given(labels=LABELS, clients=st.integers(1, 24), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_iid_is_a_partition_of_equal_parts(labels, clients, seed) -> None:
    split = splits.iid(labels, clients, seed)
    _is_partition(split, len(labels))
    assert split.sizes.max() - split.sizes.min() <= 1


def test_similarity_mixes_as_much_as_it_says() -> None:
    labels = np.repeat(np.arange(10), 1000)
    sorted_ = splits.similarity(labels, 10, 0).table(labels)
    assert np.array_equal(sorted_, 1000 * np.eye(10))
    half = splits.similarity(labels, 10, 50).table(labels)
    assert np.abs(np.diag(half) - 550).max() < 150  # half of its own class, a tenth of the rest
    assert splits.similarity(labels, 10, 100).table(labels).max() < 160


def test_shards_hold_few_labels_and_dirichlet_follows_alpha() -> None:
    labels = np.repeat(np.arange(10), 600)
    two = splits.shards(labels, 30, 2).table(labels)
    assert ((two > 0).sum(1) <= 2).all()
    even = splits.dirichlet(labels, 10, 1e6).table(labels)
    assert np.abs(even - 60).max() <= 2
    spiky = splits.dirichlet(labels, 10, 0.01).table(labels)
    assert ((spiky > 300).sum(0) >= 1).sum() >= 7  # most classes lie with one client


def test_seeds_and_wrong_settings() -> None:
    labels = np.repeat(np.arange(4), 30)
    one, two = splits.dirichlet(labels, 5, 0.5, seed=1), splits.dirichlet(labels, 5, 0.5, seed=2)
    assert not np.array_equal(one.order, two.order)
    with pytest.raises(fl.FairleadError, match="200 clients for 120 samples"):
        splits.iid(labels, 200)
    with pytest.raises(fl.FairleadError, match="alpha is 0"):
        splits.dirichlet(labels, 5, 0.0)
    with pytest.raises(fl.FairleadError, match="similarity is 101"):
        splits.similarity(labels, 5, 101)
