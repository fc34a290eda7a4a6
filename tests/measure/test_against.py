"""A theorem's bound beside the run that it is about, and what is kept of measures in a run's folder."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fairlead as fl
from fairlead.measure import Against, against, record
from fairlead.run.measured_file import LAYERS, MEASURED, PAIRED, pair_table, read_measured
from fairlead.theory import Settings, fedavg, fedpvr, scaffold


def _task(**settings: Any) -> fl.Task:
    return fl.problems.random_quadratics(clients=6, dim=4, mu=0.2, beta=1.0, delta=0.1, **settings)


@pytest.mark.parametrize(
    ("method", "theorem"),
    [
        (fl.FedAvg(lr=0.005), fedavg),
        (fl.Scaffold(lr=0.0015, server_lr=1.5), scaffold),
        (fl.FedPVR(lr=0.001, layers=torch.tensor([1.0, 0.0, 1.0, 0.0])), fedpvr),
    ],
)
def test_bounds_are_the_theorems_at_the_runs_own_settings(method: Any, theorem: Any) -> None:
    task = _task()
    run = fl.train(task, method, rounds=30, steps=4, cohort=6)
    found = against(run)
    assert found.rounds.tolist() == list(range(1, 31))
    part = getattr(run.algorithm, "part", None)
    known = task.constants if part is None else fl.measure.known(task, part=part)
    assert known is not None
    up = getattr(method, "server_lr", 1.0)
    settings = Settings(6, 4, 6, lr=method.lr, server_lr=up)
    expected = [theorem(replace(known, sigma=0.0), settings, r) for r in range(1, 31)]
    np.testing.assert_allclose(found.bound, [b.value for b in expected], rtol=1e-9)
    gap = run.history["gap"]
    means = [b.average(gap[: r + 1]) for r, b in enumerate(expected, start=1)]
    np.testing.assert_allclose(found.mean, means, rtol=1e-9)
    np.testing.assert_allclose(found.error, gap[1:])
    assert found.broken == ()
    assert 0 < found.share <= 1
    assert bool(found.notes) == (part is not None)


def test_conditions_that_break_are_named_and_long_runs_are_thinned() -> None:
    run = fl.train(_task(), fl.FedAvg(lr=0.3), rounds=450, steps=2)
    found = against(run)
    assert len(found.rounds) == 400
    assert (found.rounds[0], found.rounds[-1]) == (1, 450)
    (broken,) = found.broken
    assert broken.startswith("η̃ is at most 1/(8(1+B²)β)")
    assert broken in found.conditions
    np.testing.assert_allclose(found.error, run.history["gap"][found.rounds])


def test_the_noise_of_a_bound_is_that_of_the_runs_batches() -> None:
    task = fl.problems.synthetic_logistic(clients=4, samples=20, l2=0.1)
    sigma2, single = fl.measure.noise(task)["sigma2"], fl.measure.known(task)
    by_hand = {}
    for batch, replacement in ((5, False), (5, True), (None, False)):
        how: Any = {"rounds": 3, "steps": 2, "batch_size": batch, "replacement": replacement}
        run = fl.train(task, fl.Scaffold(lr=0.001), **how)
        found = against(run) if batch and not replacement else against(run, single)
        left = 0.0 if batch is None else sigma2 / 5 * (1.0 if replacement else 15 / 19)
        known = replace(single, sigma=math.sqrt(left))
        expected = scaffold(known, Settings(4, 2, lr=0.001), 3)
        assert found.bound[-1] == pytest.approx(expected.value, rel=1e-6)
        by_hand[batch, replacement] = found
    assert "of which this is one" in by_hand[5, True].notes[-1]
    assert by_hand[None, False].notes == ()
    assert "are measured at the starting point" in by_hand[5, False].notes[0]
    noisy = _task(noise=0.1)
    run = fl.train(noisy, fl.Scaffold(lr=0.001), rounds=2, steps=2)
    assert noisy.constants is not None
    known = replace(noisy.constants, sigma=0.1 * 2)  # of four coordinates
    expected = scaffold(known, Settings(6, 2, lr=0.001), 2)
    assert against(run).bound[-1] == pytest.approx(expected.value, rel=1e-9)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (fl.FedProx(lr=0.1, mu=0.1), {}, "no bound here for FedProx"),
        (fl.FedAvg(lr=0.1, momentum=0.5), {}, "momentum is 0.5, of which the theorem"),
        (fl.Scaffold(lr=0.1, warm_start=True), {}, "warm_start is True"),
        (fl.FedAvg(lr=fl.schedules.Exponential(0.1, 0.9)), {}, "constant step sizes"),
        (fl.FedAvg(lr=0.1), {"eval_every": 2}, "eval_every=1"),
        (fl.FedAvg(lr=0.1), {"objective": False}, "the optimum of the task is not known"),
        (fl.FedAvg(lr=0.1), {"steps": [1, 2, 1, 1, 1, 1]}, "equally many steps"),
        (fl.FedAvg(lr=0.1), {"weighting": [1, 2, 1, 1, 1, 1]}, "equal weight"),
    ],
)
def test_what_no_theorem_is_about_is_refused(method: Any, settings: Any, message: str) -> None:
    run = fl.train(_task(), method, **{"rounds": 4, "steps": 2, **settings})
    with pytest.raises(fl.FairleadError, match=message):
        against(run)
    if "eval_every" in settings:
        with pytest.raises(fl.FairleadError, match="no rounds"):
            against(replace(run, rounds=0))


def test_findings_are_kept_in_the_folder_of_their_run(tmp_path: Path) -> None:
    task = fl.tasks.digits(clients=4, model="mlp:6", valid=0.2)
    probes = [fl.measure.CKA(clients=3, samples=16)]
    how: Any = {"rounds": 2, "epochs": 1, "batch_size": 60, "measures": probes}
    run = fl.train(task, fl.FedAvg(lr=0.1), out=tmp_path / "a", **how)
    stored = fl.runs.read(tmp_path / "a")
    table = stored.measured["cka"]
    assert table["where"] == "round 2"
    assert table["layers"] == ["1", "3"]
    for layer, rows in zip(table["layers"], table["values"], strict=True):
        np.testing.assert_allclose(np.diag(rows), 1.0, rtol=1e-5)
        off = np.asarray(rows)[~np.eye(3, dtype=bool)]
        assert off.mean() == pytest.approx(run.history.last(f"cka/{layer}"), rel=1e-5)
    found = fl.measure.conformal(run, kind="aps")
    record(tmp_path / "a", found)
    kept = fl.runs.read(tmp_path / "a").measured
    assert set(kept) == {"cka", "aps"}
    np.testing.assert_allclose(kept["aps"]["coverage"], found.coverage, rtol=1e-5)
    assert np.shape(kept["aps"]["by_client"]) == (len(found.kappas), 4)
    with pytest.raises(fl.FairleadError, match="dissimilarity has no table of clients"):
        record(tmp_path / "a", fl.measure.dissimilarity(run))
    with pytest.raises(fl.FairleadError, match="is not a run folder"):
        record(tmp_path, found)
    run.write(tmp_path / "a", overwrite=True)
    assert fl.runs.read(tmp_path / "a").measured == {}
    record(tmp_path / "a", found)
    fl.runs.remove(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_what_is_kept_is_bounded_and_what_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    many = {f"layer {k}": np.eye(30).tolist() for k in range(40)}

    class Found:
        name, where = "cka", "round 1"
        vectors: dict[str, Any] = {"pairs": many, "clients": list(range(30))}  # noqa: RUF012

    table = pair_table(Found)
    assert table is not None
    assert np.shape(table["values"]) == (LAYERS, PAIRED, PAIRED)
    assert table["layers"][-1] == "layer 39"
    assert table["more"] == "the first 20 of 30 clients and the last 24 of 40 layers"
    for junk in ("", "[1]", '{"a": 1}', "\udc80".encode("utf-8", "surrogatepass"), "[" * 100_000):
        (tmp_path / MEASURED).write_bytes(junk if isinstance(junk, bytes) else junk.encode())
        assert read_measured(tmp_path) == {}
    (tmp_path / MEASURED).write_text(json.dumps({"a": {"b": 1}, "c": 2}))
    assert read_measured(tmp_path) == {"a": {"b": 1}}


def test_a_large_federations_clients_are_cut(tmp_path: Path) -> None:
    run = fl.train(_task(), fl.FedAvg(lr=0.1), rounds=1, out=tmp_path / "a")
    kappas = np.array([0.1, 0.2])
    sets = fl.measure.Coverage(
        "aps", kappas, kappas, kappas, kappas, np.full((2, 900), 0.5), np.ones((2, 10)), 0.9, 10, 10
    )
    record(tmp_path / "a", sets)
    kept = fl.runs.read(tmp_path / "a").measured["aps"]
    assert np.shape(kept["by_client"]) == (2, 500)
    assert kept["more"] == "the first 500 of 900 clients"
    assert isinstance(against(run), Against)
