"""Probes as a run goes on: in every engine, in the accounts, in checkpoints; and averages of iterates."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from conftest import toy, uneven

import fairlead as fl
from fairlead.gradients import cuda_graph

WORK = {"rounds": 2, "cohort": 3, "batch_size": 4, "steps": [2, 4, 3, 2, 2], "seed": 5}
PROBES = [
    fl.measure.Dissimilarity(samples=6), fl.measure.Curvature(steps=2, samples=5, deviants=1),
    fl.measure.GradientNoise(clients=3), fl.measure.LocalPoints(), fl.measure.CKA(clients=3, samples=8),
    fl.measure.ControlLag(), fl.measure.Alpha(),
]  # fmt: skip


def _measured(run: fl.Run) -> dict[str, Any]:
    names = [n for n in run.history if n.partition("/")[0] in {p.name for p in PROBES}]
    counts = ("measure_bits", "measure_gradients")
    return {name: run.history[name] for name in (*names, *counts)}


def test_every_engine_measures_the_same_and_trains_as_without(monkeypatch) -> None:
    method = fl.Scaffold(lr=0.1)
    how: dict[str, Any] = {"measures": PROBES, "every": 2, **WORK}
    reference = fl.train(uneven(), method, engine="debug", **how)
    expected = _measured(reference)
    assert {"dissimilarity", "curvature/delta", "local/shadow_drift", "cka/3", "alpha/share"} <= {
        *expected
    }
    assert np.isnan(expected["alpha"]).tolist() == [False, True, False]
    engines: list[dict[str, Any]] = [{"engine": "vmap"}, {"engine": fl.Simulate("vmap", memory=1)}]
    engines += [{"engine": "vmap", "workers": 2}] * (sys.platform == "linux")
    for given in engines:
        run = fl.train(uneven(), method, **given, **how)
        for name, values in expected.items():
            np.testing.assert_allclose(_measured(run)[name], values, rtol=1e-7, err_msg=name)
    plain = fl.train(uneven(), method, engine="debug", **WORK)
    assert torch.equal(plain.x, reference.x)
    assert torch.equal(plain.client_states().c, reference.client_states().c)
    for name in plain.history:
        if name != "seconds":
            np.testing.assert_array_equal(plain.history[name], reference.history[name])
    monkeypatch.setattr(cuda_graph, "captures", lambda device: True)
    monkeypatch.setattr(cuda_graph, "record", lambda perform, pool=None: perform() or perform)
    captured = fl.train(uneven(), method, engine=fl.Simulate("vmap", capture=True), **how)
    for name, values in expected.items():
        np.testing.assert_allclose(_measured(captured)[name], values, rtol=1e-7, err_msg=name)


def test_runs_trained_at_once_are_measured_one_by_one() -> None:
    settings = {k: v for k, v in WORK.items() if k != "seed"}
    probes = [fl.measure.Dissimilarity(), fl.measure.LocalPoints()]
    method = fl.Scaffold(lr=0.1)
    many = fl.train_many(
        uneven(),
        [(method, 5), (method, 6)],
        measures=probes,
        engine="vmap",
        average="uniform",
        **settings,
    )
    alone = fl.train(
        uneven(), method, measures=probes, engine="vmap", average="uniform", seed=5, **settings
    )
    for name in ("dissimilarity", "local/client_drift", "average_loss"):
        np.testing.assert_allclose(many[0].history[name], alone.history[name], rtol=1e-9)


def test_measures_stand_in_the_ledger_under_their_own_name() -> None:
    task = toy()
    run = fl.train(
        task, fl.FedAvg(lr=0.1), rounds=2, steps=2, measures=[fl.measure.Dissimilarity()]
    )
    entries = [e for e in run.ledger.exchanges if e.measure]
    assert [(e.measure, e.round) for e in entries] == [("dissimilarity", k) for k in range(3)]
    assert all(e.down == 64 and e.up.tolist() == [64] * 4 for e in entries)  # x, and a gradient
    assert run.ledger.measured == 3 * 4 * 128
    assert run.history.last("measure_bits") == run.ledger.measured
    assert run.history["measure_gradients"].tolist() == [4, 8, 12]
    plain = fl.train(task, fl.FedAvg(lr=0.1), rounds=2, steps=2)
    assert (run.ledger.up, run.ledger.down) == (plain.ledger.up, plain.ledger.down)
    assert run.counters.gradients == plain.counters.gradients
    assert all(m.leaves for m in (*PROBES, fl.measure.ClientDrift(), fl.measure.CompressionError()))


@pytest.mark.parametrize("average", ["uniform", 0.25])
def test_the_average_of_the_iterates(average: Any) -> None:
    seen: list[torch.Tensor] = []

    class Looking(fl.Callback):
        def round(self, view: Any) -> None:
            seen.append(view.x.clone())

    task = uneven()
    run = fl.train(task, fl.FedAvg(lr=0.3), average=average, callbacks=[Looking()], **WORK)
    iterates = torch.stack([task.start(5)[0], *seen])
    decay = 0.0 if average == "uniform" else average
    weights = torch.tensor([(1 - decay) ** -r for r in range(len(iterates))], dtype=torch.float64)
    mean = weights / weights.sum() @ iterates
    torch.testing.assert_close(run.average.x, mean, rtol=1e-12, atol=1e-14)
    assert run.history.last("average_loss") == pytest.approx(float(task.objective(mean)), rel=1e-12)
    known = fl.train(toy(), fl.FedAvg(lr=0.1), rounds=3, steps=2, average=average)
    assert {"average_loss", "average_gap", "average_distance"} <= set(known.history)


def test_measures_and_averages_resume_to_the_same_bytes(tmp_path) -> None:
    task, method = uneven(), fl.Scaffold(lr=0.1)
    how: dict[str, Any] = {
        "average": 0.1, "measures": PROBES[:1], "every": 2, **WORK, "rounds": 6, "engine": "vmap",
    }  # fmt: skip
    whole = fl.train(task, method, **how)
    part = {**how, "rounds": 3}
    keep = fl.Checkpoints(tmp_path / "kept", every=1)
    fl.train(task, method, checkpoints=keep, **part)
    resumed = fl.train(task, method, checkpoints=keep, resume=tmp_path / "kept", **how)
    followed = fl.train(task, method, resume=fl.train(task, method, **part), **how)
    for run in (resumed, followed):
        assert torch.equal(run.x, whole.x)
        assert torch.equal(run.average.x, whole.average.x)
        assert fl.runs.first_difference(run.history, whole.history) is None
        assert run.ledger.measured == whole.ledger.measured
        assert run.counters.measured == whole.counters.measured
        assert [e.measure for e in run.ledger.exchanges] == [
            e.measure for e in whole.ledger.exchanges
        ]
    with pytest.raises(fl.FairleadError, match="average"):
        fl.train(task, method, resume=tmp_path / "kept", **{**how, "average": 0.2})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 3, "eval_every": 2}, "a multiple of eval_every, 2"),
        ({"every": 0}, "every is 0"),
        ({"average": 1.0}, "average is 1.0"),
        ({"average": "mean"}, "average is 'mean'"),
        ({"measures": ["drift"]}, "pass objects such as"),
        ({"measures": [fl.measure.Alpha(), fl.measure.Alpha()]}, "alpha is given twice"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(fl.FairleadError, match=message):
        fl.train(toy(), fl.FedAvg(lr=0.1), rounds=4, steps=2, **settings)


def test_a_finished_run_is_measured_where_it_ended() -> None:
    how: dict[str, Any] = {"steps": 3, "batch_size": 4}
    run = fl.train(uneven(), fl.Scaffold(lr=0.1), rounds=3, measures=PROBES[:1], **how)
    found = fl.measure.take(run, PROBES[0])
    assert found.value == pytest.approx(run.history.last("dissimilarity"), rel=1e-9)
    assert found.where == "round 3"
    assert "dissimilarity at round 3, 5 clients" in str(found)
    with pytest.raises(fl.FairleadError, match="its own method"):
        fl.measure.take(run, PROBES[0], method=fl.FedAvg(lr=0.1))
