"""What commands print about tasks and results."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from fairlead.cli.common import out
from fairlead.describe import counted
from fairlead.errors import FairleadError
from fairlead.run.about import class_labels
from fairlead.run.needs import needs
from fairlead.task.catalog import SPLIT_TASKS
from fairlead.task.task import Task


def say_memory(task: Task, methods: Iterable[Any], **settings: Any) -> None:
    """Print the memory that the run needs, the largest of several, if it is a good part of what there is."""
    with suppress(FairleadError):  # the run itself will report the error
        found = [needs(task, method, **settings) for method in methods]
        most = max(found, key=lambda n: (n.memories, n.work + n.server))
        if most.matters:
            out.print(str(most), highlight=False)


def say_split(task: Task, s: dict[str, Any]) -> None:
    labels = class_labels(task) if s["task"] in SPLIT_TASKS else None
    if labels is not None:
        out.print(f"split: {task.split.describe(labels)}", highlight=False)


def say_written(text: str) -> None:
    """Name the files written, on one line, so that a path can be copied."""
    out.print(f"written: {text}", highlight=False, soft_wrap=True)


def title(task: Task, s: dict[str, Any]) -> str:
    value = "" if s["split_value"] is None else f" {s['split_value']:g}"
    split = f", {s['split']}{value} split" if s["task"] in SPLIT_TASKS else ""
    cohort = "all" if s["cohort"] is None else s["cohort"]
    counts = f"{counted(s['rounds'], 'round')}, {counted(s['seeds'], 'seed')}"
    return f"{task.name}: {counted(task.clients, 'client')}{split}, cohort {cohort}, {counts}"
