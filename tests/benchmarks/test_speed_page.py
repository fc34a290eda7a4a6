"""docs/speed.md is made from stored measurements, which the scripts write; no time is asserted."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small_bench import TINY, small_report

import busy_core
import fairlead as fl
import five_methods
import gpu_rounds
import many
import page
import start_up
from bench import stored
from bench.workloads import WORKLOADS
from fairlead.study.reproduce.case import Result

TIME = re.compile(r"\d[\d.,]* ?(ms|µs|s|seconds|hours)\b")


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Measurements go to a folder of the test's own."""
    folder = tmp_path / "benchmarks" / "results"
    for module in (stored, busy_core, gpu_rounds):
        monkeypatch.setattr(module, "RESULTS", folder)
    for module in (busy_core, gpu_rounds, many):
        monkeypatch.setattr(module, "keep", partial(stored.keep, folder=folder))
    return folder


def test_the_committed_page_is_what_the_script_makes() -> None:
    assert page.PAGE.read_text() == page.page(), "run python benchmarks/page.py"


def test_no_time_is_typed() -> None:
    text = page.TEMPLATE.read_text()
    assert not TIME.findall(text)
    placed = [name for name in re.findall(r"{{(\w+)}}", text) if name != "goals"]
    assert placed == ["workloads", *page.SECTIONS]


def test_without_measurements_the_page_names_commands(tmp_path: Path) -> None:
    text = page.page(tmp_path)
    assert text.count("No measurement is kept") == len(page.SECTIONS)
    assert not TIME.findall(text)
    for work in WORKLOADS.values():
        assert f"| {work.name} | {work.label}" in text


def test_rounds_and_curves(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = small_report()
    monkeypatch.setattr(
        sys, "argv", ["/some/where/bench/__main__.py", "W1", "--store", "cpu_rounds"]
    )
    stored.keep("cpu_rounds", {**report, "scaling": []}, folder=kept)
    stored.keep("scaling", {**report, "workloads": []}, folder=kept)
    text = page.page(kept)
    assert "`python -m bench W1 --store cpu_rounds` on 20" in text
    assert "| W1 softmax | 50 | 100 | 2.00 × | 120 | 200 (2.00 ×) | 300 (3.00 ×) | – |" in text
    assert "| cohort 10 | 1 | 2 | – | 4 | 2.00 × |" in text
    assert "](scaling.png)" in text
    assert "/some/where" not in text
    assert "load" not in re.findall(r"`python -m bench.*", text)[-1]
    busy = json.loads((kept / "cpu_rounds.json").read_text())
    busy["results"]["machine"]["load"] = 1.7
    (kept / "cpu_rounds.json").write_text(json.dumps(busy))
    assert "load 1.7 from other work" in page.page(kept)


def test_long_rounds(kept: Path) -> None:
    found = {"toy": [{"steps": 3000, "first_round": 2.5, "step": 3.3e-5, "engine": ""}]}
    stored.keep("long_rounds", found, folder=kept)
    assert "| toy | 3,000 | 0.033 ms | 2.5 s |" in page.page(kept)


def test_kernels_and_start_up(kept: Path) -> None:
    row = {
        "name": "W5", "title": "VGG", "precision": "bfloat16", "flops": 8e12, "busy": 0.033, "kernels": 628.0,
        "kinds": {"convolutions": 0.021, "compiled": 0.007},
    }  # fmt: skip
    rates = {"tf32": 4e14, "bfloat16": 8e14}
    found = {"rates": rates, "bandwidth": 4e12, "rounds": [row]}
    stored.keep("gpu_kernels", found, folder=kept)
    start = {"name": "W1", "title": "softmax", "compile": "true", "wall": 12.34, "caches": False,
             "places": {"imports": 8.0, "data": 0.01}}  # fmt: skip
    stored.keep("start_up", [start], folder=kept)
    text = page.page(kept)
    assert "| W5 VGG | 33 | 628 | 21 |  |  |  | 7 |  |  | 10 |" in text
    assert "| W1 softmax | true | empty | 12.3 | imports 8.0 |" in text


def test_dense_layers(kept: Path) -> None:
    rows = [
        {"layer": "W1", "part": part, "torch": 0.02, "ours": ours, "off": 0.0, "bytes": 1}
        for part, ours in (("forward", 0.01), ("input", 0.005), ("weight", 0.03))
    ]
    stored.keep("dense", rows, folder=kept)
    assert "| W1 | 20.0, 10.0 | 20.0, 5.0 | 20.0, 30.0 |" in page.page(kept)


def test_what_was_wanted_beside_what_was_measured(kept: Path) -> None:
    assert "Nothing has been measured." in page.page(kept)
    how = {"title": "", "method": "FedAvg", "precision": "bfloat16", "compile": "true"}
    runs = {
        "rounds": 1500,
        "eval_every": 10,
        "test": 10_000,
        "first_rounds": 4.0,
        "in_rounds": 12.0,
    }
    rows = [
        {"name": "W2", "round": 0.0015, "windows": [0.0015], "start_up": 5.0, **how},
        {"name": "W6run", "wall": 18.0, **runs, **how},
    ]
    stored.keep("gpu_rounds", rows, folder=kept)
    kernels = {"name": "W2", "title": "", "precision": "bfloat16", "flops": 1e12, "busy": 0.0012, "kernels": 9.0, "kinds": {}}  # fmt: skip
    rates = {"tf32": 4e14, "bfloat16": 8e14}
    found = {"rates": rates, "bandwidth": 4e12, "rounds": [kernels]}
    stored.keep("gpu_kernels", found, folder=kept)
    text = page.page(kept)
    assert "| W2 | 1 ms | 1.5 ms | 1.50 × | 1.2 ms | " in text
    assert "| W6run | 12 s | 18 s | 1.50 × |  | " in text
    assert "| W1 | 0.2 ms" not in text


def test_whole_runs_to_an_accuracy(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(30, 5), torch.randint(3, (30,))
    split = [range(10), range(10, 20), range(20, 30)]

    def task(device: str) -> fl.Task:
        net = torch.nn.Linear(5, 3)
        return fl.Task(net, "cross_entropy", (x, y), split, test=(x, y), device=device)

    asked = five_methods.cases("cpu")
    assert [type(case.method).__name__ for case in asked.values()] == [
        "FedAvg", "FedAvg", "Scaffold", "FedPVR", "FedProx",
    ]  # fmt: skip
    case = replace(asked["FedAvg"], task=task, settings={"rounds": 4, "steps": 2})
    monkeypatch.setattr(five_methods, "cases", lambda device: {"FedAvg": case})
    monkeypatch.setattr(five_methods, "keep", partial(stored.keep, folder=kept))
    file = kept / "cases.jsonl"
    command = ["five_methods.py", "--device", "cpu", "--results", str(file)]
    for more in ([], [], ["--rounds", "3"]):  # a finished case is stored once, and a trial is none
        monkeypatch.setattr(sys, "argv", [*command, *more])
        five_methods.main()
    (entry,) = stored.read("five_methods", kept)
    (row,) = entry["results"]
    assert (row["rounds"], row["stopped"]) == (3, "rounds")
    assert 0 < row["first_round"] < row["wall"]
    assert f"| FedAvg | {row['accuracy']:.1%} | {row['rounds']} |" in page.page(kept)
    (line,) = file.read_text().splitlines()
    assert Result.read(line).end["round"] == 4


def test_stored_commands_name_no_places(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["W1", "--out", "/some/where", "--results=/else/where", "--results", "here", "--busy"]
    monkeypatch.setattr(sys, "argv", ["benchmarks/many.py", *words])
    stored.keep("many_runs", [], folder=kept)
    (entry,) = stored.read("many_runs", kept)
    assert entry["command"] == "benchmarks/many.py W1 --busy"


def test_where_a_start_goes() -> None:
    found = start_up.started("W1", "cpu", "false")
    assert found["wall"] >= sum(found["places"].values()) > 0
    assert set(found["places"]) <= {*start_up.PLACES, "other"}


def test_several_runs_at_once(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "chosen", lambda *_: [TINY])
    monkeypatch.setattr(many, "KINDS", {"T": (2, 2, "tf32")})
    monkeypatch.setattr(many, "WINDOW", {"cpu": {"T": 1}})
    monkeypatch.setattr(sys, "argv", ["many.py", "T"])
    many.main()
    (entry,) = stored.read("many_runs", kept)
    for row in entry["results"]:
        assert row["runs"] == 4
        assert min(row["one"], row["many"]) > 0
        assert row["difference"] < 1e-5
    assert "| T tiny, 4 × 3 × 5 | SCAFFOLD | 4 |" in page.page(kept)


def test_rounds_of_a_device(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run = replace(TINY, name="Trun", population=9, rounds=4, eval_every=2, test=6)
    monkeypatch.setattr(gpu_rounds, "chosen", lambda *_: [TINY, run])
    words = "--device cpu --window 2 --windows 4 --precision float32 --compile false --name x"
    monkeypatch.setattr(sys, "argv", ["gpu_rounds.py", *words.split()])
    gpu_rounds.main()
    assert "written: benchmarks/results/gpu_rounds-x.json" in capsys.readouterr().out
    (entry,) = stored.read("gpu_rounds", kept)
    rounds, whole = entry["results"]
    assert (rounds["method"], rounds["rounds"], len(rounds["windows"])) == ("SCAFFOLD", 8, 2)
    assert 0 < min(rounds["windows"]) <= rounds["round"] <= max(rounds["windows"])
    assert (whole["rounds"], whole["test"]) == (4, 6)
    assert 0 < whole["first_rounds"] < whole["in_rounds"] < whole["wall"]
    text = page.page(kept)
    assert "| T tiny, 4 × 3 × 5 | SCAFFOLD, float32, compile false |" in text
    assert "every 2 rounds; the first 2 rounds took" in text
    monkeypatch.setattr(sys, "argv", ["gpu_rounds.py", "--device", "cpu", "--windows", "2"])
    with pytest.raises(SystemExit, match="windows is 2: take at least 3"):
        gpu_rounds.main()


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forks")
def test_a_busy_core(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []
    rule = busy_core.turns.chunks

    def noted(*given: Any) -> Any:
        found = rule(*given)
        cut.append(len(found))
        return found

    monkeypatch.setattr(busy_core.turns, "chunks", noted)
    row = busy_core.measured(TINY, 1, 0.0, core=0)
    assert set(cut) == {4}  # of four clients, so that the second half is taken by whoever is free
    assert busy_core.turns.chunks is noted
    assert {s: sorted(t) for s, t in row["turns"].items()} == {
        "idle": ["fixed shares", "turns"], "one core busy": ["fixed shares", "turns"],
    }  # fmt: skip
    stored.keep("busy_core", [row], folder=kept)
    text = page.page(kept)
    assert "| T tiny, 4 × 3 × 5 | idle | " in text
    assert "| T tiny, 4 × 3 × 5 | one core busy | " in text
