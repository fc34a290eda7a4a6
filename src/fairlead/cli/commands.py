"""The commands: fairlead run | compare | reproduce | list | cite | version."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

import fairlead
from fairlead.algorithms import METHODS, PRESETS
from fairlead.checkpoint import Checkpoints
from fairlead.citations import PAPERS, cite
from fairlead.cli.build import build_methods, build_task
from fairlead.cli.settings import AXES, DEFAULTS, OPTIONS, local, numbers, read_settings, target
from fairlead.cli.write import folder_for, write_comparison, write_outcome, write_run
from fairlead.compare import compare
from fairlead.compress import COMPRESSORS
from fairlead.data import sources
from fairlead.data.splits import SPLITS
from fairlead.describe import class_labels
from fairlead.errors import FairleadError, unknown
from fairlead.reproduce import RECIPES, recipe
from fairlead.schedules import SCHEDULES
from fairlead.task import Task
from fairlead.tasks import SPLIT_TASKS, TASKS, one_line
from fairlead.train import train

app = typer.Typer(
    help="Federated optimization when clients' data differ.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets: list, get, check.", no_args_is_help=True)
app.add_typer(data_app, name="data")
out = Console()

DataFolder = Annotated[
    Path | None, typer.Option("--data", help="a folder with data sets, instead of $FAIRLEAD_DATA")
]


def _fail(error: FairleadError) -> None:
    """End with the error's sentence instead of a traceback."""
    console = Console(stderr=True)
    console.print("error: ", style="bold red", end="")
    console.print(str(error), markup=False, highlight=False)
    raise typer.Exit(2) from None


def _settings_command(name: str, leave_out: set[str]) -> Callable[..., Any]:
    """A command whose flags are the settings above; it is called with them, read and merged."""

    def register(command: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            config = given.pop("config")
            try:
                command(read_settings(given, config, comparing=name == "compare"))
            except FairleadError as error:
                _fail(error)

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


@_settings_command("run", leave_out={"methods", "grid", "seeds", "x"})
def run_command(s: dict[str, Any]) -> None:
    """Train with one method."""
    _run(s, resume=False)


@app.command("resume")
def resume_command(
    folder: Annotated[Path, typer.Argument(help="the --out folder of the run")],
    rounds: Annotated[int | None, typer.Option("--rounds", help="go on to this round")] = None,
) -> None:
    """Go on with a run that was stopped or killed, from its newest checkpoint, to the same bytes."""
    try:
        try:
            s = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise FairleadError(f"{folder} is no folder of a run: {error}") from error
        known = {key: s[key] for key in DEFAULTS if key in s}
        asked = {} if rounds is None else {"rounds": rounds}
        _run({**DEFAULTS, **known, "out": folder, **asked}, resume=True)
    except FairleadError as error:
        _fail(error)


def _run(s: dict[str, Any], resume: bool) -> None:
    built = build_task(s)
    ((label, chosen),) = build_methods([s["method"]], s, s["lr"]).items()
    keep = None
    if s["out"] is not None:
        folder = folder_for(Path(s["out"]), s)
        keep = Checkpoints(folder / "checkpoints", every=s["checkpoint_every"])
    result = train(
        built, chosen, rounds=s["rounds"], seed=s["seed"], target=target(s["target"]),
        checkpoints=keep, resume=keep.folder if keep is not None and resume else None, **local(s),
    )  # fmt: skip
    last = {k: v for k, v in result.history.rows[-1].items() if k != "clients"}
    shown = Table(title=f"{label} on {built.name}", box=box.SIMPLE, show_header=False)
    for key, number in last.items():
        whole = number == int(number) if math.isfinite(number) else False
        shown.add_row(key.replace("_", " "), f"{number:,.0f}" if whole else f"{number:,.5g}")
    out.print(shown)
    out.print(f"engine: {result.engine}", highlight=False)
    _say_split(built, s)
    if s["out"] is not None:
        out.print(f"written: {write_run(Path(s['out']), s, result)}", highlight=False)
    if result.stopped == "interrupted":
        out.print(f"stopped in round {result.rounds}: go on with fairlead resume {s['out']}")
    if result.error is not None:
        raise result.error


@_settings_command("compare", leave_out={"method", "seed", "checkpoint_every"})
def compare_command(s: dict[str, Any]) -> None:
    """Compare methods, each tuned on the same step sizes. Without arguments: a demo on digits."""
    built = build_task(s)
    listed = s["methods"] if isinstance(s["methods"], list) else s["methods"].split(",")
    names = [str(name) for name in listed]
    tried = numbers(s["grid"]) if s["lr"] is None else None
    if tried is not None and not (tried and all(lr > 0 for lr in tried)):
        raise FairleadError(
            f"the grid is '{s['grid']}': give positive step sizes, such as 1,0.3,0.1"
        )
    if s["seeds"] < 1:
        raise FairleadError(f"seeds is {s['seeds']}: take at least 1")
    start: Any = s["lr"] if tried is None else tried[0]
    if s["x"] not in AXES:
        raise unknown("axis", s["x"], AXES)
    result = compare(
        built, build_methods(names, s, start), rounds=s["rounds"], seeds=s["seeds"], grid=tried,
        target=target(s["target"]), **local(s),
    )  # fmt: skip
    rows = result.table()
    narrow = [{k: v for k, v in row.items() if k not in ("gradients", "seconds")} for row in rows]
    out.print(_table(rows if out.width > 110 else narrow, _title(built, s)))
    first = next(iter(result.entries.values())).runs[0]
    out.print(f"engine: {first.engine}", highlight=False)
    _say_split(built, s)
    for note in result.notes():
        out.print(note, highlight=False)
    if s["out"] is not None:
        out.print(f"written: {write_comparison(Path(s['out']), s, result)}", highlight=False)


@app.command("reproduce")
def reproduce_command(
    name: Annotated[str | None, typer.Argument(help="the experiment; none lists them")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a reduced form, minutes at most")] = False,
    folder: Annotated[
        Path | None, typer.Option("--out", help="a folder for table, figure and numbers")
    ] = None,
) -> None:
    """Run an experiment of the papers: what came out beside what the paper says, and the figure."""
    if name is None:
        table = Table("experiment", "what it is", title="experiments")
        for key, made in RECIPES.items():
            table.add_row(key, one_line(made))
        out.print(table)
        return
    try:
        run, place = recipe(name), Path("out") / name if folder is None else folder
        folder_for(place, {"experiment": name, "quick": quick})  # before the work, not after it
        outcome = run(quick=quick)
        out.print(_table(outcome.rows, outcome.title))
        for claim in outcome.claims:
            mark = "holds" if claim.holds else "does NOT hold"
            out.print(f"{mark}: {claim.text}", highlight=False, markup=False)
        for note in outcome.notes:
            out.print(f"note: {note}", highlight=False, markup=False)
        out.print(f"written: {write_outcome(place, outcome, quick)}", highlight=False)
    except FairleadError as error:
        _fail(error)


@data_app.command("list")
def data_list_command(data: DataFolder = None) -> None:
    """The data sets there are, and where they are now."""
    table = Table("name", "what it is", "samples", "classes", "where", title="data sets")
    try:
        for row in sources.listing(data):
            table.add_row(row.name, row.what, f"{row.samples:,}", str(row.classes), row.where)
    except FairleadError as error:
        _fail(error)
    out.print(table)


@data_app.command("get")
def data_get_command(name: str, data: DataFolder = None) -> None:
    """Download a data set into the cache, unless it is here."""
    try:
        paths = sources.get(name, data)
        out.print(", ".join(map(str, paths)) or f"{name} is embedded", highlight=False)
    except FairleadError as error:
        _fail(error)


@data_app.command("check")
def data_check_command(name: str, data: DataFolder = None) -> None:
    """Compare a data set's checksums and read all of it."""
    try:
        for line in sources.check(name, data):
            out.print(line, highlight=False, markup=False)
    except FairleadError as error:
        _fail(error)


@app.command("list")
def list_command() -> None:
    """Methods, compressors, tasks, splits and schedules, a line each."""
    methods = Table("method", "what it is", "paper", title="methods")
    for name, kind in METHODS.items():
        methods.add_row(name, one_line(kind), PAPERS[kind.paper].short)
    for name, (base, more) in PRESETS.items():
        settings = ", ".join(f"{k} {v}" for k, v in more.items())
        methods.add_row(name, f"{base} with {settings}", PAPERS[METHODS[base].paper].short)
    out.print(methods)
    groups: dict[str, dict[str, Any]] = {
        "compressor": COMPRESSORS, "task": TASKS, "split": SPLITS, "schedule": SCHEDULES,
    }  # fmt: skip
    for title, group in groups.items():
        table = Table(title, "what it is", title=f"{title}s")
        for name, thing in group.items():
            table.add_row(name, one_line(thing))
        out.print(table)


@app.command("cite")
def cite_command(method: str) -> None:
    """The BibTeX of the paper behind a method."""
    try:
        out.print(cite(method), markup=False, highlight=False)
    except FairleadError as error:
        _fail(error)


@app.command("version")
def version_command() -> None:
    """The versions of fairlead and of what it computes with."""
    out.print(f"fairlead {fairlead.__version__}, torch {torch.__version__}, numpy {np.__version__}, "
              f"python {sys.version.split()[0]}", highlight=False)  # fmt: skip


def _say_split(task: Task, s: dict[str, Any]) -> None:
    labels = class_labels(task) if s["task"] in SPLIT_TASKS else None
    if labels is not None:
        out.print(f"split: {task.split.describe(labels)}", highlight=False)


def _table(rows: list[dict[str, str]], title: str) -> Table:
    """Rows as a narrow table whose first column is not cut."""
    shown = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), collapse_padding=True)
    for place, name in enumerate(rows[0]):
        shown.add_column(name.replace("_", " "), no_wrap=place == 0, overflow="fold")
    for row in rows:
        shown.add_row(*row.values())
    return shown


def _title(task: Task, s: dict[str, Any]) -> str:
    value = "" if s["split_value"] is None else f" {s['split_value']:g}"
    split = f", {s['split']}{value} split" if s["task"] in SPLIT_TASKS else ""
    cohort = "all" if s["cohort"] is None else s["cohort"]
    return f"{task.name}: {task.clients} clients{split}, cohort {cohort}, {s['rounds']} rounds, {s['seeds']} seeds"
