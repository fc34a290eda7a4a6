"""The data of the report's panels on measures, from folders of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import app
from fairlead.report.gather import gather
from fairlead.run.measured_file import MEASURED

PANELS = ("heterogeneity", "pairs", "bounds", "coverage")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two seeds, measured as they go on, and one of them again at its end."""
    place = tmp_path_factory.mktemp("measured")
    task = fl.tasks.digits(clients=4, model="mlp:6", split="shards", split_value=2, valid=0.2)
    probes = [fl.measure.Dissimilarity(), fl.measure.CKA(samples=16)]
    how: Any = {"rounds": 4, "epochs": 1, "batch_size": 60, "measures": probes, "every": 2}
    for method in (fl.FedAvg(lr=0.1), fl.Scaffold(lr=0.1)):
        for seed in (0, 1):
            out = place / f"{type(method).__name__}-{seed}"
            run = fl.train(task, method, seed=seed, out=out, **how)
            if seed == 1:
                fl.measure.record(out, fl.measure.conformal(run, kind="aps"))
    return place


def test_heterogeneity_is_the_mean_over_seeds_of_lengths(folder: Path) -> None:
    one, other = gather([folder])["heterogeneity"]
    assert (one["label"], other["label"], one["seeds"]) == ("FedAvg", "Scaffold", 2)
    assert one["rounds"] == [0, 2, 4]
    runs = [fl.runs.read(folder / f"FedAvg-{seed}").history for seed in (0, 1)]
    lines = {line["label"]: line["values"] for line in one["lines"]}
    assert list(lines) == ["√(A − b)", "ζ_max", "ζ_pair", "ζ̂ = √A", "‖∇f‖ = √b"]
    for label, name, root in (
        ("√(A − b)", "dissimilarity", True),
        ("ζ_max", "dissimilarity/zeta_max", False),
        ("‖∇f‖ = √b", "dissimilarity/b", True),
    ):
        mean = np.mean([h[name][[0, 2, 4]] for h in runs], axis=0)
        np.testing.assert_allclose(lines[label], np.sqrt(mean) if root else mean, rtol=1e-5)
    A, b = (np.mean([h[f"dissimilarity/{name}"][[0, 2, 4]] for h in runs], axis=0) for name in "Ab")
    assert (one["G"] ** 2 + one["B"] ** 2 * b + 1e-4 >= A).all()
    np.testing.assert_allclose([one["G"], one["B"]], fl.measure.smallest_bounds(A, b), rtol=1e-4)


def test_pairs_and_sets_are_those_of_the_first_seed_that_has_them(folder: Path) -> None:
    data = gather([folder])
    assert [(one["label"], one["seed"]) for one in data["pairs"]] == [
        ("FedAvg", 0),
        ("Scaffold", 0),
    ]
    pairs = data["pairs"][0]
    assert pairs["seeds"] == 2
    assert (pairs["clients"], pairs["layers"]) == ([0, 1, 2, 3], ["1", "3"])
    assert pairs["where"] == "round 4"
    stored = fl.runs.read(folder / "FedAvg-0").measured["cka"]
    assert pairs["values"] == stored["values"]
    assert [(s["label"], s["kind"], s["seed"]) for s in data["coverage"]] == [
        ("FedAvg", "aps", 1), ("Scaffold", "aps", 1),
    ]  # fmt: skip
    sets = data["coverage"][0]
    assert len(sets["kappas"]) == len(sets["size"]) == len(sets["by_client"])
    assert len(sets["by_client"][0]) == 4
    assert data["bounds"] == []
    json.dumps(data, allow_nan=False)


def test_runs_without_measures_have_no_panels(tmp_path: Path) -> None:
    task = fl.problems.random_quadratics(clients=3)
    fl.train(task, fl.FedAvg(lr=0.1), rounds=2, out=tmp_path / "a")
    data = gather([tmp_path])
    assert {name: data[name] for name in PANELS} == {name: [] for name in PANELS}


@pytest.mark.parametrize(
    "entry",
    [
        {"cka": {"clients": [0, 1], "layers": ["a"], "values": [[[1]]], "where": ""}},
        {"cka": {"clients": ["<b>", 1], "layers": ["a"], "values": [[[1, 1], [1, 1]]], "where": ""}},
        {"cka": {"clients": [], "layers": [], "values": [], "where": ""}},
        {"aps": {"kappas": [], "by_client": []}},
        {"aps": {"kappas": [0.1], "coverage": ["x"], "size": [1], "empty": [0], "by_client": [[1]]}},
        {"bound": {"rounds": [1, 2], "bound": [1], "mean": [1], "error": [1], "theorem": "", "of": ""}},
        {"bound": {"rounds": 3}},
    ],
)  # fmt: skip
def test_findings_out_of_shape_are_left_out(tmp_path: Path, entry: dict[str, Any]) -> None:
    fl.train(fl.problems.theorem2(), fl.FedAvg(lr=0.1), rounds=2, out=tmp_path / "a")
    (tmp_path / "a" / MEASURED).write_text(json.dumps(entry))
    data = gather([tmp_path])
    assert {name: data[name] for name in PANELS} == {name: [] for name in PANELS}


def test_the_measure_command_keeps_what_the_report_shows_and_says_where(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    words = [
        "run", "--task", "random-quadratics", "--method", "scaffold", "--lr", "0.002", "--rounds", "6",
        "--steps", "3", "--out", out,
    ]  # fmt: skip
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(app, ["measure", out, "--measures", "bound,curvature"])
    assert result.exit_code == 0, result.output
    assert "shows it under “Bound and measured error”" in " ".join(result.output.split())
    (bound,) = gather([out])["bounds"]
    assert bound["rounds"] == [1, 2, 3, 4, 5, 6]
    assert bound["broken"] == []
    assert all(m <= b for m, b in zip(bound["mean"], bound["bound"], strict=True))
    result = CliRunner().invoke(app, ["measure", out, "--measures", "bound", "--json"])
    (told,) = json.loads(result.stdout)
    assert told["bound"] == pytest.approx(bound["bound"][-1], rel=1e-5)
    result = CliRunner().invoke(app, ["measure", out, "--measures", "curvature"])
    assert "shows it under" not in result.output
    result = CliRunner().invoke(
        app, ["measure", "--task", "random-quadratics", "--measures", "bound"]
    )
    assert (result.exit_code, "give its folder" in result.output) == (2, True)
