"""Measures inside rounds, and looking at a run without changing it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from conftest import toy, uneven

import fairlead as fl
from fairlead.gradients import cuda_graph

WORK = {"rounds": 3, "cohort": 3, "batch_size": 4, "steps": [1, 5, 3, 4, 2], "seed": 5}


def _engines() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"engine": "vmap"}, {"engine": "loop"}, {"engine": fl.Simulate("vmap", memory=1)},
    ]  # fmt: skip
    return found + [{"engine": "vmap", "workers": 2}] * (sys.platform == "linux")


@pytest.mark.parametrize("method", [fl.Scaffold(lr=0.1), fl.Catalyst(fl.ScaffoldS(lr=0.1))])
def test_every_engine_measures_the_same(method: fl.Algorithm) -> None:
    measures = [fl.measure.ClientDrift()]
    reference = fl.train(
        uneven(), method, engine="debug", measures=measures, drift=True, **WORK
    ).history
    names = [name for name in reference if "drift" in name]
    assert {"client_drift", "drift"} <= set(names)
    for how in _engines():
        run = fl.train(uneven(), method, measures=measures, drift=True, **how, **WORK)
        for name in names:
            np.testing.assert_allclose(run.history[name], reference[name], rtol=1e-9)
    settings = {k: v for k, v in WORK.items() if k != "seed"}
    many = fl.train_many(uneven(), [(method, 5), (method, 6)], measures=measures, **settings)
    np.testing.assert_allclose(
        many[0].history["client_drift"], reference["client_drift"], rtol=1e-9
    )


def test_measures_of_captured_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "captures", lambda device: True)
    monkeypatch.setattr(cuda_graph, "record", lambda perform, pool=None: perform() or perform)
    engine = fl.Simulate("vmap", capture=True)
    how = {"measures": [fl.measure.ClientDrift()], "drift": True, **WORK, "rounds": 6}
    run = fl.train(uneven(), fl.Scaffold(lr=0.1), engine=engine, **how)
    other = fl.train(uneven(), fl.Scaffold(lr=0.1), engine="debug", **how)
    for name in ("client_drift", "drift"):
        np.testing.assert_allclose(run.history[name], other.history[name], rtol=1e-9)


def test_client_drift_by_hand() -> None:
    """f_i = a_i/2·(x − b_i)² from x = 0 with steps of 0.1: y_1 = 0.1·a_i·b_i, y_2 = y_1 + 0.1·a_i·(b_i − y_1)."""
    run = fl.train(toy(), fl.FedAvg(lr=0.1), rounds=1, steps=2, measures=[fl.measure.ClientDrift()])
    a, b = np.array([1.0, 3.0, 0.5, 2.0]), np.array([-1.0, 1.0, 4.0, -3.0])
    one = 0.1 * a * b
    two = one + 0.1 * a * (b - one)
    expected = np.mean([one**2, two**2])
    assert run.history.last("client_drift") == pytest.approx(expected, rel=1e-12)


def test_callbacks_see_states_and_reading_changes_nothing() -> None:
    seen: list[tuple[int, Any, list[int]]] = []

    class Looking(fl.Callback):
        def round(self, view: Any) -> bool:
            before = view.session.store.nbytes
            rows = view.client_states()
            assert view.session.store.nbytes == before
            seen.append((view.round, rows.c.clone(), view.clients.tolist()))
            assert torch.equal(view.x, view.state.x)
            return view.round == 3

    cohorts = [[1, 3], [3, 4], [0, 1], [2]]
    settings: Any = {"steps": 2, "cohort": cohorts}
    run = fl.train(uneven(), fl.Scaffold(lr=0.1), rounds=4, callbacks=[Looking()], **settings)
    assert run.stopped == "callback"
    assert [(k, clients) for k, _, clients in seen] == [
        (1, [1, 3]),
        (2, [1, 3, 4]),
        (3, [0, 1, 3, 4]),
    ]
    plain = fl.train(uneven(), fl.Scaffold(lr=0.1), rounds=3, **settings)
    assert torch.equal(plain.x, run.x)
    assert torch.equal(plain.client_states().c, seen[-1][1])
    assert not seen[0][1][[0, 2, 4]].any()
    assert fl.train(uneven(), fl.FedAvg(lr=0.1), rounds=1).client_states() is None


def test_a_task_does_not_change() -> None:
    task = uneven()
    with pytest.raises(fl.FairleadError, match="a task cannot be changed"):
        task.noise = 0.1
    before = set(vars(task))
    fl.train(task, fl.Scaffold(lr=0.1), **WORK)
    assert set(vars(task)) == before
    assert task.model.training
    assert task.replace(noise=0.1).noise == 0.1
    assert task.noise == 0.0
