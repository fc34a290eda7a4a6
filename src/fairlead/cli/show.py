"""What commands print about tasks and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich import box
from rich.table import Table

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


def table(rows: Sequence[Mapping[str, str]], title: str | None, width: int | None = None) -> Table:
    """Rows as a compact table in which lines break only between words, never inside a number or a name.
    Where even that is too wide, there is a block per row, with a line per column.

    >>> table([{"a": "x" * 9, "b": "y" * 9}], None, width=80).row_count
    1
    >>> table([{"a": "x" * 9, "b": "y" * 9}], None, width=15).row_count  # a block of two lines
    2
    """
    names = [name.replace("_", " ") for name in rows[0]]
    cells = [list(row.values()) for row in rows]
    least = [
        max(_longest_word(text) for text in column) for column in zip(names, *cells, strict=True)
    ]
    if sum(least) + len(least) > (out.width if width is None else width):
        return _blocks(names, cells, title)
    shown = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), collapse_padding=True)
    for index, (name, wide) in enumerate(zip(names, least, strict=True)):
        fits = index == 0 and sum(least[1:]) + max(len(row[0]) for row in cells) < 60
        shown.add_column(name, min_width=wide, no_wrap=fits, overflow="fold")
    for row in cells:
        shown.add_row(*row)
    return shown


def _blocks(names: list[str], cells: list[list[str]], title: str | None) -> Table:
    shown = Table(title=title, box=box.SIMPLE, show_header=False)
    for _ in range(2):
        shown.add_column(overflow="fold")
    for row in cells:
        for index, (name, text) in enumerate(zip(names, row, strict=True)):
            shown.add_row(name, text, end_section=index == len(row) - 1)
    return shown


def _longest_word(text: str) -> int:
    return max((len(word) for word in text.split()), default=1)


def title(task: Task, s: dict[str, Any]) -> str:
    value = "" if s["split_value"] is None else f" {s['split_value']:g}"
    split = f", {s['split']}{value} split" if s["task"] in SPLIT_TASKS else ""
    cohort = "all" if s["cohort"] is None else s["cohort"]
    counts = f"{counted(s['rounds'], 'round')}, {counted(s['seeds'], 'seed')}"
    return f"{task.name}: {counted(task.clients, 'client')}{split}, cohort {cohort}, {counts}"
