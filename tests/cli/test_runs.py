"""`fairlead runs`, as a user types it."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli.main import runs_app


def _run(*words: object, code: int = 0, answer: str | None = None) -> str:
    runner = CliRunner(env={"COLUMNS": "220", "NO_COLOR": "1"})
    result = runner.invoke(runs_app, [str(word) for word in words], input=answer)
    assert result.exit_code == code, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def _train(folder: Path, rounds: int = 4, method: object = None, **more) -> fl.Run:
    task = fl.problems.theorem2(gradient=10)
    return fl.train(task, method or fl.Scaffold(lr=0.1), rounds=rounds, steps=5, out=folder, **more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("trained")
    _train(place / "a")
    _train(place / "b", 6, fl.FedAvg(lr=0.02), seed=3)
    _train(place / "deep" / "c", 9, fl.FedAvg(lr=1e200))
    return place


@pytest.fixture
def three(trained: Path, tmp_path) -> Path:
    """Three runs, to do anything with."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_list_names_runs_and_how_they_ended(three: Path) -> None:
    text = _run("list", three)
    lines = [line for line in text.splitlines() if str(three) in line]
    assert [line.split()[1] for line in lines] == ["Scaffold", "FedAvg", "FedAvg"]
    assert "4/4" in lines[0]
    assert " rounds " in lines[0]
    assert "distance" in lines[0]
    assert "kB" in lines[0]
    assert " diverged " in lines[2]
    assert "there are no runs" in _run("list", three / "deep" / "c" / "checkpoints")


def test_list_sorts_and_writes_for_programs(three: Path) -> None:
    found = json.loads(_run("list", three, "--json", "--sort", "seed"))
    assert [row["seed"] for row in found] == [0, 0, 3]
    assert found[2]["lr"] == 0.02
    assert found[2]["rounds"] == found[2]["asked"] == 6
    rows = list(csv.DictReader(io.StringIO(_run("list", three, "--csv", "--sort", "lr"))))
    assert [float(row["lr"]) for row in rows] == [0.02, 0.1, 1e200]
    assert "did you mean 'status'" in _run("list", three, "--sort", "statsu", code=2)
    assert "there is no folder" in _run("list", three / "no", code=2)


def test_list_looks_here_and_passes_over_what_it_cannot_read(three: Path, monkeypatch) -> None:
    monkeypatch.chdir(three)
    (three / "a" / "run.json").write_text("{")
    (three / "b" / "history.sqlite").write_bytes(b"garbage" * 100)
    text = _run("list")
    assert text.count("skipped") == 2
    assert "deep/c" in text


def test_list_sees_a_run_that_is_going_on(tmp_path) -> None:
    told = []

    class Looks(fl.Callback):
        def row(self, row) -> None:
            if row["round"] == 2:
                told.append(_run("list", tmp_path))
                told.append(_run("rm", tmp_path / "r", "--yes", code=2))

    _train(tmp_path / "r", callbacks=[Looks()])
    assert " running " in told[0]
    assert "2/4" in told[0]
    assert "a process is writing" in told[1]
    assert len(fl.runs.read(tmp_path / "r").history.rows) == 5


def test_show_tells_all_about_a_run(tmp_path) -> None:
    run = _train(tmp_path / "r", 3)
    _train(tmp_path / "r", 5, resume=tmp_path / "r")
    text = _run("show", tmp_path / "r")
    assert "Scaffold on" in text
    assert "5 of 5 rounds" in text
    assert re.search(r"method\.lr +0\.1", text)
    assert "the start" in text
    assert "round 3" in text
    assert re.search(r"round 5 +[\d.]+ kB", text)
    assert "@inproceedings{karimireddy2020scaffold" in text
    rows = list(csv.DictReader(io.StringIO(_run("show", tmp_path / "r", "--csv"))))
    assert len(rows) == 6
    assert float(rows[3]["loss"]) == run.history.rows[3]["loss"]
    assert len(_run("show", tmp_path / "r", "--history").strip().splitlines()) == 6 + 1
    assert "is not a run folder" in _run("show", tmp_path, code=2)


def test_diff_names_settings_numbers_and_the_first_other_row(three: Path) -> None:
    text = _run("diff", three / "a", three / "b", code=1)
    assert re.search(r"label +Scaffold +FedAvg", text)
    assert re.search(r"rounds +4 +6", text)
    assert "the rows differ from round 1 on" in text
    _train(three / "again")
    same = _run("diff", three / "a", three / "again")
    assert "all rows are the same (5 rows), apart from seconds" in same
    _train(three / "longer", 6)
    assert "differ from round 5 on" in _run("diff", three / "a", three / "longer", code=1)
    assert "all " in _run("diff", three / "deep" / "c", three / "deep" / "c")  # NaN is NaN


def test_rm_asks_and_says_what_goes_and_what_stays(three: Path) -> None:
    (three / "a" / "notes.md").write_text("mine")
    text = _run("rm", three / "a", three / "b", answer="n\n")
    assert "Delete these runs?" in text
    assert "nothing was deleted" in text
    assert "kept: notes.md" in text
    assert len(fl.runs.find(three)) == 3
    text = _run("rm", three / "a", answer="y\n")
    assert f"deleted: {three / 'a'}" in text
    assert [path.name for path in (three / "a").iterdir()] == ["notes.md"]
    _run("rm", three / "b", three / "deep" / "c", "--yes")
    assert not (three / "b").exists()
    assert fl.runs.find(three) == []


def test_rm_refuses_all_if_one_is_no_run(three: Path) -> None:
    (three / "plain").mkdir()
    assert "is not a run folder" in _run("rm", three / "a", three / "plain", "--yes", code=2)
    (three / "link").symlink_to(three / "a")
    assert "is a link" in _run("rm", three / "b", three / "link", "--yes", code=2)
    assert len(fl.runs.find(three)) == 3


def test_escape_sequences_in_files_do_not_reach_the_terminal(tmp_path) -> None:
    _train(tmp_path / "r")
    path = tmp_path / "r" / "run.json"
    about = json.loads(path.read_text())
    about["label"] = "evil\x1b[31m\x9b2J"
    about["method"]["\x1b]0;title\x07"] = "\x1b[2J"
    path.write_text(json.dumps(about))
    for words in (["list", tmp_path], ["show", tmp_path / "r"], ["diff", *[tmp_path / "r"] * 2]):
        text = _run(*words)
        assert "evil" in text or words[0] == "diff"
        assert not any(mark in text for mark in ("\x1b", "\x9b", "\x07"))


def test_brackets_are_shown_as_they_are(tmp_path) -> None:
    class Breaks(fl.Callback):
        def row(self, row) -> None:
            raise OSError(28, "No space [bold]left[/nothing]")

    with pytest.raises(OSError, match="No space"):
        _train(tmp_path / "[r]", callbacks=[Breaks()])
    for words in (["list", tmp_path], ["show", tmp_path / "[r]"]):
        text = _run(*words)
        assert "failed: [Errno 28] No space [bold]left[/nothing]" in text
        assert "[r]" in text
