"""Comparisons in a folder: written as they go, continued to the same tables, never mixed up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import LIMIT, PATHS, ended

import fairlead as fl
from fairlead.progress import Progress
from fairlead.report.gather import gather
from fairlead.run.folder import Recorder

GRID = [1e30, 0.3, 0.1]
WORK: dict[str, Any] = {"rounds": 8, "steps": 3, "seeds": 2, "grid": GRID, "cohort": 3}
METHODS = {"FedAvg": fl.FedAvg(lr=1.0), "a/b": fl.Scaffold(lr=1.0)}
RESULTS = ("table.md", "table.csv", "tuning.json")


def _task() -> fl.Task:
    return fl.problems.random_quadratics(clients=4, dim=3, mu=0.5, delta=0.3, gradient=5.0)


def _compare(folder: Path | None, **change: Any) -> fl.Comparison:
    return fl.compare(_task(), METHODS, out=folder, **{**WORK, **change})


class Power:
    """Counts the rows that are written, and fails when there are too many; much time passes per row, so
    that checkpoints are due."""

    def __init__(self, monkeypatch) -> None:
        self.rows, self.limit, now = 0, 10**9, [1000.0]
        write = Recorder.row

        def row(recorder: Recorder, row: Any) -> None:
            write(recorder, row)
            self.rows, now[0] = self.rows + 1, now[0] + 100.0
            if self.rows > self.limit:
                raise RuntimeError("the power failed")

        monkeypatch.setattr(Recorder, "row", row)
        monkeypatch.setattr("fairlead.run.checkpoint.time.monotonic", lambda: now[0])


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("target", [None, {"distance": 1e-2}])
def test_a_broken_comparison_ends_in_the_same_tables(
    together: bool, target: Any, tmp_path, monkeypatch
) -> None:
    power, whole, broken = Power(monkeypatch), tmp_path / "whole", tmp_path / "broken"
    change = {"together": together, "target": target}
    result = _compare(whole, **change)
    plain = _compare(None, **change)
    assert result.to_markdown(seconds=False) == plain.to_markdown(seconds=False)
    rows, power.rows = power.rows, 0
    for part in (0.1, 0.5):
        power.rows, power.limit = 0, int(part * rows) + 1
        with pytest.raises(RuntimeError, match="power"):
            _compare(broken, **change)
        assert not (broken / "table.md").exists()
    power.rows, power.limit = 0, 10**9
    again = _compare(broken, **change)
    assert power.rows < 0.8 * rows  # what there was is not done again
    for name in RESULTS:
        assert (whole / name).read_bytes() == (broken / name).read_bytes()
    names = [{str(p.relative_to(f)) for p in f.rglob("*.sqlite")} for f in (whole, broken)]
    assert names[0] == names[1]
    power.rows = 0
    third = _compare(broken, **change)
    assert power.rows == 0
    for label, entry in result.entries.items():
        for other in (again.entries[label], third.entries[label]):
            for one, two in zip(entry.runs, other.runs, strict=True):
                assert (one.x == two.x).all()
                assert fl.runs.first_difference(one.history, two.history) is None
                assert one.stopped == two.stopped
    assert third.to_csv() == again.to_csv()  # with the times


def test_the_files_of_a_comparison(tmp_path) -> None:
    result = _compare(tmp_path, together=True)
    found = {str(run.folder.relative_to(tmp_path)) for run in fl.runs.find(tmp_path)}
    lrs = {label: entry.algorithm.lr for label, entry in result.entries.items()}
    expected = {f"{word}-{seed}" for word in ("FedAvg", "a-b") for seed in (0, 1)}
    for label, word in (("FedAvg", "FedAvg"), ("a/b", "a-b")):
        expected |= {
            f"trials/{word}-{lr!r}-{seed}" for lr in GRID if lr != lrs[label] for seed in (0, 1)
        }
    assert found == expected
    chosen = fl.runs.read(tmp_path / "a-b-1")
    assert (chosen.label, chosen.lr, chosen.seed, chosen.status) == ("a/b", lrs["a/b"], 1, "rounds")
    assert len(list((tmp_path / "a-b-1" / "checkpoints").glob("round-*"))) == 1
    assert not list((tmp_path / "trials").rglob("*.safetensors"))
    assert "seconds" not in (tmp_path / "table.csv").read_text()
    kept = json.loads((tmp_path / "comparison.json").read_text())
    assert (kept["rounds"], kept["grid"], kept["together"]) == (8, GRID, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 9}, "rounds was 8, now it is 9"),
        ({"grid": [0.3, 0.1]}, "grid was"),
        ({"seeds": [0, 2]}, "seeds was"),
        ({"steps": 4}, r"settings was steps = 3, now it is steps = 4"),
        ({"target": {"distance": 0.1}}, "target was None, now it is 0.1"),
        ({"engine": "loop"}, "settings was"),
    ],
)
def test_other_settings_are_refused(change: dict, message: str, tmp_path) -> None:
    small = {"rounds": 8, "seeds": 1, "grid": [0.3]}
    _compare(tmp_path, **small)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(
        fl.FairleadError, match=f"holds a comparison with other settings: {message}"
    ):
        _compare(tmp_path, **{**small, **change})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_overwriting_starts_anew_and_removes_nothing_else(tmp_path) -> None:
    fl.train(_task(), fl.FedAvg(lr=0.1), rounds=2, out=tmp_path / "mine")
    with pytest.raises(fl.FairleadError, match="already holds 1 run"):
        _compare(tmp_path)
    _compare(tmp_path, overwrite=True)
    fl.compare(_task(), [fl.FedSGD(lr=0.1)], rounds=2, out=tmp_path, overwrite=True)
    found = {str(run.folder.relative_to(tmp_path)) for run in fl.runs.find(tmp_path)}
    assert found == {"mine", "FedSGD-0"}
    assert not (tmp_path / "trials").exists()
    for wrong in ({"resume": "auto"}, {"checkpoints": tmp_path}):
        with pytest.raises(fl.FairleadError, match="leave out"):
            _compare(tmp_path, **wrong)
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(fl.FairleadError, match="cannot be read"):
        _compare(tmp_path)


@pytest.mark.parametrize("together", [True, False])
def test_it_is_seen_while_it_runs(together: bool, tmp_path, monkeypatch) -> None:
    power = Power(monkeypatch)
    power.limit = 20
    with pytest.raises(RuntimeError, match="power"):
        _compare(tmp_path, together=together)
    groups = gather([tmp_path])["groups"]
    assert {group["method"] for group in groups} == {"FedAvg"}
    assert {group["lr"] for group in groups} <= set(GRID)
    power.limit = 10**9
    result = _compare(tmp_path, together=together)
    page = gather([tmp_path])
    assert [group["label"] for group in page["groups"]] == ["FedAvg", "a/b"]
    assert [len(group["runs"]) for group in page["groups"]] == [2, 2]
    assert [curve["best"] for curve in page["sensitivity"]] == [
        entry.algorithm.lr for entry in result.entries.values()
    ]


@pytest.mark.parametrize("together", [True, False])
def test_progress_counts_the_rounds_of_all_runs(together: bool, tmp_path, monkeypatch) -> None:
    seen, totals = [], []
    begin = Progress.__init__

    def update(bar: Progress, done: int, row: Any, label: str | None = None) -> None:
        if bar.label == "comparison":
            seen.append(done)

    monkeypatch.setattr(Progress, "update", update)

    def start(bar: Progress, show: bool, total: int, label: str) -> None:
        totals.append((label, total))
        begin(bar, show, total, label)

    monkeypatch.setattr(Progress, "__init__", start)
    for _ in range(2):
        seen.clear()
        _compare(tmp_path, together=together, target={"distance": 1e-2})
        total = dict(totals)["comparison"]
        assert total == 2 * 2 * 8 * (3 if together else 4)
        assert seen == sorted(seen)
        assert seen[-1] == total


PROGRAM = """
import sys
from test_comparison_folder import _compare
from pathlib import Path
import fairlead as fl
from fairlead.run.folder import Recorder
write, count = Recorder.row, [0]
def row(self, row):
    write(self, row)
    count[0] += 1
    if count[0] == int(sys.argv[2]):
        print("here", flush=True)
        sys.stdin.readline()  # until it is killed, or may go on
Recorder.row = row
try:
    _compare(Path(sys.argv[1]), together=sys.argv[3] == "True")
except fl.FairleadError as error:
    print(error)
"""


def _process(folder: Path, rows: int, together: bool) -> subprocess.Popen[str]:
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder), str(rows), str(together)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([PATHS, str(Path(__file__).parent)])
    return subprocess.Popen(
        words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("together", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_killed_comparison_ends_in_the_same_tables(together: bool, tmp_path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    _compare(whole, together=together)
    for rows in (30, 70):
        process = _process(killed, rows, together)
        with ended([process]):
            assert process.stdout.readline() == "here\n"
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL
    _compare(killed, together=together)
    for name in RESULTS:
        assert (whole / name).read_bytes() == (killed / name).read_bytes()


def test_a_comparison_that_is_interrupted_says_how_to_go_on(tmp_path) -> None:
    process = _process(tmp_path, 20, False)
    with ended([process]):
        assert process.stdout.readline() == "here\n"
        with pytest.raises(fl.FairleadError, match="another process is writing"):
            _compare(tmp_path, together=False)
        process.send_signal(signal.SIGTERM)
        output = process.communicate("\n", timeout=LIMIT)[0]
    assert process.returncode == 0
    assert "give it again with the same folder" in output
    assert any(run.status == "interrupted" for run in fl.runs.find(tmp_path))
    _compare(tmp_path, together=False)
    assert not any(run.status == "interrupted" for run in fl.runs.find(tmp_path))
