"""What commands leave in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fairlead
from fairlead.compare import Comparison
from fairlead.describe import class_labels
from fairlead.errors import FairleadError
from fairlead.reproduce import Outcome
from fairlead.task import Task
from fairlead.tasks import SPLIT_TASKS
from fairlead.train import Run


def folder_for(path: Path, s: dict[str, Any]) -> Path:
    """A folder with the settings in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(
            {**s, "out": str(path), "fairlead": fairlead.__version__}, indent=2, default=str
        )
        (path / "config.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise FairleadError(f"cannot write to {path}: {error.strerror}") from error
    return path


def _write_split(folder: Path, task: Task, s: dict[str, Any]) -> str:
    labels = class_labels(task) if s["task"] in SPLIT_TASKS else None
    if labels is None:
        return ""
    task.split.plot(labels, folder / "split.png")
    return ", split.png"


def write_run(path: Path, s: dict[str, Any], run: Run) -> str:
    """Settings, history and picture of a run; returns what was written."""
    from fairlead.report.plots import run_figure

    folder = folder_for(path, s)
    run.history.to_jsonl(folder / "history.jsonl")
    run.history.to_csv(folder / "history.csv")
    run_figure(run, folder / "run.png")
    split = _write_split(folder, run.task, s)
    return f"{folder}/config.json, history.jsonl, history.csv, run.png{split}"


def write_comparison(path: Path, s: dict[str, Any], result: Comparison) -> str:
    """Settings, histories, table and picture of a comparison; returns what was written."""
    folder = folder_for(path, s)
    for label, entry in result.entries.items():
        for seed, run in enumerate(entry.runs):
            run.history.to_jsonl(folder / f"{label}-{seed}.jsonl")
    (folder / "table.md").write_text(result.to_markdown(), encoding="utf-8")
    (folder / "table.csv").write_text(result.to_csv(), encoding="utf-8")
    result.plot(folder / "compare.png", s["x"])
    task = next(iter(result.entries.values())).runs[0].task
    split = _write_split(folder, task, s)
    return f"{folder}/table.md, table.csv, compare.png, *.jsonl{split}"


def write_outcome(path: Path, outcome: Outcome, quick: bool) -> str:
    """Table, claims, numbers and figure of an experiment; returns what was written."""
    folder = folder_for(path, {"experiment": outcome.name, "quick": quick})
    (folder / "table.md").write_text(outcome.to_markdown(), encoding="utf-8")
    (folder / "numbers.json").write_text(json.dumps(outcome.numbers, indent=1), encoding="utf-8")
    outcome.draw(folder / "figure.png")
    return f"{folder}/table.md, numbers.json, figure.png"
