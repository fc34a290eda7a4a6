"""Splits: always a partition, always end, always the same for a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread

import fairlead as fl
from fairlead.data import amounts, splits

LABELS = st.lists(st.integers(0, 6), min_size=24, max_size=200).map(np.array)
ALPHAS = st.sampled_from([1e-300, 1e-3, 0.01, 0.1, 1.0, 1e3, 1e6, 1e300])
SEEDS = st.integers(0, 99)
Maker = Callable[[Any, int, int], splits.Split]

MAKERS: dict[str, Maker] = {
    "iid": splits.iid,
    "similarity 0": lambda y, n, seed: splits.similarity(y, n, 0, seed),
    "similarity 35": lambda y, n, seed: splits.similarity(y, n, 35, seed),
    "one shard": lambda y, n, seed: splits.shards(y, n, 1, seed),
    "dirichlet 1e-3": lambda y, n, seed: splits.dirichlet(y, n, 1e-3, seed),
    "dirichlet 1": lambda y, n, seed: splits.dirichlet(y, n, 1.0, seed),
    "dirichlet 1e3": lambda y, n, seed: splits.dirichlet(y, n, 1e3, seed),
    "balanced 1e-3": lambda y, n, seed: splits.dirichlet_balanced(y, n, 1e-3, seed),
    "balanced 1": lambda y, n, seed: splits.dirichlet_balanced(y, n, 1.0, seed),
    "balanced 1e3": lambda y, n, seed: splits.dirichlet_balanced(y, n, 1e3, seed),
    "sliced 1e-3": lambda y, n, seed: splits.dirichlet_sliced(y, n, 1e-3, seed),
    "sliced 1": lambda y, n, seed: splits.dirichlet_sliced(y, n, 1.0, seed),
    "quantity 1e-3": lambda y, n, seed: splits.quantity(y, n, 1e-3, seed),
    "quantity power": lambda y, n, seed: splits.quantity(y, n, seed=seed, power=1.5),
}
SAME = {
    "iid": "9d956b54",
    "similarity 0": "f575326a",
    "similarity 35": "14600fd3",
    "one shard": "4af37d71",
    "dirichlet 1e-3": "f5e46c3f",
    "dirichlet 1": "a1fb7058",
    "dirichlet 1e3": "9c5dd9a3",
    "balanced 1e-3": "b190cb0a",
    "balanced 1": "84cf8992",
    "balanced 1e3": "336757a3",
    "sliced 1e-3": "4e3c9114",
    "sliced 1": "8613e627",
    "quantity 1e-3": "2d7cbe78",
    "quantity power": "0edfc265",
}
EACH = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())

KINDS: dict[str, Any] = {
    "one class": np.full(60, 3),
    "strings": np.array(["ant", "bee", "cow"])[np.arange(60) % 3],
    "negative": np.arange(60) % 2 * 2 - 1,
    "sparse": np.array([5, 10**12, -(10**9)])[np.arange(60) % 3],
    "floats": np.where(np.arange(60) % 2, 1.0, -1.0),
    "each its own": np.arange(60),
    "rare class": np.r_[np.zeros(59, dtype=int), 1],
    "list": [True, False] * 30,
}


def _is_partition(split: splits.Split, n: int, clients: int | None = None) -> None:
    assert np.array_equal(np.sort(split.order), np.arange(n))
    assert (split.sizes > 0).all()
    assert split.sizes.sum() == n
    assert clients is None or len(split) == clients
    assert split.order.dtype == split.offsets.dtype == np.int64


def _same(one: splits.Split, two: splits.Split) -> bool:
    return np.array_equal(one.order, two.order) and np.array_equal(one.offsets, two.offsets)


def _digest(split: splits.Split) -> str:
    numbers = np.concatenate([split.order, split.offsets]).astype("<i8")
    return hashlib.sha256(numbers.tobytes()).hexdigest()[:8]


@EACH
@given(labels=LABELS, clients=st.integers(1, 24), seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_every_split_is_a_partition_that_its_seed_fixes(
    make: Maker, labels: Any, clients: int, seed: int
) -> None:
    split = make(labels, clients, seed)
    _is_partition(split, len(labels), clients)
    assert _same(split, make(labels, clients, seed))
    table = split.table(labels)
    assert np.array_equal(table.sum(0), np.unique(labels, return_counts=True)[1])
    assert np.array_equal(table.sum(1), split.sizes)


@EACH
@pytest.mark.parametrize("labels", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("clients", [1, 2, 7, 60])
def test_labels_of_any_kind_and_any_number_of_clients(
    make: Maker, labels: Any, clients: int
) -> None:
    split = make(labels, clients, 4)
    _is_partition(split, 60, clients)
    assert split.table(labels).shape == (clients, len(np.unique(labels)))


@EACH
def test_other_seeds_give_other_splits(make: Maker) -> None:
    labels = np.arange(300) % 10
    found = {make(labels, 12, seed).order.tobytes() for seed in range(8)}
    assert len(found) == 8


def test_the_same_split_on_every_machine() -> None:
    labels = np.arange(500) ** 2 % 11
    found = {name: _digest(make(labels, 40, 7)) for name, make in MAKERS.items()}
    assert found == SAME


@EACH
def test_names_of_labels_do_not_matter(make: Maker) -> None:
    labels = np.random.default_rng(0).integers(0, 5, 200)
    names = np.array(["a", "b", "c", "d", "e"])[labels]
    assert _same(make(labels, 9, 3), make(names, 9, 3))
    assert _same(make(labels, 9, 3), make(labels * 1000 - 7, 9, 3))


@EACH
def test_a_million_samples_and_a_hundred_thousand_clients(make: Maker) -> None:
    labels = np.random.default_rng(0).integers(0, 10, 10**6)
    split = make(labels, 10**5, 0)
    _is_partition(split, 10**6, 10**5)
    assert split.table(labels).sum() == 10**6


@given(labels=LABELS, clients=st.integers(1, 12), percent=st.floats(0, 100), seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_similarity_is_a_partition_of_equal_parts(labels, clients, percent, seed) -> None:
    split = splits.similarity(labels, clients, percent, seed)
    _is_partition(split, len(labels))
    assert split.sizes.max() - split.sizes.min() <= 2


@given(labels=LABELS, clients=st.integers(1, 12), per=st.integers(1, 2), seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_shards_are_a_partition_with_few_labels(labels, clients, per, seed) -> None:
    split = splits.shards(labels, clients, per, seed)
    _is_partition(split, len(labels))
    assert split.sizes.max() - split.sizes.min() <= per
    piece = -(-len(labels) // (clients * per))
    smallest = np.unique(labels, return_counts=True)[1].min()
    most = per * (1 + -(-(piece - 1) // smallest))  # labels that `per` shards can reach into
    assert ((split.table(labels) > 0).sum(1) <= most).all()


@given(labels=LABELS, clients=st.integers(1, 24), alpha=ALPHAS, seed=SEEDS)
@settings(max_examples=100, deadline=None)
def test_dirichlet_is_a_partition_for_any_alpha(labels, clients, alpha, seed) -> None:
    _is_partition(splits.dirichlet(labels, clients, alpha, seed), len(labels), clients)


@given(labels=LABELS, clients=st.integers(1, 24), alpha=ALPHAS, seed=SEEDS)
@settings(max_examples=100, deadline=None)
def test_balanced_dirichlet_has_equal_clients_for_any_alpha(labels, clients, alpha, seed) -> None:
    split = splits.dirichlet_balanced(labels, clients, alpha, seed)
    _is_partition(split, len(labels), clients)
    assert split.sizes.max() - split.sizes.min() <= 1


@given(labels=LABELS, clients=st.integers(1, 24), alpha=ALPHAS, seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_quantity_is_a_partition_for_any_alpha(labels, clients, alpha, seed) -> None:
    _is_partition(splits.quantity(labels, clients, alpha, seed), len(labels), clients)


@given(labels=LABELS, clients=st.integers(1, 24), seed=SEEDS)
@settings(max_examples=50, deadline=None)
def test_iid_is_a_partition_of_equal_parts(labels, clients, seed) -> None:
    split = splits.iid(labels, clients, seed)
    _is_partition(split, len(labels))
    assert split.sizes.max() - split.sizes.min() <= 1


@given(owner=st.lists(st.integers(0, 9), min_size=10, max_size=80).map(np.array))
@settings(max_examples=100, deadline=None)
def test_the_needy_take_from_the_largest_one_after_the_other(owner) -> None:
    expected, sizes = owner.copy(), np.bincount(owner, minlength=10)
    for needy in np.flatnonzero(sizes == 0):
        giver = int(sizes.argmax())
        expected[np.flatnonzero(expected == giver)[0]] = needy
        sizes[giver] -= 1
        sizes[needy] += 1
    assert np.array_equal(amounts.fill_empty(owner, 10), expected)


@given(
    room=st.lists(st.integers(0, 30), min_size=1, max_size=12).map(np.array),
    part=st.floats(0, 1),
    scale=st.sampled_from([1e-3, 1.0, 1e5]),
    seed=SEEDS,
)
@settings(max_examples=100, deadline=None)
def test_capped_amounts_fit_and_follow_the_proportions(room, part, scale, seed) -> None:
    rng, count = np.random.default_rng(seed), round(part * room.sum())
    log = scale * rng.normal(size=len(room))
    taken = amounts.capped(log, room, count, rng.random())
    assert taken.sum() == count
    assert ((taken >= 0) & (taken <= room)).all()
    # λ·exp(log) is the same for whoever is not full, up to the rounding of one sample
    free = np.flatnonzero((taken < room) & (taken > 1))
    low, high = np.log(taken[free] - 1) - log[free], np.log(taken[free] + 1) - log[free]
    assert len(free) == 0 or low.max() <= high.min() + 1e-9


def test_every_client_has_the_same_mean_share_of_a_class() -> None:
    labels, clients, seeds = np.repeat([0, 1, 2], 400), 8, 150
    for make, alpha in ((splits.dirichlet, 0.5), (splits.dirichlet_balanced, 0.5)):
        tables = np.array([make(labels, clients, alpha, s).table(labels) for s in range(seeds)])
        shares = tables / 400
        error = shares.std(0, ddof=1) / np.sqrt(seeds)
        assert (np.abs(shares.mean(0) - 1 / clients) < 4.5 * error).all()


def test_the_spread_of_shares_is_that_of_the_dirichlet_distribution() -> None:
    labels, clients, alpha = np.zeros(10**5), 10, 2.0
    shares = np.array([splits.dirichlet(labels, clients, alpha, s).sizes for s in range(200)]) / 1e5
    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert shares.var() == pytest.approx(expected, rel=0.15)


def test_more_clients_than_samples_of_a_class_leave_no_pattern() -> None:
    labels = np.repeat(np.arange(10), 100)
    sizes = splits.dirichlet(labels, 200, 1e6).sizes
    assert sizes.std() < 2.5  # about that of Binomial(10, ½), instead of 0 and 10 in turns


def test_balanced_clients_are_as_skewed_as_alpha_says() -> None:
    labels = np.repeat(np.arange(10), 500)

    def held(alpha: float) -> float:
        tables = [splits.dirichlet_balanced(labels, 10, alpha, s).table(labels) for s in range(20)]
        shares = np.array(tables) / 500
        entropy = -(shares * np.log(np.maximum(shares, 1e-12))).sum(2)
        return float(np.exp(entropy).mean())

    values = [held(alpha) for alpha in (1e-3, 0.1, 0.5, 1.0, 1e6)]
    assert values == sorted(values)
    assert values[0] < 1.1
    assert values[-1] > 9.9


def test_similarity_mixes_as_much_as_it_says() -> None:
    labels = np.repeat(np.arange(10), 1000)
    sorted_ = splits.similarity(labels, 10, 0).table(labels)
    assert np.array_equal(sorted_, 1000 * np.eye(10))
    half = splits.similarity(labels, 10, 50).table(labels)
    assert np.abs(np.diag(half) - 550).max() < 150  # half of its own class, a tenth of the rest
    assert splits.similarity(labels, 10, 100).table(labels).max() < 160


def test_the_iid_part_of_similarity_has_the_frequencies_of_the_classes() -> None:
    labels = np.repeat([0, 1, 2, 3], [3800, 3000, 2000, 1200])
    tables = [splits.similarity(labels, 10, 20, s).table(labels) for s in range(60)]
    last = np.mean(tables, 0)[-1]  # its sorted 800 are all of class 3, its mixed 200 of every class
    assert np.abs(last - [76, 60, 40, 824]).max() < 4


def test_shards_hold_few_labels_and_dirichlet_follows_alpha() -> None:
    labels = np.repeat(np.arange(10), 600)
    two = splits.shards(labels, 30, 2).table(labels)
    assert ((two > 0).sum(1) <= 2).all()
    even = splits.dirichlet(labels, 10, 1e6).table(labels)
    assert np.abs(even - 60).max() <= 2
    spiky = splits.dirichlet(labels, 10, 0.01).table(labels)
    assert ((spiky > 300).sum(0) >= 1).sum() >= 7  # most classes lie with one client


def test_quantity_gives_uneven_clients_with_the_labels_of_all() -> None:
    labels = np.arange(20000) % 4
    split = splits.quantity(labels, 10, power=1.0)
    ranked = np.sort(split.sizes)[::-1]
    assert np.abs(ranked * np.arange(1, 11) / ranked[0] - 1).max() < 0.02
    shares = split.table(labels) / split.sizes[:, None]
    assert np.abs(shares - 0.25).max() < 0.06
    assert np.ptp(splits.quantity(labels, 10, power=0.0).sizes) <= 1
    assert splits.quantity(labels, 10, 1e-3).sizes.max() > 19000
    assert {int(splits.quantity(labels, 10, seed=s, power=1.0).sizes.argmax()) for s in range(40)} == set(range(10))  # fmt: skip


@given(
    ids=st.lists(st.sampled_from(["ann", "bob", "cy", "dee"]), min_size=1, max_size=60),
    minimum=st.integers(1, 20),
)
@settings(max_examples=60, deadline=None)
def test_by_id_keeps_whoever_has_enough(ids, minimum) -> None:
    counts = {name: ids.count(name) for name in sorted(set(ids))}
    kept = [name for name, count in counts.items() if count >= minimum]
    if not kept:
        with pytest.raises(
            fl.FairleadError, match=f"has {minimum} samples: lower minimum to at most"
        ):
            splits.by_id(ids, minimum)
        return
    split = splits.by_id(ids, minimum)
    assert [[ids[j] for j in own] for own in split] == [[name] * counts[name] for name in kept]
    assert all((np.diff(own) > 0).all() for own in split)
    left = len(ids) - sum(counts[name] for name in kept)
    assert ("to no client" in split.describe(ids)) == (left > 0)


def test_by_id_of_many_writers() -> None:
    ids = np.random.default_rng(0).integers(0, 10**5, 10**6)
    split = splits.by_id(ids, 8)
    assert split.sizes.min() == 8
    assert (np.diff(ids[split.order]) >= 0).all()
    _is_partition(splits.by_id(ids), 10**6)


def test_given_lists_and_their_table() -> None:
    split = splits.Split.of([[3, 1], [], (0,)])
    assert [own.tolist() for own in split] == [[3, 1], [], [0]]
    assert split.owners.tolist() == [0, 0, 2]
    assert split.table(["b", "a", "b", "a"]).tolist() == [[2, 0], [0, 0], [0, 1]]
    assert len(splits.Split.of([])) == 0
    with pytest.raises(fl.FairleadError, match="by_id"):
        splits.Split.of([[True, False]])


def test_plain_lists_are_read_as_any_other_and_as_order_and_offsets() -> None:
    rng = np.random.default_rng(0)
    lists = [rng.integers(0, 99, rng.integers(0, 4)).tolist() for _ in range(2000)]
    plain, arrays = splits.Split.of(lists), splits.Split.of([np.array(ids, int) for ids in lists])
    short: Any = arrays.order.astype(np.int32)
    given = splits.Split(short, arrays.offsets)
    for other in (arrays, given):
        assert np.array_equal(plain.order, other.order)
        assert np.array_equal(plain.offsets, other.offsets)
    assert plain.order.dtype == given.order.dtype == given.offsets.dtype == np.int64
    assert plain.sizes.tolist() == [len(ids) for ids in lists]
    assert not plain.even
    assert splits.Split.of([[1, 2], [3, 4]]).even
    for wrong in ([[0], [1.5]], [[0], [[1]]], [[0], [True]], [[0], ["a"]], [[[0, 1], [2, 3]]]):
        with pytest.raises(fl.FairleadError, match="list of sample indices"):
            splits.Split.of(wrong)


def test_a_split_in_words() -> None:
    labels = np.repeat([0, 1], 600)
    assert splits.similarity(labels, 2, 0).describe(labels) == (
        "2 clients hold 1,200 samples: 600 each, from 1 of 2 classes."
    )
    text = splits.by_id([0, 0, 0, 1], minimum=2).describe([5, 5, 6, 6])
    assert text == (
        "1 client holds 3 samples: 3 each, from 2 of 2 classes. 1 sample belongs to no client."
    )


@pytest.mark.parametrize(
    ("clients", "classes"), [(1, 1), (3, 2), (10, 10), (100, 62), (101, 5), (4, 150)]
)
def test_the_picture_shows_each_count_as_an_area(
    tmp_path: Path, clients: int, classes: int
) -> None:
    labels = np.arange(1500) % classes
    split = splits.dirichlet(labels, clients, 0.5)
    figure = split.plot(labels, tmp_path / "split.png")
    assert imread(tmp_path / "split.png").std() > 0.01
    bubbles, strip = figure.axes[0].collections[0], figure.axes[1]
    table = split.table(labels)[:60] if clients > 100 else split.table(labels)
    table = table[:, :60] if classes > 100 else table
    places = bubbles.get_offsets().astype(int)
    counts = table[places[:, 0], places[:, 1]]
    assert np.allclose(bubbles.get_sizes() / counts, bubbles.get_sizes()[0] / counts[0])
    assert len(counts) == (table > 0).sum()
    assert [bar.get_height() for bar in strip.patches] == split.sizes[: len(table)].tolist()
    text = figure.texts[0].get_text().replace("\n", " ")
    assert ("the first 60 clients" in text) == (clients > 100)
    assert ("the 60 most frequent classes" in text) == (classes > 100)
    assert text.startswith(split.describe(labels))


def test_a_picture_without_clients_is_refused() -> None:
    with pytest.raises(fl.FairleadError, match="no clients to draw"):
        splits.Split.of([]).plot([0, 1])


def test_slices_of_the_joined_lists_reach_into_the_neighbours() -> None:
    labels = np.arange(5000) % 10
    split = splits.dirichlet_sliced(labels, 10, 0.1, 0)
    lists = np.array_split(labels[split.order], 10)
    assert split.sizes.tolist() == [500] * 10
    # within a list classes rise, so where they fall a slice goes on with the next client's list
    falls = sum(int((np.diff(part) < 0).sum()) for part in lists)
    assert falls >= 8
    table = split.table(labels)
    assert 4 < (table > 0).sum(1).mean() < 8
    assert (table.sum(0) == 500).all()


def test_splits_by_name() -> None:
    labels = np.arange(100) % 5
    names = ["iid", "similarity", "dirichlet", "dirichlet-balanced", "dirichlet-sliced"]
    names += ["shards", "quantity"]
    assert list(splits.SPLITS) == names
    for name, make in splits.SPLITS.items():
        value = () if name == "iid" else (1,)
        _is_partition(make(labels, 10, *value, 3), 100, 10)


LONG = np.repeat(np.arange(4), 30)
HALF: Any = 2.5
FLAT: Any = np.eye(3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: splits.iid(LONG, 200), "200 clients for 120 samples"),
        (lambda: splits.iid(LONG, 0), "0 clients for 120 samples"),
        (lambda: splits.iid(LONG, HALF), "2.5 clients for 120 samples: give an integer"),
        (lambda: splits.iid([], 1), "no samples to split"),
        (lambda: splits.iid(LONG, 5, seed=-1), "seed is -1"),
        (lambda: splits.dirichlet(LONG, 5, 0.0), "alpha is 0"),
        (lambda: splits.dirichlet(LONG, 5, float("nan")), "alpha is nan"),
        (lambda: splits.dirichlet_balanced(LONG, 5, -1), "alpha is -1"),
        (lambda: splits.dirichlet(np.eye(3), 2, 1.0), r"shape \(3, 3\).*argmax"),
        (lambda: splits.similarity(LONG, 5, 101), "similarity is 101"),
        (lambda: splits.shards(LONG, 50, 3), "150 shards: give 1 to 2 shards per client"),
        (lambda: splits.shards(LONG, 50, 0), "give 1 to 2 shards per client"),
        (lambda: splits.quantity(LONG, 5), "give one of them"),
        (lambda: splits.quantity(LONG, 5, 1.0, power=1.0), "give one of them"),
        (lambda: splits.quantity(LONG, 5, power=-1.0), "power is -1"),
        (lambda: splits.by_id(np.zeros((2, 2))), "shape"),
        (lambda: splits.Split(LONG, np.array([0, 60])), "rise from 0 to its 120 entries"),
        (lambda: splits.Split(LONG, np.array([1, 120])), "rise from 0"),
        (lambda: splits.Split(LONG, np.array([0, 90, 60, 120])), "rise from 0"),
        (lambda: splits.Split(LONG, np.array([], int)), "one more offset than clients"),
        (lambda: splits.Split(FLAT, np.array([0, 3])), "list of sample indices"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(call, message) -> None:
    with pytest.raises(fl.FairleadError, match=message):
        call()
