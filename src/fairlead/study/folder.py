"""The folder of a comparison: every run is written as it goes, and the same comparison given again does
only what is missing.

comparison.json     task, methods, settings: what must be the same to continue
config.json         the settings of the command, if there was one
LABEL-SEED/         a run folder per method and seed, with the chosen step size
trials/             a run folder per method, step size and seed that was tried
table.md, table.csv, tuning.json    the results, once there are all of them
.replaced/          an earlier comparison, until the one that overwrites it is complete
lock                held by the process at work
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairlead.describe import counted
from fairlead.errors import FairleadError
from fairlead.run import folder as runs
from fairlead.run.folder import (
    CHECKPOINTS,
    COMPARISON,
    LOCK,
    TRIALS,
    Recorder,
    StoredRun,
    write_json,
)
from fairlead.run.lock import locked
from fairlead.run.same import check_same
from fairlead.run.saved import keep_last, listed
from fairlead.version import __version__

CONFIG, REPLACED = "config.json", ".replaced"
RESULTS = ("table.md", "table.csv", "tuning.json", "compare.png", "compare.pdf", "compare.svg")
ENDED = ("rounds", "target", "diverged", "callback")


class ComparisonFolder:
    """Where a comparison is kept.

    settings: those of the command that started it, for config.json and every run.json.
    overwrite: whether an earlier comparison may be replaced.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        settings: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.folder, self.settings, self.overwrite = Path(folder), settings, overwrite
        self.words: dict[str, str] = {}
        self.goal: dict[str, float] | None = None

    @property
    def known(self) -> dict[str, Any] | None:
        """What the comparison in the folder is, if there is one that is not to be replaced."""
        path = self.folder / COMPARISON
        if self.overwrite or not path.is_file():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FairleadError(
                f"{path} cannot be read ({error}): use another folder, or overwrite"
            ) from error
        if not isinstance(found, dict):
            raise FairleadError(f"{path} is not a comparison's: use another folder, or overwrite")
        return found

    @contextlib.contextmanager
    def at_work(self, about: Mapping[str, Any], goal: dict[str, float] | None) -> Iterator[None]:
        """While this process runs the comparison; refuses a folder that holds something else."""
        self.goal, self.words = goal, _words(list(about["methods"]))
        now = json.loads(json.dumps(about, default=str))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = locked(self.folder / LOCK)
        except OSError as error:
            raise FairleadError(f"cannot write to {self.folder}: {error.strerror}") from error
        with lock:
            known = self.known
            if known is not None:
                known.get("settings", {}).pop("workers", None)  # earlier versions wrote it
                what = f"{self.folder} holds a comparison"
                check_same(what, known, now, _short, "; use another folder, or overwrite")
            else:
                self._put_aside()
                if self.settings is not None:
                    config = {**self.settings, "out": str(self.folder), "fairlead": __version__}
                    write_json(self.folder / CONFIG, config)
                write_json(self.folder / COMPARISON, now)
            yield

    def _put_aside(self) -> None:
        """Keep an earlier comparison, and nothing else, until this one is complete; one that was put aside before
        stays there, and what was made since is deleted."""
        held = runs.find(self.folder)
        if held and not self.overwrite:
            raise FairleadError(
                f"{self.folder} already holds {counted(len(held), 'run')}: use another folder, or overwrite"
            )
        aside = self.folder / REPLACED
        first = not aside.exists()
        known = (self.folder / COMPARISON).exists()
        try:
            for run in held:
                own = self.folder / f"{_word(run.label)}-{run.seed}"
                if run.folder in (own, self.run(run.label, run.seed)) or self._is_trial(run.folder):
                    if run.busy:
                        raise FairleadError(f"a process is writing to {run.folder}: stop it first")
                    if first and not run.folder.is_symlink():
                        _move(run.folder, aside / run.folder.relative_to(self.folder))
                    else:
                        runs.remove(run.folder)
            for name in (COMPARISON, *RESULTS) if known else ():
                path = self.folder / name
                if first and path.is_file():
                    _move(path, aside / name)
                path.unlink(missing_ok=True)
        except OSError as error:
            raise FairleadError(
                f"{self.folder} could not be overwritten: {error.strerror}"
            ) from error
        with contextlib.suppress(OSError):  # there is none, or it holds other files
            (self.folder / TRIALS).rmdir()

    def _is_trial(self, folder: Path) -> bool:
        return folder.parent == self.folder / TRIALS

    # -- runs ---------------------------------------------------------------------------------------

    def run(self, label: str, seed: int) -> Path:
        """The folder of a method's run with its chosen step size."""
        return self.folder / f"{self.words.get(label, _word(label))}-{seed}"

    def tried(self, label: str, lr: float, seed: int) -> Path:
        """The folder of a run with a step size that is tried."""
        return self.folder / TRIALS / f"{self.words[label]}-{float(lr)!r}-{seed}"

    def trial(self, label: str, lr: float, seed: int) -> Path:
        """The same, or where the run is once its step size is chosen."""
        chosen = self.run(label, seed)
        is_there = (chosen / runs.HISTORY).is_file() and runs.read(chosen).lr == lr
        return chosen if is_there else self.tried(label, lr, seed)

    def recorder(self, folder: Path, label: str) -> Recorder:
        """Records a run, from its checkpoint on if it has one."""
        more = {"label": label, "target": self.goal, "command": "compare"}
        if self.settings is not None:
            more["settings"] = {**self.settings, "out": str(self.folder)}
        goes_on = bool(listed(folder / CHECKPOINTS))
        return Recorder(folder, more=more, overwrite=True, resume=goes_on)

    def ended(self, folder: Path, rounds: int) -> StoredRun | None:
        """The run in a folder, if it has ended."""
        if not (folder / runs.HISTORY).is_file() or not (folder / runs.ABOUT).is_file():
            return None
        found = runs.read(folder)
        return found if found.status in ENDED and found.about.get("rounds") == rounds else None

    def choose(self, folder: Path, label: str, seed: int) -> Path:
        """Move a run to where the runs with the chosen step size are."""
        chosen = self.run(label, seed)
        if folder != chosen:
            try:
                folder.rename(chosen)
            except OSError as error:
                raise FairleadError(
                    f"{folder} could not be moved to {chosen}: {error.strerror}"
                ) from error
        return chosen

    def trim(self, folder: Path, last: int) -> None:
        """Keep only so many checkpoints of a run that has ended."""
        keep_last(folder / CHECKPOINTS, last)

    def write(self, result: Any) -> None:
        """Write the tables and what the report reads. Times are left out of the tables, so that equal
        results give equal bytes."""
        try:
            text = result.to_markdown(seconds=False)
            (self.folder / "table.md").write_text(text, encoding="utf-8")
            text = result.to_csv(seconds=False)
            (self.folder / "table.csv").write_text(text, encoding="utf-8")
        except OSError as error:
            raise FairleadError(f"cannot write to {self.folder}: {error.strerror}") from error
        write_json(self.folder / "tuning.json", result.tuning())
        shutil.rmtree(self.folder / REPLACED, ignore_errors=True)


def _move(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    path.rename(to)


def _word(label: str) -> str:
    """A label as part of a file name.

    >>> _word("SCAFFOLD, K = 5/10")
    'SCAFFOLD-K-5-10'
    """
    return re.sub(r"[^\w.+-]+", "-", label).strip(".-") or "method"


def _words(labels: list[str]) -> dict[str, str]:
    """A distinct word per label.

    >>> _words(["a b", "a-b"])
    {'a b': 'a-b', 'a-b': 'a-b-2'}
    """
    found: dict[str, str] = {}
    for label in labels:
        word, number = _word(label), 1
        while word in found.values():
            number += 1
            word = f"{_word(label)}-{number}"
        found[label] = word
    return found


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:99]}…"
