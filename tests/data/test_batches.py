"""Batches: every client's own, the same in any company."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fairlead as fl
from fairlead.data.batches import Batches, Draw


def _lists(draw: Draw, client: int) -> list[list[int]]:
    return [draw.of(client, k).tolist() for k in range(int(draw.steps[client]))]


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    batch=st.one_of(st.none(), st.integers(1, 17), st.floats(0.05, 1.0)),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 2**40),
    drop=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_epochs_cover_every_sample_once(sizes, batch, epochs, seed, drop) -> None:
    n = np.array(sizes)
    ids = np.arange(len(n)) * 7
    plan = Batches(batch, epochs=epochs, drop_last=drop)
    draw = plan.draw(seed, 3, ids, n)
    for s, size in enumerate(n):
        lists, each = _lists(draw, s), int(plan.per_epoch(n)[s])
        assert len(lists) == epochs * each
        for e in range(epochs):
            seen = sorted(chain(*lists[e * each : (e + 1) * each]))
            if drop:
                assert len(seen) == len(set(seen)) == each * int(plan.sizes_of(n)[s])
            else:
                assert seen == list(range(size))
        alone = plan.draw(seed, 3, ids[s : s + 1], n[s : s + 1])
        assert _lists(alone, 0) == lists


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    batch=st.integers(1, 30),
    steps=st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_replacement_draws_full_batches_inside_the_data(sizes, batch, steps) -> None:
    n = np.array(sizes)
    plan = Batches(batch, steps=steps, replacement=True)
    draw = plan.draw(1, 0, np.arange(len(n)), n)
    assert (draw.count == batch).all()
    assert bool((draw.index < torch.tensor(n)[:, None, None]).all())
    alone = plan.draw(1, 0, np.arange(len(n))[-1:], n[-1:])
    assert _lists(alone, 0) == _lists(draw, len(n) - 1)


def test_replacement_is_uniform() -> None:
    """χ² over 7 cells; the bound is exceeded once in about ten million seeds."""
    draw = Batches(70_000, steps=1, replacement=True).draw(0, 0, np.array([0]), np.array([7]))
    counts = np.bincount(draw.index.flatten().numpy(), minlength=7)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 43.0


def test_rounds_epochs_and_clients_shuffle_differently() -> None:
    plan, n = Batches(10, epochs=2), np.array([50, 50])
    draw = plan.draw(0, 0, np.array([0, 1]), n)
    later = plan.draw(0, 1, np.array([0, 1]), n)
    orders = [tuple(chain(*_lists(draw, s)[e : e + 5])) for s in (0, 1) for e in (0, 5)]
    orders.append(tuple(chain(*_lists(later, 0)[:5])))
    assert len(set(orders)) == 5


def test_steps_run_on_through_epochs_and_may_differ_by_client() -> None:
    plan = Batches(4, steps=[5, 2, 1])
    draw = plan.draw(0, 0, np.array([0, 2]), np.array([10, 6]))
    assert draw.steps.tolist() == [5, 1]
    assert draw.count[0].tolist() == [4, 4, 2, 4, 4]
    assert draw.count[1].tolist() == [4, 0, 0, 0, 0]


def test_a_fraction_gives_five_steps_an_epoch() -> None:
    n = np.array([100, 101, 35, 5])
    assert Batches(0.2, epochs=1).steps_of(n).tolist() == [5, 5, 5, 5]


def test_replayed_batches_are_taken_as_they_are() -> None:
    table = {(0, 4): [[2, 2], [0]], (0, 1): [[1, 0, 3]]}
    draw = Batches(replay=table).draw(9, 0, np.array([1, 4]), np.array([4, 3]))
    assert _lists(draw, 0) == [[1, 0, 3]]
    assert _lists(draw, 1) == [[2, 2], [0]]
    with pytest.raises(fl.FairleadError, match="outside the client's 2 samples"):
        Batches(replay=table).draw(9, 0, np.array([4]), np.array([2]))


def test_replaying_the_drawn_batches_gives_the_same_run() -> None:
    from conftest import uneven

    task, plan = uneven(), Batches(4, epochs=2)
    drawn = fl.train(task, fl.Scaffold(lr=0.2), rounds=3, batches=plan, seed=8)

    def table(round: int, client: int) -> list[list[int]]:
        return _lists(plan.draw(8, round, np.array([client]), task.sizes[[client]]), 0)

    replayed = fl.train(task, fl.Scaffold(lr=0.2), rounds=3, batches=table, seed=8)
    assert torch.equal(drawn.x, replayed.x)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 1.5}, "batch_size is 1.5"),
        ({"steps": 2, "epochs": 1}, "both steps and epochs"),
        ({"epochs": 0}, "epochs is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": [1, 2]}, "2 step counts for 3 clients"),
    ],
)
def test_contradictions_are_refused(setting: dict, message: str) -> None:
    with pytest.raises(fl.FairleadError, match=message):
        Batches(**setting).check(np.array([5, 5, 5]))
