"""Run folders: a run's description, history and checkpoints, in self-describing files.

run.json            method, task, split, settings, versions
history.sqlite      one row per evaluation, written right away (see `fairlead.run.history_file`)
checkpoints/        what is needed to resume (see `fairlead.run.checkpoint`)
clients.npz         the metrics of every client at the last evaluation, if they are recorded
measured.json       what was measured and is no single number, such as tables of clients
track/              event files and ids of trackers (see `fairlead.track`)
lock                held by the writing process

>>> import tempfile
>>> import fairlead as fl
>>> folder = tempfile.mkdtemp() + "/run"
>>> run = fl.train(fl.problems.theorem2(), fl.Scaffold(lr=0.1), rounds=3, steps=5, out=folder)
>>> read = fl.runs.read(folder)
>>> read.status, read.history.last("loss") == run.history.last("loss")
('rounds', True)
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fairlead.errors import FairleadError
from fairlead.run.callbacks import Callback
from fairlead.run.client_file import CLIENTS, read_clients, write_clients
from fairlead.run.differences import differences as differences
from fairlead.run.differences import first_difference, flat
from fairlead.run.history import History
from fairlead.run.history_file import HistoryFile, has_rounds, put_aside, read_history, read_parts
from fairlead.run.lock import LOCK, is_locked, locked
from fairlead.run.measured_file import MEASURED, pair_table, read_measured, write_measured
from fairlead.task.per_client import ClientMetrics

FORMAT = 1
ABOUT, HISTORY, CHECKPOINTS = "run.json", "history.sqlite", "checkpoints"
TRACK = "track"
COMPARISON, TRIALS = "comparison.json", "trials"
"""In the folder of a comparison: what it is, and its runs with step sizes that are tried."""
WRITTEN = (
    "history.csv",
    *(f"{name}.{kind}" for name in ("run", "split") for kind in ("png", "pdf", "svg")),
)
"""Files that `fairlead run` adds."""
KINDS: dict[str, Any] = {
    "task": dict, "seed": int, "target": dict | None, "better": dict | None, "label": str,
    "lr": int | float | None, "rounds": int, "method": dict, "work": dict, "split": dict | None,
    "paper": str | None, "engine": str, "versions": dict,
}  # fmt: skip
"""What the parts of run.json must be."""
FILES = (
    CLIENTS,
    f"{CLIENTS}.part",
    MEASURED,
    f"{MEASURED}.part",
    HISTORY,
    f"{HISTORY}-wal",
    f"{HISTORY}-shm",
    ABOUT,
    f"{ABOUT}.part",
    *WRITTEN,
)


class Recorder(Callback):
    """Records a run in a folder while it is in progress.

    more: additional information about the run, such as the settings of the command that started it.
    overwrite: whether an existing run may be replaced.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        more: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        self.folder, self.more = Path(folder), dict(more or {})
        self.file: HistoryFile | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = locked(self.folder / LOCK)
        except OSError as error:
            raise FairleadError(f"cannot write to {self.folder}: {error.strerror}") from error
        self.replaces = not resume and (self.folder / HISTORY).exists()
        if self.replaces and not overwrite:
            self._lock.close()
            raise FairleadError(
                f"{self.folder} already holds a run: use another folder, resume it (fairlead resume), "
                "or replace it (overwrite)"
            )

    def begin(self, about: Mapping[str, Any], history: History) -> None:
        if self.replaces:  # only now that everything else works
            _delete_old(self.folder)
        after = about.get("after", -1)
        known = self._known_rows() if after >= 0 else []
        new = not (self.folder / ABOUT).exists()
        self.file = HistoryFile(self.folder / HISTORY)
        present = {row["round"] for row in known if row["round"] <= after}
        wanted = {row["round"] for row in history.rows}
        both = present & wanted
        other = first_difference(_floats(known, both), _floats(history.rows, both)) is not None
        if other or (after >= 0 and _differs(self.folder, about)):
            self.file.close()
            self.file = None
            raise FairleadError(f"{self.folder} holds a different run than the one to resume: "
                                "use another folder")  # fmt: skip
        try:
            write_json(self.folder / ABOUT, {"format": FORMAT, **about, **self.more})
        except FairleadError:
            self.file.close()
            self.file = None
            if new:  # no run began here, so the folder stays free
                for name in (HISTORY, f"{HISTORY}-wal", f"{HISTORY}-shm"):
                    (self.folder / name).unlink(missing_ok=True)
            raise
        self.file.begin(after if present <= wanted else -1)
        kept = present if present <= wanted else set()
        for row in history.rows:  # rows missing in the file are in the checkpoint
            if row["round"] not in kept:
                self.file.append(row)
        if after >= 0 and not has_rounds(self.folder / HISTORY, history):
            self.file.close()
            put_aside(self.folder / HISTORY, "the history is not that of the checkpoint")
            self.file = HistoryFile(self.folder / HISTORY)
            self.file.begin(after)
            for row in history.rows:
                self.file.append(row)

    def _known_rows(self) -> list[dict[str, float]]:
        """The rows in the folder; what cannot be read is put aside, as the checkpoint has all rows."""
        path = self.folder / HISTORY
        if not path.exists():
            return []
        try:
            return read_history(path).rows
        except FairleadError as error:
            put_aside(path, str(error))
            return []

    def has_all(self, history: History, stopped: str | None) -> bool:
        """Whether the folder holds a run with this history that ended for this reason."""
        try:
            stored = read(self.folder)
            same = [row["round"] for row in stored.history.rows] == [
                r["round"] for r in history.rows
            ]
            return same and stored.parts[-1]["why"] == stopped
        except (FairleadError, IndexError):
            return False

    def start_anew(self) -> None:
        """Replace the run in the folder, if there is one."""
        self.replaces = (self.folder / HISTORY).exists()

    def release(self) -> None:
        """Let others write to the folder."""
        self._lock.close()

    def clients(self, found: ClientMetrics) -> None:
        write_clients(self.folder, found)

    def measured(self, found: Any) -> None:
        if (table := pair_table(found)) is not None:
            write_measured(self.folder, found.name, table)

    def row(self, row: Mapping[str, float]) -> None:
        if self.file is not None:
            self.file.append(row)

    def end(self, run: Any) -> None:
        self._close(run.stopped)

    def failed(self, error: BaseException) -> None:
        message = " ".join(str(error).split()) or type(error).__name__
        self._close("interrupted" if isinstance(error, KeyboardInterrupt) else f"failed: {message}")

    def _close(self, why: str) -> None:
        if self.file is not None:
            self.file.end(why)
        self._lock.close()


@dataclass(frozen=True)
class StoredRun:
    """A run read from its folder, finished or not.

    >>> import tempfile, fairlead as fl
    >>> folder = tempfile.mkdtemp() + "/a"
    >>> task = fl.problems.theorem2(gradient=10)
    >>> _ = fl.train(task, fl.FedAvg(lr=0.1), rounds=3, steps=10, out=folder)
    >>> run = fl.runs.read(folder)
    >>> run.label, run.status, len(run.history["loss"])
    ('FedAvg', 'rounds', 4)
    """

    folder: Path
    about: dict[str, Any]

    @property
    def label(self) -> str:
        """The method's name."""
        return str(self.about.get("label", "?"))

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.about.get("seed", 0))

    @property
    def lr(self) -> float | None:
        """The step size before any schedule."""
        return self.about.get("lr")

    @cached_property
    def history(self) -> History:
        """The history so far."""
        given = self.about.get("better") or {}
        better: dict[str, Any] = {n: way for n, way in given.items() if way in ("lower", "higher")}
        return History(read_history(self.folder / HISTORY).rows, better)

    @property
    def clients(self) -> dict[str, NDArray[Any]]:
        """Test samples and metrics of every client at the last evaluation; empty if they are not recorded."""
        return read_clients(self.folder)

    @cached_property
    def measured(self) -> dict[str, dict[str, Any]]:
        """What was measured and is no single number, by name; empty if nothing was."""
        return read_measured(self.folder)

    @cached_property
    def parts(self) -> list[dict[str, Any]]:
        """The parts of the run: when it was started and resumed, and why each part ended."""
        return read_parts(self.folder / HISTORY)

    @cached_property
    def status(self) -> str:
        """Why it ended ("rounds", "target", "diverged", "interrupted", "callback", "failed: …"), or
        "running", or "broken off" if its process died."""
        why = self.parts[-1]["why"] if self.parts else None
        return why or ("running" if self.busy else "broken off")

    @property
    def busy(self) -> bool:
        """Whether a process is writing to it."""
        return is_locked(self.folder / LOCK)

    @property
    def size(self) -> int:
        """The size of its own files in bytes."""
        return sum(path.lstat().st_size for path in belongings(self.folder))


def read(folder: str | Path) -> StoredRun:
    """The run in a folder."""
    path = Path(folder)
    about = read_about(path)
    if not (path / HISTORY).is_file():
        raise FairleadError(f"{path} has no history: it is not a complete run folder")
    return StoredRun(path, about)


def read_about(path: Path) -> dict[str, Any]:
    """The description of the run in a folder."""
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # also UnicodeDecodeError
        raise FairleadError(f"{path} is not a run folder: {error}") from error
    if (
        not isinstance(about, dict)
        or about.get("format") != FORMAT
        or any(name in about and not isinstance(about[name], KINDS[name]) for name in KINDS)
    ):
        raise FairleadError(f"{path} was written by a different version of fairlead, or changed")
    return about


def find(folders: Sequence[str | Path] | str | Path) -> list[StoredRun]:
    """The runs in folders and anywhere below them, ordered by path; hidden folders are ignored, and
    unreadable runs are skipped with a warning."""
    given = [folders] if isinstance(folders, str | Path) else folders
    found: dict[Path, StoredRun] = {}
    for folder in map(Path, given):
        if not folder.is_dir():
            raise FairleadError(f"there is no folder {folder}")
        for path in _below(folder):
            try:
                found.setdefault(path.resolve(), read(path))
            except FairleadError as error:
                warnings.warn(f"skipped: {error}", stacklevel=2)
    return list(found.values())


def _below(folder: Path) -> Iterator[Path]:
    for path, inner, files in os.walk(folder):
        is_run = ABOUT in files and HISTORY in files
        own = (CHECKPOINTS, TRACK) if is_run else ()
        inner[:] = sorted(name for name in inner if name not in own and not name.startswith("."))
        if is_run:
            yield Path(path)


def _floats(rows: Sequence[Mapping[str, float]], rounds: set[float]) -> History:
    """Rows as stored in checkpoints, where all numbers are floats."""
    kept = [row for row in rows if row["round"] in rounds]
    return History([{name: float(value) for name, value in row.items()} for row in kept])


def remove(folder: str | Path) -> None:
    """Delete a run: its own files and checkpoints, and the folder if it is then empty."""
    path = read(folder).folder
    if path.is_symlink():
        raise FairleadError(f"{path} is a link: give the folder {path.resolve()} itself")
    try:
        with locked(path / LOCK):
            clear(path)
            with contextlib.suppress(OSError):  # it holds other files
                (path / CHECKPOINTS).rmdir()
            (path / LOCK).unlink(missing_ok=True)
        if not any(path.iterdir()):
            path.rmdir()
    except OSError as error:
        raise FairleadError(f"{path} could not be removed: {error.strerror}") from error


def belongings(folder: str | Path) -> list[Path]:
    """A run's own files in its folder, without any others."""
    path = Path(folder)
    kept, tracked = path / CHECKPOINTS, path / TRACK
    found = [path / name for name in FILES]
    if not kept.is_symlink():
        found += [
            p
            for end in ("safetensors", "shard", "part")
            for p in sorted(kept.glob(f"round-*.{end}"))
        ]
        found += sorted(kept.glob("past-*.jsonl"))
    if not tracked.is_symlink():
        found += [Path(at) / name for at, _, names in os.walk(tracked) for name in sorted(names)]
    return [path for path in found if path.is_symlink() or path.is_file()]


def clear(folder: Path) -> None:
    """Delete a run's own files except its lock; links are not followed."""
    for path in belongings(folder):
        path.unlink()
    if not (folder / TRACK).is_symlink():
        shutil.rmtree(folder / TRACK, ignore_errors=True)  # its files are already gone


def _differs(folder: Path, about: Mapping[str, Any]) -> bool:
    """Whether the run in a folder has other settings than one to be resumed there."""
    try:
        known = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, AttributeError):
        return False
    if not isinstance(known, Mapping):
        return False
    names = ("method", "seed", "work.batches", "work.cohort", "work.dropout")
    then, now = ({n: v for n, v in flat(a).items() if n.startswith(names)} for a in (known, about))
    return json.dumps(then, sort_keys=True) != json.dumps(now, sort_keys=True)


def _delete_old(folder: Path) -> None:
    try:
        clear(folder)
    except OSError as error:
        raise FairleadError(
            f"the run in {folder} could not be replaced: {error.strerror}"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, through a temporary file."""
    temporary = path.with_name(path.name + ".part")
    try:
        text = json.dumps(value, indent=1, default=str, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise FairleadError(f"cannot write {path}: {error.strerror}") from error
