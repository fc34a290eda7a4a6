"""Shared by the commands: the app, error messages, flags from settings, tables."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from fairlead.cli.console import Plain
from fairlead.cli.settings import DEFAULTS, OPTIONS, read_settings
from fairlead.engine.processes.ranks import Lost, is_first
from fairlead.errors import FairleadError
from fairlead.run.about import class_labels
from fairlead.run.needs import needs
from fairlead.task.catalog import SPLIT_TASKS
from fairlead.task.task import Task

app = typer.Typer(
    help="Federated optimization when clients' data differ.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Plain(quiet=not is_first(), markup=False)  # one process prints; brackets are literal


@app.callback()
def speak() -> None:
    """Federated optimization when clients' data differ."""
    warnings.showwarning = _warn  # without the source location


def _warn(message: Any, *location: Any, **more: Any) -> None:
    console = Plain(stderr=True, quiet=not is_first())
    console.print("warning: ", style="yellow", end="")
    console.print(str(message), markup=False, highlight=False)


def fail(error: FairleadError) -> None:
    """Exit with the error message instead of a traceback; only one process reports lost ones."""
    if is_first() or not isinstance(error, Lost):
        console = Plain(stderr=True)
        console.print("error: ", style="bold red", end="")
        console.print(str(error), markup=False, highlight=False)
    raise typer.Exit(2) from None


def settings_command(name: str, leave_out: set[str]) -> Callable[..., Any]:
    """Register a command that has the settings as flags and is called with the merged settings."""

    def register(command: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            config = given.pop("config")
            try:
                command(read_settings(given, config, comparing=name == "compare"))
            except FairleadError as error:
                fail(error)

        flags = []
        for key, (kind, text) in OPTIONS.items():
            if key not in leave_out:
                default = DEFAULTS.get(key)
                shown = text if default is None else f"{text} \\[{default}]"
                word = key.replace("_", "-")
                flag = f"--{word}/--no-{word}" if kind is bool else f"--{word}"
                option = typer.Option(flag, help=shown, show_default=False)
                hint = Annotated[kind | None, option]
                flags.append(Parameter(key, Parameter.KEYWORD_ONLY, default=None, annotation=hint))
        run.__dict__["__signature__"] = Signature(flags)
        run.__annotations__ = {flag.name: flag.annotation for flag in flags}
        run.__doc__ = command.__doc__
        app.command(name)(run)
        return run

    return register


def say_memory(task: Task, methods: Iterable[Any], **settings: Any) -> None:
    """Print the memory that the run needs, the largest of several."""
    with suppress(FairleadError):  # the run itself will report the error
        found = [needs(task, method, **settings) for method in methods]
        most = max(found, key=lambda n: (n.memories, n.work + n.server))
        out.print(str(most), highlight=False)


def say_split(task: Task, s: dict[str, Any]) -> None:
    labels = class_labels(task) if s["task"] in SPLIT_TASKS else None
    if labels is not None:
        out.print(f"split: {task.split.describe(labels)}", highlight=False)


def table(rows: list[dict[str, str]], title: str) -> Table:
    """Rows as a compact table whose first column is not wrapped."""
    shown = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), collapse_padding=True)
    for index, name in enumerate(rows[0]):
        shown.add_column(name.replace("_", " "), no_wrap=index == 0, overflow="fold")
    for row in rows:
        shown.add_row(*row.values())
    return shown


def title(task: Task, s: dict[str, Any]) -> str:
    value = "" if s["split_value"] is None else f" {s['split_value']:g}"
    split = f", {s['split']}{value} split" if s["task"] in SPLIT_TASKS else ""
    cohort = "all" if s["cohort"] is None else s["cohort"]
    return f"{task.name}: {task.clients} clients{split}, cohort {cohort}, {s['rounds']} rounds, {s['seeds']} seeds"
