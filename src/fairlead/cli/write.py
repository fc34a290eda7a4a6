"""Writing a command's results to a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.errors import FairleadError
from fairlead.figures.plots import MAIN, run_figure
from fairlead.figures.style import figure_path
from fairlead.run import folder as runs
from fairlead.run.about import class_labels
from fairlead.run.train import Run
from fairlead.study.compare import Comparison
from fairlead.task.catalog import SPLIT_TASKS
from fairlead.task.task import Task
from fairlead.version import __version__


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn an OSError into a FairleadError."""
    try:
        yield
    except OSError as error:
        raise FairleadError(f"cannot write to {folder}: {error.strerror}") from error


def folder_for(path: Path, s: dict[str, Any]) -> Path:
    """Create a folder with the settings in it."""
    known = {**s, "out": str(path), "fairlead": __version__}
    text = json.dumps(known, indent=2, default=str)
    with _writing(path):
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(text + "\n", encoding="utf-8")
    return path


def _write_split(folder: Path, task: Task, s: dict[str, Any]) -> str:
    labels = class_labels(task) if s["task"] in SPLIT_TASKS else None
    if labels is None:
        return ""
    path = figure_path(folder, "split", s["figure"])
    task.split.plot(labels, path)
    return f", {path.name}"


def is_written(folder: Path, s: dict[str, Any]) -> bool:
    """Whether a folder holds a finished run of so many rounds, with everything that `write_run` writes."""
    try:
        run = runs.read(folder)
        if run.status not in ("rounds", "target") or run.about.get("rounds") != s["rounds"]:
            return False
        files = [folder / "history.csv"]
        if any(name in run.history for name in MAIN):
            files.append(figure_path(folder, "run", s["figure"]))
        if s["task"] in SPLIT_TASKS and run.about.get("split") is not None:
            files.append(figure_path(folder, "split", s["figure"]))
        return all(file.is_file() for file in files)
    except FairleadError:
        return False


def write_run(folder: Path, s: dict[str, Any], run: Run) -> str:
    """Write the history as a table and a figure, next to the run's own files; return what was written."""
    with _writing(folder):
        run.history.to_csv(folder / "history.csv")
    picture = ""
    if any(name in run.history for name in MAIN):
        path = figure_path(folder, "run", s["figure"])
        run_figure(run, path)
        picture = f", {path.name}"
    split = _write_split(folder, run.task, s)
    return f"{folder}/run.json, history.sqlite, history.csv{picture}{split}"


def write_comparison(folder: Path, s: dict[str, Any], result: Comparison) -> str:
    """Write the figures of a comparison, next to its runs and tables; return what there is."""
    path = figure_path(folder, "compare", s["figure"])
    result.plot(path, s["x"])
    task = next(iter(result.entries.values())).runs[0].task
    split = _write_split(folder, task, s)
    return f"{folder}/table.md, table.csv, tuning.json, {path.name}{split}, and a folder per run"
