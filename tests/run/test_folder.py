"""Run folders and histories on disk: whole after a kill, readable meanwhile, nothing lost."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from programs import LIMIT

import fairlead as fl
from fairlead.run.folder import FILES, Recorder, belongings
from fairlead.run.history_file import HistoryFile, read_history, read_parts

METHOD = fl.Scaffold(lr=0.1)


def _task() -> fl.Task:
    return fl.problems.theorem2(gradient=10)


def _train(folder: Path, rounds: int = 6, **more) -> fl.Run:
    return fl.train(_task(), METHOD, rounds=rounds, steps=5, out=folder, **more)


def _every(folder: Path, rounds: int) -> fl.Checkpoints:
    return fl.Checkpoints(folder / "checkpoints", every=rounds)


def _same(one: fl.History, two: fl.History) -> None:
    """The same rows, to the bit, apart from the time they took."""
    assert [_timeless(row) for row in one.rows] == [_timeless(row) for row in two.rows]


def _timeless(row: dict[str, float]) -> dict[str, float]:
    return {k: v for k, v in row.items() if k != "seconds"}


class Breaks(fl.Callback):
    """Fails after the evaluation of a round."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.at, self.error = at, error

    def row(self, row) -> None:
        if row["round"] == self.at:
            raise self.error


def _filled(path: Path, rows: int = 3) -> HistoryFile:
    file = HistoryFile(path)
    file.begin(-1)
    _append(file, range(rows))
    return file


def _append(file: HistoryFile, numbers: range, **more: float) -> None:
    for k in numbers:
        file.append({"round": k, "loss": 1.0 / (k + 1), **more})


@contextmanager
def _nobody() -> Iterator[None]:
    """Without the rights of root, whom no file mode stops."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may read."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    for place, _, _ in os.walk(path):
        Path(place).chmod(0o755)
    shutil.rmtree(path)


# -- a process that is killed -------------------------------------------------------------------

KILLER = """
import os, random, signal, sys
from pathlib import Path
import fairlead as fl
from fairlead.run.history_file import HistoryFile, read_history

def killed(work, wait):
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(600)  # also if nobody is left to kill it
        work(lambda number: os.write(theirs, b"%d " % number))
        os._exit(0)
    os.close(theirs)
    told = wait(ours)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(ours, 65536):
        told += more
    os.close(ours)
    return int(told.split()[-1]) if told else -1

def appending(path, say):
    file = HistoryFile(path)
    file.begin(-1)
    for k in range(4000):  # whoever is not killed by then waits for it
        row = {"round": k, "loss": 1 / (k + 1), f"column {k // 50}": k}
        file.append(row)
        say(k)
    signal.pause()

def reading(path, number):
    rows = []
    while not path.exists() if number == 0 else len(rows) < number:
        try:
            rows = read_history(path).rows
        except fl.FairleadError as error:  # it is not there yet
            assert "no history" in str(error) or "no such table" in str(error), error
            continue
        assert [row["round"] for row in rows] == list(range(len(rows)))
    return b""

def listening(pipe, number):
    told = b""
    while b" %d " % number not in told and (more := os.read(pipe, 1)):
        told += more
    return told

def training(folder, say):
    class Says(fl.Callback):
        def row(self, row):
            say(row["round"])
            if row["round"] == 60:
                signal.pause()
    task, keep = fl.problems.theorem2(gradient=10), fl.Checkpoints(folder / "checkpoints", every=4)
    fl.train(task, fl.Scaffold(lr=0.1), rounds=10**6, steps=5, out=folder, checkpoints=keep,
             callbacks=[Says()])

fl.train(fl.problems.theorem2(gradient=10), fl.Scaffold(lr=0.1), rounds=2, steps=5)  # loads what it takes
place, chance = Path(sys.argv[1]), random.Random(0)
for k in range(24):  # killed when there is a file, and when some rows of it can be read
    path, number = place / f"{k}.sqlite", 0 if k < 4 else chance.randrange(1, 160)
    print(path, killed(lambda say: appending(path, say), lambda _: reading(path, number)))
for k in range(2):
    folder = place / f"run{k}"
    print(folder, killed(lambda say: training(folder, say), lambda pipe: listening(pipe, 5 + 4 * k)))
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> dict[str, int]:
    """What 24 killed writers and two killed trainings left, with the last row each had told of."""
    place = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(place)],
        capture_output=True, text=True, check=False, timeout=LIMIT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {
        line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in done.stdout.splitlines()
    }


def test_a_killed_writer_loses_no_row_that_it_told_of(killed: dict[str, int]) -> None:
    files = {path: last for path, last in killed.items() if path.endswith(".sqlite")}
    assert len(files) == 24
    written = [last for last in files.values() if last >= 0]
    assert len(written) > 12
    assert len(set(written)) > 8  # at different moments
    for path, last in files.items():
        if last < 0:
            continue
        rows = read_history(path).rows
        assert last + 1 <= len(rows) <= last + 2  # one more may have been on its way
        for k, row in enumerate(rows):
            assert row == {"round": k, "loss": 1 / (k + 1), f"column {k // 50}": k}
        file = HistoryFile(path)  # and it can be gone on with
        file.begin(after=last)
        file.append({"round": last + 1, "loss": 7.0})
        file.end("rounds")
        assert len(read_history(path).rows) == last + 2
        assert read_history(path).last("loss") == 7.0


def test_a_killed_training_goes_on_to_the_same_history(killed: dict[str, int]) -> None:
    for path, last in killed.items():
        if path.endswith(".sqlite"):
            continue
        folder = Path(path)
        assert last >= 4
        stored = fl.runs.read(folder)
        assert stored.status == "broken off"
        assert stored.history.last("round") >= last
        rounds = last + 9
        run = _train(folder, rounds, resume=folder)
        whole = fl.train(_task(), METHOD, rounds=rounds, steps=5)
        _same(run.history, whole.history)
        _same(fl.runs.read(folder).history, whole.history)
        assert [part["why"] for part in fl.runs.read(folder).parts] == [None, "rounds"]


# -- rows -----------------------------------------------------------------------------------------


def test_rows_are_read_while_they_are_written(tmp_path) -> None:
    path = tmp_path / "h.sqlite"
    file = _filled(path, 0)

    def write() -> None:
        for k in range(300):
            file.append({"round": k, "loss": k / 7, f"late {k // 100}": 1})
            if k % 60 == 0:
                assert len(read_history(path).rows) == k + 1

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        rows = read_history(path).rows
        assert [row["round"] for row in rows] == list(range(len(rows)))
        assert all(row["loss"] == row["round"] / 7 for row in rows)
    writer.join()
    file.end("rounds")
    assert len(read_history(path).rows) == 300


def test_ten_thousand_rows_of_twenty_columns_come_back_exactly(tmp_path) -> None:
    rng = random.Random(1)
    rows = [
        {"round": k, **{f"c{j}": rng.gauss(0, 10.0 ** rng.randint(-300, 300)) for j in range(20)}}
        for k in range(10_000)
    ]
    file = _filled(tmp_path / "h.sqlite", 0)
    for row in rows:
        file.append(row)
    file.end("rounds")
    assert read_history(tmp_path / "h.sqlite").rows == rows


def test_numbers_that_are_not_finite_or_not_plain(tmp_path) -> None:
    file = _filled(tmp_path / "h.sqlite", 0)
    file.append({"round": 0, "loss": math.nan, "up": math.inf, "down": -math.inf, "zero": -0.0})
    file.append({"round": 1, "loss": np.float32(1.5), "n": np.int64(3), "bits": 2**60 + 1})
    file.append({"round": 2, "loss": True, "bits": 2**70})
    file.end("diverged")
    first, second, third = read_history(tmp_path / "h.sqlite").rows
    assert math.isnan(first["loss"])
    assert (first["up"], first["down"]) == (math.inf, -math.inf)
    assert math.copysign(1, first["zero"]) == -1
    assert "bits" not in first
    assert second == {"round": 1, "loss": 1.5, "n": 3, "bits": 2**60 + 1}
    assert third == {"round": 2, "loss": 1, "bits": 2.0**70}


def test_columns_of_any_name_whenever_they_come(tmp_path) -> None:
    rows = [
        {"round": 0, "accuracy/A": 0.1, "accuracy/a": 0.2},
        {"round": 1, 'a "quoted"; DROP TABLE rows; --': 1.0, "": 2.0, "rowid": 3.0, "ξ/β": 4.0},
        {"round": 2, "part": 9, "PART": 8, "Round": 7, "select": 6, "a\0b": 5, "a b": 4},
        {"round": 3, "drift/0.weight": 1.0, "accuracy/a": 0.3},
    ]
    file = _filled(tmp_path / "h.sqlite", 0)
    for row in rows[:3]:
        file.append(row)
    file.end("interrupted")
    file = HistoryFile(tmp_path / "h.sqlite")
    file.begin(2)
    file.append(rows[3])
    file.end("rounds")
    history = read_history(tmp_path / "h.sqlite")
    assert history.rows == rows
    np.testing.assert_array_equal(history["accuracy/a"], [0.2, np.nan, np.nan, 0.3])


def test_data_frames_have_the_columns(tmp_path) -> None:
    run = _train(tmp_path / "r")
    history = fl.runs.read(tmp_path / "r").history
    pandas = pytest.importorskip("pandas")
    frame = history.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == list(run.history)
    np.testing.assert_array_equal(frame["loss"], run.history["loss"])


def test_polars_frames_have_the_columns(tmp_path) -> None:
    polars = pytest.importorskip("polars")
    file = _filled(tmp_path / "h.sqlite", 0)
    file.append({"round": 0, "loss": 1})
    file.append({"round": 1, "loss": 0.5, "late": math.nan})
    file.end("rounds")
    frame = read_history(tmp_path / "h.sqlite").to_polars()
    assert frame.columns == ["round", "loss", "late"]
    assert frame["loss"].dtype == polars.Float64
    assert frame["loss"].to_list() == [1.0, 0.5]
    assert frame["late"][0] is None
    assert math.isnan(frame["late"][1])


# -- disks that are full or not to be written to -------------------------------------------------


@contextmanager
def _full_by_pages(file: HistoryFile) -> Iterator[None]:
    (pages,) = file._db.execute("PRAGMA page_count").fetchone()
    file._db.execute(f"PRAGMA max_page_count = {pages}")
    yield
    with suppress(sqlite3.ProgrammingError):  # closed meanwhile
        file._db.execute("PRAGMA max_page_count = 1073741823")


@contextmanager
def _full_by_limit(file: HistoryFile) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = file.path.with_name(file.path.name + "-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("full", [_full_by_pages, _full_by_limit])
def test_a_full_disk_is_waited_for(tmp_path, full) -> None:
    path = tmp_path / "h.sqlite"
    file = _filled(path, 3)
    with full(file), pytest.warns(UserWarning, match="cannot be written now") as told:
        _append(file, range(3, 400), new=1.0)
    assert len(told) == 1
    assert len(file.pending) > 100
    kept = read_history(path).rows
    assert [row["round"] for row in kept] == list(range(len(kept)))
    file.append({"round": 400, "loss": 1.0 / 401})
    assert not file.pending
    file.end("rounds")
    assert read_history(path)["round"].tolist() == list(range(401))


def test_a_disk_full_to_the_end_is_told_and_what_is_there_stays(tmp_path) -> None:
    path = tmp_path / "h.sqlite"
    file = _filled(path, 3)
    with _full_by_pages(file):
        with pytest.warns(UserWarning, match="cannot be written now"):
            _append(file, range(3, 300))
        with pytest.warns(UserWarning, match="rows are only in run.history") as told:
            file.end("rounds")
    assert len(told) == 1
    rows = read_history(path).rows
    assert [row["round"] for row in rows] == list(range(len(rows)))
    assert len(rows) + len(file.pending) == 300


def test_rows_that_had_to_wait_are_written_at_the_end(tmp_path) -> None:
    file = _filled(tmp_path / "h.sqlite", 3)
    with _full_by_pages(file), pytest.warns(UserWarning, match="cannot be written now"):
        _append(file, range(3, 300))
    file.end("rounds")
    assert len(read_history(tmp_path / "h.sqlite").rows) == 300
    assert read_parts(tmp_path / "h.sqlite")[0]["why"] == "rounds"


def test_a_training_ends_well_on_a_full_disk(tmp_path, monkeypatch) -> None:
    before, counted = HistoryFile._insert, []

    def full(self: HistoryFile, row: dict[str, float]) -> None:
        counted.append(row)
        if 3 <= len(counted) < 6:
            raise sqlite3.OperationalError("database or disk is full")
        before(self, row)

    monkeypatch.setattr(HistoryFile, "_insert", full)
    with pytest.warns(UserWarning, match="database or disk is full") as told:
        run = _train(tmp_path / "r", 8)
    assert len(told) == 1
    assert fl.runs.read(tmp_path / "r").history.rows == run.history.rows


def test_folders_that_cannot_be_written_to(open_folder: Path) -> None:
    _train(open_folder / "r")
    killed = _filled(open_folder / "broken.sqlite")  # its journal stays
    shutil.copytree(open_folder, open_folder / "copy")
    killed.close()
    for place, _, files in os.walk(open_folder):
        for name in files:
            (Path(place) / name).chmod(0o444)
        Path(place).chmod(0o555)
    assert (open_folder / "copy" / "broken.sqlite-wal").stat().st_size > 0
    with _nobody():
        stored = fl.runs.read(open_folder / "r")
        assert (len(stored.history.rows), stored.status) == (7, "rounds")
        assert len(read_history(open_folder / "copy" / "broken.sqlite").rows) == 3
        assert [run.folder.name for run in fl.runs.find(open_folder)] == ["r", "r"]
        with pytest.raises(fl.FairleadError, match="cannot write to"):
            _train(open_folder / "new")
        with pytest.raises(fl.FairleadError, match="could not be removed: Permission denied"):
            fl.runs.remove(open_folder / "r")
        with pytest.raises(fl.FairleadError, match="cannot write the history"):
            HistoryFile(open_folder / "x.sqlite")
    assert len(fl.runs.read(open_folder / "r").history.rows) == 7


def test_reading_changes_nothing(tmp_path) -> None:
    _train(tmp_path / "r")
    before = sorted(tmp_path.rglob("*"))
    stored = fl.runs.read(tmp_path / "r")
    assert (len(stored.history.rows), len(stored.parts), stored.status) == (7, 1, "rounds")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_was_moved_reads_the_same(tmp_path) -> None:
    run = _train(tmp_path / "r")
    shutil.copytree(tmp_path / "r", tmp_path / "else" / "where")
    shutil.rmtree(tmp_path / "r")
    assert fl.runs.read(tmp_path / "else" / "where").history.rows == run.history.rows


# -- parts ----------------------------------------------------------------------------------------


def test_a_run_that_goes_on_equals_one_that_never_stopped(tmp_path) -> None:
    folder = tmp_path / "r"
    stop = Breaks(7, RuntimeError("the power\nfailed"))
    with pytest.raises(RuntimeError):
        _train(folder, 12, callbacks=[stop], checkpoints=_every(folder, 3))
    stored = fl.runs.read(folder)
    assert stored.status == "failed: the power failed"
    assert stored.history["round"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    run = _train(folder, 12, resume=folder)
    whole = fl.train(_task(), METHOD, rounds=12, steps=5)
    _same(run.history, whole.history)
    again = fl.runs.read(folder)
    assert again.history.rows == run.history.rows
    assert again.status == "rounds"
    assert [part["after"] for part in again.parts] == [-1, 6]
    assert [part["why"] for part in again.parts] == ["failed: the power failed", "rounds"]
    more = _train(folder, 15, resume=folder)
    assert fl.runs.read(folder).history.rows == more.history.rows
    assert [part["after"] for part in fl.runs.read(folder).parts] == [-1, 6, 12]


def test_the_row_of_a_last_round_is_no_row_of_a_longer_run(tmp_path) -> None:
    _train(tmp_path / "r", 4, eval_every=3)
    run = _train(tmp_path / "r", 8, eval_every=3, resume=tmp_path / "r")
    _same(run.history, fl.train(_task(), METHOD, rounds=8, steps=5, eval_every=3).history)
    assert fl.runs.read(tmp_path / "r").history.rows == run.history.rows


def test_a_target_may_come_with_a_metric_that_was_not_recorded_before(tmp_path) -> None:
    _train(tmp_path / "r", 4, objective=False)
    run = _train(tmp_path / "r", 8, resume=tmp_path / "r", target={"loss": 1e9})
    assert (run.stopped, run.rounds) == ("target", 5)


def test_rows_after_the_checkpoint_no_longer_count_but_stay(tmp_path) -> None:
    path = tmp_path / "h.sqlite"
    _filled(path, 6).end("interrupted")
    file = HistoryFile(path)
    file.begin(after=3)
    assert read_history(path)["round"].tolist() == [0, 1, 2, 3]
    file.append({"round": 4, "loss": 40.0})
    file.end("rounds")
    assert read_history(path)["loss"].tolist() == [1, 1 / 2, 1 / 3, 1 / 4, 40.0]
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM rows").fetchone() == (7,)
    db.close()


def test_rows_that_are_missing_come_from_the_checkpoint(tmp_path) -> None:
    folder = tmp_path / "r"
    _train(folder, 6)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    run = _train(folder, 8, resume=folder)
    stored = fl.runs.read(folder)
    assert stored.history.rows == run.history.rows
    assert stored.history["round"].tolist() == list(range(9))
    assert [part["after"] for part in stored.parts] == [6]


def test_only_the_missing_rows_are_filled_in(tmp_path) -> None:
    folder = tmp_path / "r"
    _train(folder, 6)
    db = sqlite3.connect(folder / "history.sqlite")
    db.execute("DELETE FROM rows WHERE round IN (2, 5)")
    db.commit()
    db.close()
    run = _train(folder, 8, resume=folder)
    assert fl.runs.read(folder).history.rows == run.history.rows
    assert [part["after"] for part in fl.runs.read(folder).parts] == [-1, 6]


def test_a_run_in_memory_goes_on_into_a_folder(tmp_path) -> None:
    first = fl.train(_task(), METHOD, rounds=4, steps=5)
    run = _train(tmp_path / "r", 7, resume=first)
    assert fl.runs.read(tmp_path / "r").history.rows == run.history.rows


def test_a_run_does_not_go_on_in_the_folder_of_another(tmp_path) -> None:
    _train(tmp_path / "a", 3)
    other = fl.train(_task(), fl.FedAvg(lr=0.1), rounds=9, steps=5, out=tmp_path / "b")
    with pytest.raises(fl.FairleadError, match="holds a different run"):
        _train(tmp_path / "b", 5, resume=tmp_path / "a")
    with pytest.raises(
        fl.FairleadError, match="holds a different run"
    ):  # round 0 alone is the same
        fl.train(_task(), METHOD, rounds=5, eval_every=9, steps=5, out=tmp_path / "b",
                 resume=tmp_path / "a")  # fmt: skip
    stored = fl.runs.read(tmp_path / "b")
    assert (stored.label, stored.status) == ("FedAvg", "rounds")
    assert stored.history.rows == other.history.rows
    run = _train(tmp_path / "c", 5, resume=tmp_path / "a")  # a new folder gets all of it
    assert fl.runs.read(tmp_path / "c").history.rows == run.history.rows


# -- folders --------------------------------------------------------------------------------------


def test_a_run_is_not_replaced_unless_asked(tmp_path) -> None:
    _train(tmp_path / "r", 6)
    with pytest.raises(fl.FairleadError, match="already holds a run"):
        _train(tmp_path / "r", 3)
    given = Recorder(tmp_path / "r", overwrite=True)
    with pytest.raises(fl.FairleadError, match="rounds is 0") as refused:
        _train(given, 0)
    given.failed(refused.value)
    assert len(fl.runs.read(tmp_path / "r").history.rows) == 7
    _train(Recorder(tmp_path / "r", overwrite=True, more={"cli": {"a": 1}}), 3)
    stored = fl.runs.read(tmp_path / "r")
    assert len(stored.history.rows) == 4
    assert stored.about["cli"] == {"a": 1}
    assert [p.name for p in (tmp_path / "r" / "checkpoints").iterdir()] == [
        "round-000000003.safetensors"
    ]


def test_a_folder_where_a_run_never_began_is_still_free(tmp_path) -> None:
    with pytest.raises(fl.FairleadError, match="no checkpoint"):
        _train(tmp_path / "r", 3, resume=tmp_path / "nothing")
    _train(tmp_path / "r", 3)


def test_two_writers_are_refused(tmp_path, monkeypatch) -> None:
    told = []
    monkeypatch.setattr("fairlead.run.lock.time.sleep", lambda seconds: None)

    class Second(fl.Callback):
        def row(self, row) -> None:
            if row["round"] == 1:
                told.append(fl.runs.read(tmp_path / "r").status)
                for more in ({}, {"overwrite": True}, {"resume": True}):
                    with pytest.raises(fl.FairleadError, match="another process is writing"):
                        Recorder(tmp_path / "r", **more)
                with pytest.raises(fl.FairleadError, match="another process is writing"):
                    fl.runs.remove(tmp_path / "r")

    run = _train(tmp_path / "r", 3, callbacks=[Second()])
    assert told == ["running"]
    assert fl.runs.read(tmp_path / "r").history.rows == run.history.rows


def test_readers_do_not_take_each_other_for_a_writer(tmp_path) -> None:
    import fcntl

    _filled(tmp_path / "history.sqlite").close()
    (tmp_path / "run.json").write_text('{"format": 1}')
    with (tmp_path / "lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert fl.runs.read(tmp_path).status == "broken off"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (ValueError("no\n way"), "failed: no way"),
        (MemoryError(), "failed: MemoryError"),
    ],
)
def test_how_a_run_ended(tmp_path, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)):
        _train(tmp_path / "r", callbacks=[Breaks(2, error)])
    assert fl.runs.read(tmp_path / "r").status == status


def test_a_run_that_diverged_keeps_what_is_not_finite(tmp_path) -> None:
    folder = tmp_path / "r"
    run = fl.train(_task(), fl.FedAvg(lr=1e200), rounds=9, steps=9, out=folder)
    stored = fl.runs.read(folder)
    assert (run.stopped, stored.status) == ("diverged", "diverged")
    assert list(stored.history.rows[-1]) == list(run.history.rows[-1])
    np.testing.assert_array_equal(stored.history["loss"], run.history["loss"])


def test_runs_are_found_below_a_folder(tmp_path) -> None:
    for name in ("b/2", "a", "b/1", ".hidden"):
        _train(tmp_path / name, 1)
    (tmp_path / "loop").symlink_to(tmp_path)
    found = fl.runs.find([tmp_path, tmp_path / "b"])
    assert [str(run.folder.relative_to(tmp_path)) for run in found] == ["a", "b/1", "b/2"]
    (tmp_path / "b" / "1" / "run.json").write_bytes(b"\xff\xfe\x00garbage")
    with pytest.warns(UserWarning, match="skipped: .* is not a run folder"):
        assert len(fl.runs.find(tmp_path)) == 2
    with pytest.raises(fl.FairleadError, match="there is no folder"):
        fl.runs.find(tmp_path / "nowhere")


def test_what_two_runs_were_set_up_with(tmp_path) -> None:
    _train(tmp_path / "a", 2)
    _train(tmp_path / "b", 2)
    fl.train(_task(), fl.FedAvg(lr=0.2), rounds=2, steps=5, out=tmp_path / "c", seed=3)
    a, b, c = (fl.runs.read(tmp_path / name) for name in "abc")
    different = fl.runs.differences(a, b)
    assert set(different) <= {"engine"}
    found = fl.runs.differences(a, c)
    assert found["label"] == ("Scaffold", "FedAvg")
    assert found["lr"] == found["method.lr"] == (0.1, 0.2)
    assert found["seed"] == (0, 3)
    assert not any(name.startswith(("began", "versions", "task")) for name in found)


def test_removing_a_run_keeps_what_is_not_its_own(tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    folder = tmp_path / "r"
    _train(folder, 2)
    (folder / "notes.md").write_text("mine")
    (folder / "checkpoints" / "mine.txt").write_text("mine")
    (folder / "track").symlink_to(outside)
    assert folder / "notes.md" not in belongings(folder)
    fl.runs.remove(folder)
    assert (outside / "precious").exists()
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    assert left == ["checkpoints", "checkpoints/mine.txt", "notes.md", "track"]
    _train(tmp_path / "alone", 2)
    (tmp_path / "alone" / "track" / "deep").mkdir(parents=True)
    (tmp_path / "alone" / "track" / "deep" / "events").write_text("x")
    (tmp_path / "alone" / "track" / "out").symlink_to(outside)
    fl.runs.remove(tmp_path / "alone")
    assert not (tmp_path / "alone").exists()
    assert (outside / "precious").exists()


def test_links_are_not_followed_out_of_the_folder(tmp_path) -> None:
    _train(tmp_path / "r", 2)
    (tmp_path / "link").symlink_to(tmp_path / "r")
    with pytest.raises(fl.FairleadError, match="is a link"):
        fl.runs.remove(tmp_path / "link")
    shutil.move(tmp_path / "r" / "checkpoints", tmp_path / "kept")
    (tmp_path / "r" / "checkpoints").symlink_to(tmp_path / "kept")
    fl.runs.remove(tmp_path / "r")
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_what_is_no_run_is_refused_in_a_sentence(tmp_path) -> None:
    _train(tmp_path / "changed", 1)
    (tmp_path / "changed" / "run.json").write_text('{"format": 1, "task": 3}')
    with pytest.raises(fl.FairleadError, match="a different version"):
        fl.runs.read(tmp_path / "changed")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "mine.txt").write_text("x")
    with pytest.raises(fl.FairleadError, match="is not a run folder"):
        fl.runs.remove(tmp_path / "plain")
    cases = {
        "garbage": (b"\xff\xfe\x00", "is not a run folder"),
        "cut": (b'{"format": 1', "is not a run folder"),
        "list": (b"[1]", "a different version"),
        "future": (b'{"format": 99}', "a different version"),
        "alone": (b'{"format": 1}', "has no history"),
    }
    for name, (content, sentence) in cases.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_bytes(content)
        with pytest.raises(fl.FairleadError, match=sentence):
            fl.runs.read(tmp_path / name)
    (tmp_path / "alone" / "history.sqlite").write_bytes(b"no database at all" * 100)
    stored = fl.runs.read(tmp_path / "alone")
    for look in ("history", "parts", "status"):
        with pytest.raises(fl.FairleadError, match="cannot be read: file is not a database"):
            getattr(stored, look)
    with pytest.raises(fl.FairleadError, match="cannot write the history"):
        HistoryFile(tmp_path / "alone" / "history.sqlite")
    with pytest.raises(fl.FairleadError, match="there is no history"):
        read_history(tmp_path / "nothing.sqlite")
    (tmp_path / "alone" / "history.sqlite").write_bytes(b"")
    with pytest.raises(fl.FairleadError, match="cannot be read: no such table"):
        read_history(tmp_path / "alone" / "history.sqlite")


def test_what_a_run_is_can_be_read_by_anything(tmp_path) -> None:
    with warnings.catch_warnings():
        _train(tmp_path / "r", 2)
    about = json.loads((tmp_path / "r" / "run.json").read_text(encoding="utf-8"))
    assert about["format"] == 1
    assert about["method"]["is"] == "Scaffold"
    assert {"fairlead", "torch", "numpy", "python"} <= set(about["versions"])
    assert fl.runs.flat(about)["method.lr"] == 0.1
