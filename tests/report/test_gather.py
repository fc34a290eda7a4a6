"""What a report is made of, from folders of runs to the page."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from programs import LIMIT, ended, wait_until
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import app
from fairlead.report.gather import gather
from fairlead.run.folder import Recorder, write_json
from fairlead.track.tracker import best

WORK = {"rounds": 12, "steps": 5, "drift": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two step sizes of one of them, two seeds."""
    place = tmp_path_factory.mktemp("runs")
    task = fl.problems.synthetic_logistic(clients=5, samples=20)
    for method in (fl.FedAvg(lr=0.5), fl.Scaffold(lr=0.5), fl.Scaffold(lr=0.1)):
        for seed in (0, 1):
            name = f"{type(method).__name__}-{method.lr}-{seed}"
            fl.train(task, method, seed=seed, batch_size=5, out=place / name, **WORK)
    return place


def test_groups_are_the_runs_that_differ_by_seed(folder: Path) -> None:
    data = gather([folder])
    assert [g["label"] for g in data["groups"]] == [
        "FedAvg", "Scaffold, lr 0.1", "Scaffold, lr 0.5",
    ]  # fmt: skip
    for group in data["groups"]:
        assert [run["seed"] for run in group["runs"]] == [0, 1]
        for run in group["runs"]:
            stored = fl.runs.read(run["folder"]).history
            for name, values in run["columns"].items():
                found = [np.nan if v is None else v for v in values]
                np.testing.assert_allclose(found, stored[name], rtol=1e-6)
            assert run["status"] == "finished"
    assert data["title"] == "FedAvg, Scaffold on logistic-regression"
    assert {axis["key"] for axis in data["axes"]} >= {"round", "bits", "gradients", "seconds"}
    json.dumps(data, allow_nan=False)


def test_drift_is_the_mean_over_seeds_of_every_layer(folder: Path) -> None:
    data = gather([folder])
    shown = {one["label"]: one for one in data["drift"]}["FedAvg"]
    runs = [fl.runs.read(folder / f"FedAvg-0.5-{seed}").history for seed in (0, 1)]
    assert shown["rounds"] == list(range(1, 13))
    for layer, values in zip(shown["layers"], shown["values"], strict=True):
        expected = np.mean([h[f"drift/{layer}"][1:] for h in runs], axis=0)
        np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert all(not m["key"].startswith("drift/") for m in data["metrics"])


def test_step_sizes_come_from_the_runs_or_from_a_comparison(folder: Path, tmp_path) -> None:
    (found,) = gather([folder])["sensitivity"]
    metric = found["metric"]
    assert (found["label"], found["lr"]) == ("Scaffold", [0.1, 0.5])
    finals = [
        np.mean([fl.runs.read(folder / f"Scaffold-{lr}-{s}").history.last(metric) for s in (0, 1)])
        for lr in (0.1, 0.5)
    ]
    np.testing.assert_allclose(found["final"], finals, rtol=1e-6)
    assert found["best"] == [0.1, 0.5][int(np.argmin(finals))]
    out = tmp_path / "c"
    CliRunner().invoke(app, [
        "compare", "--task", "theorem2", "--methods", "scaffold", "--grid", "0.3,0.1", "--rounds",
        "10", "--steps", "5", "--target", "distance=0.1", "--seeds", "1", "--out", str(out),
    ], catch_exceptions=False)  # fmt: skip
    data = gather([out])
    assert data["target"] == {"metric": "distance", "value": 0.1}
    (found,) = data["sensitivity"]
    for lr, rounds in zip(found["lr"], found["rounds"], strict=True):
        run = fl.train(
            fl.problems.theorem2(), fl.Scaffold(lr=lr), rounds=10, batch_size=0.2, steps=5
        )
        assert rounds == run.rounds_to("distance", 0.1)


def test_a_diverged_run_and_a_split(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x, y = (1e4 * rng.normal(size=(30, 4))).astype("float32"), rng.integers(0, 3, 30)
    task = fl.Task(fl.models.mlp(4, 3), "cross_entropy", (x, y), [range(10), range(10, 30)])
    fl.train(task, fl.FedAvg(lr=1e38), rounds=9, steps=5, out=tmp_path / "a")
    data = gather([tmp_path])
    assert data["groups"][0]["runs"][0]["status"] == "diverged"
    assert any("diverged" in note for note in data["notes"])
    (split,) = data["splits"]
    assert split["counts"] == task.split.table(y).tolist()
    assert split["classes"] == ["0", "1", "2"]
    json.dumps(data, allow_nan=False)


def _digits_like(parts, folder: Path, settings: dict | None = None, seed: int = 0) -> None:
    x, y = np.eye(4, dtype="float32")[np.arange(40) % 4], np.arange(40) % 4
    task = fl.Task(fl.models.mlp(4, 4), "cross_entropy", (x, y), parts)
    out = Recorder(folder, more={"settings": settings} if settings else {})
    fl.train(task, fl.FedAvg(lr=0.5), rounds=2, steps=2, seed=seed, out=out)


def test_runs_on_other_splits_are_no_seeds_of_each_other(tmp_path) -> None:
    even, sorted_ = [range(20), range(20, 40)], [range(0, 40, 2), range(1, 40, 2)]
    _digits_like(even, tmp_path / "a", {"split": "iid", "split_value": None})
    _digits_like(sorted_, tmp_path / "b", {"split": "dirichlet", "split_value": 0.1})
    assert [g["label"] for g in gather([tmp_path])["groups"]] == [
        "FedAvg, split iid", "FedAvg, split dirichlet, split value 0.1",
    ]  # fmt: skip
    _digits_like(even, tmp_path / "python" / "a")
    _digits_like(sorted_, tmp_path / "python" / "b")
    assert len(gather([tmp_path / "python"])["groups"]) == 2
    _digits_like(even, tmp_path / "drawn" / "a", seed=0)
    _digits_like(sorted_, tmp_path / "drawn" / "b", seed=1)  # a split that comes with its seed
    assert len(gather([tmp_path / "drawn"])["groups"]) == 1


def test_step_sizes_of_other_tasks_are_not_compared(tmp_path) -> None:
    for clients, lr in ((4, 0.1), (5, 0.2)):
        task = fl.problems.random_quadratics(clients=clients)
        fl.train(task, fl.FedAvg(lr=lr), rounds=2, out=tmp_path / str(lr))
    assert gather([tmp_path])["sensitivity"] == []


def test_what_cannot_be_read_is_noted_and_does_not_hide_the_rest(folder: Path, tmp_path) -> None:
    for name in ("FedAvg-0.5-0", "Scaffold-0.5-0"):
        shutil.copytree(folder / name, tmp_path / name)
    (tmp_path / "FedAvg-0.5-0" / "history.sqlite").write_bytes(b"garbage" * 99)
    (tmp_path / "tuning.json").write_text('{"of": "another program"}')
    data = gather([tmp_path])
    assert [g["label"] for g in data["groups"]] == ["Scaffold"]
    assert any("cannot be read" in note for note in data["notes"])
    with pytest.raises(fl.FairleadError, match="cannot be read"):
        gather([tmp_path / "FedAvg-0.5-0"])


def test_a_tuning_without_runs_has_a_page(tmp_path) -> None:
    task = fl.problems.random_quadratics(gradient=10.0)
    fl.tune(task, fl.FedAvg(lr=1.0), rounds=5, lr=[1, 0.3]).write(tmp_path)
    data = gather([tmp_path])
    assert data["title"] == "Step sizes of FedAvg"
    assert [one["lr"] for one in data["sensitivity"]] == [[0.3, 1.0]]


def test_the_figure_of_mixed_tasks_and_of_nothing(tmp_path) -> None:
    _digits_like([range(40)], tmp_path / "a")
    words = ["report", str(tmp_path), "--figure", "svg"]
    quadratics = fl.problems.random_quadratics(clients=3)
    fl.train(quadratics, fl.FedAvg(lr=0.1), rounds=2, objective=False, out=tmp_path / "b")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "b")
    task = fl.Task(fl.models.mlp(2, 1), "squared", (np.ones((4, 2)), np.ones(4)), [range(4)])
    fl.train(task, fl.FedAvg(lr=0.1), rounds=2, objective=False, out=tmp_path / "c")
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, "nothing to draw" in result.output) == (2, True)


def test_the_command_writes_the_page_and_the_figure(folder: Path, tmp_path) -> None:
    page = tmp_path / "deep" / "page.html"
    words = ["report", str(folder), "--out", str(page), "--title", "A <b> & c", "--figure", "svg"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    text = page.read_text(encoding="utf-8")
    assert "<title>A &lt;b&gt; &amp; c" in text
    assert page.with_suffix(".svg").read_text(encoding="utf-8").count("<svg") == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    result = CliRunner().invoke(app, ["report", str(empty)])
    assert (result.exit_code, "there is no run in" in result.output) == (2, True)
    result = CliRunner().invoke(app, ["report", str(folder), "--figure", "gif"])
    assert result.exit_code == 2
    assert not (folder / "report.html").exists()


def test_watching_a_run_that_goes_on(tmp_path) -> None:
    place = tmp_path / "run"
    task = fl.problems.theorem2(gradient=10)
    fl.train(task, fl.FedAvg(lr=0.1), rounds=3, steps=2, out=place)
    words = [sys.executable, "-m", "fairlead", "watch", str(tmp_path), "--port", "0"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )
    with ended([server]):
        assert server.stdout is not None
        line = server.stdout.readline()
        url = next(word for word in line.split() if word.startswith("http"))

        def last() -> int:
            with urllib.request.urlopen(f"{url.rstrip('/')}/data.json", timeout=LIMIT) as answer:
                return json.load(answer)["groups"][0]["runs"][0]["columns"]["round"][-1]

        assert last() == 3
        fl.train(task, fl.FedAvg(lr=0.1), rounds=7, steps=2, out=place, resume=place)
        wait_until(lambda: last() == 7, "the new rows are shown", server)
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=LIMIT) == 0


def _regression(**settings: Any) -> fl.Task:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    mae = fl.Metric(lambda o, t: (o[:, 0] - t).abs(), better="lower")
    return fl.Task(
        torch.nn.Linear(3, 1), "squared", (x, x.sum(1)), [range(30), range(30, 60)],
        test=(x, x.sum(1)), metrics={"mae": mae}, **settings,
    )  # fmt: skip


def test_directions_come_from_the_runs(tmp_path: Path) -> None:
    task = _regression()
    for lr in (0.1, 0.001):
        fl.train(task, fl.FedAvg(lr=lr), rounds=5, out=tmp_path / str(lr), target={"mae": 1e-9})
    data = gather([tmp_path])
    larger = {one["key"]: one["larger"] for one in data["metrics"]}
    assert larger == {"loss": False, "test_loss": False, "mae": False}
    assert data["target"] == {"metric": "mae", "value": 1e-9}
    (curve,) = data["sensitivity"]
    assert (curve["metric"], curve["larger"], curve["best"]) == ("mae", False, 0.1)
    about = tmp_path / "0.1" / "run.json"
    for folder in ("0.1", "0.001"):  # from before directions were stored
        about = tmp_path / folder / "run.json"
        known = json.loads(about.read_text())
        del known["better"]
        about.write_text(json.dumps(known))
    data = gather([tmp_path])
    larger = {one["key"]: one["larger"] for one in data["metrics"]}
    assert larger == {"loss": False, "test_loss": False, "mae": None}
    assert "mae" not in best(fl.runs.read(tmp_path / "0.1").history)


@pytest.mark.parametrize(
    ("settings", "how", "words"),
    [
        ({}, {"target": {"mae": 0.5}}, "the fewest rounds to mae ≤ 0.5 on the test set"),
        ({}, {}, "the best final mae on the test set"),
        ({"valid": 0.1}, {"target": {"mae": 0.5}},
         "the fewest rounds to valid mae ≤ 0.5 on validation data"),
        ({}, {"target": {"loss": 0.5}}, "the fewest rounds to loss ≤ 0.5"),
    ],
)  # fmt: skip
def test_a_report_says_what_was_tuned_for(tmp_path: Path, settings, how, words) -> None:
    task = _regression(**settings)
    result = fl.compare(task, [fl.FedAvg(lr=1.0)], rounds=5, grid=[0.1, 0.3], **how)
    result.entries["FedAvg"].runs[0].write(tmp_path / "a", {"target": result.goal})
    write_json(tmp_path / "tuning.json", result.tuning())
    data = gather([tmp_path])
    (tuned,) = data["tuned"]
    assert tuned["words"] == words
    assert result.metric in tuned["keys"]
    assert tuned["value"] == next(iter(how.get("target", {"": None}).values()))
    assert any("test set" in note for note in data["notes"]) == words.endswith("test set")
    tuning = fl.tune(task, fl.FedAvg(lr=1.0), rounds=5, lr=[0.1, 0.3], **how)
    write_json(tmp_path / "tuning.json", tuning.to_json())
    assert gather([tmp_path])["tuned"] == [tuned]


def test_clients_and_colours_come_from_the_runs(tmp_path: Path) -> None:
    task = fl.tasks.digits(clients=5)
    for method in (fl.Scaffold(lr=0.5), fl.FedAvg(lr=0.5)):
        for seed in (0, 1):
            folder = tmp_path / f"{type(method).__name__}-{seed}"
            fl.train(
                task, method, rounds=2, seed=seed, out=folder, per_client=fl.PerClient(steps=1)
            )
    data = gather([tmp_path])
    assert {g["label"]: g["look"] for g in data["groups"]} == {"FedAvg": 1, "Scaffold": 3}
    keys = [metric["key"] for metric in data["metrics"]]
    assert "client_accuracy_worst" in keys
    assert not any("_bin/" in key or key.endswith(("_low", "_high")) for key in keys)
    found = {one["label"]: one for one in data["clients"]}["FedAvg"]
    assert (found["count"], found["seeds"], len(found["samples"])) == (5, 2, 5)
    stored = [fl.runs.read(tmp_path / f"FedAvg-{seed}").clients for seed in (0, 1)]
    shown = {metric["key"]: metric for metric in found["metrics"]}
    mean = (stored[0]["personal_accuracy"] + stored[1]["personal_accuracy"]) / 2
    np.testing.assert_allclose(shown["personal_accuracy"]["values"], mean, rtol=1e-6)
    assert shown["personal_accuracy"]["larger"]
    assert not shown["client_test_loss"]["larger"]


def test_measures_are_shown_with_how_to_read_them(tmp_path) -> None:
    task = fl.tasks.digits(clients=3, model="mlp:8")
    probes = [fl.measure.CKA(samples=16), fl.measure.Dissimilarity(samples=16)]
    how: Any = {"rounds": 4, "epochs": 1, "batch_size": 50, "measures": probes, "every": 2}
    fl.train(task, fl.FedAvg(lr=0.1), drift=True, out=tmp_path / "a", **how)
    data = gather([tmp_path])
    named = {one["key"]: one["reading"] for one in data["metrics"]}
    assert "what FedAvg's bounds suffer from" in named["dissimilarity"]
    assert named["loss"] == ""
    assert not any(name.startswith(("cka/", "drift/")) for name in named)
    drift, cka = data["drift"]
    assert (drift["measure"], cka["measure"]) == ("drift", "cka")
    assert cka["rounds"] == [0, 2, 4]
    assert cka["layers"] == ["1", "3"]
    assert all(0 <= value <= 1.000001 for row in cka["values"] for value in row)


def test_every_reading_is_of_a_column_that_some_measure_has() -> None:
    from fairlead.report.readings import READINGS

    known = {*fl.measure.PROBES, "drift", "average_loss"}
    assert {name.partition("/")[0] for name in READINGS} <= known
    assert all(text.endswith(".") for text in READINGS.values())
