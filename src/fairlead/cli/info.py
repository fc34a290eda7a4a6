"""The informational commands: fairlead data list | get | check, list, cite, version."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.table import Table

from fairlead.cli.common import app, fail, out
from fairlead.compress import COMPRESSORS
from fairlead.data import sources
from fairlead.data.splits import SPLITS
from fairlead.errors import FairleadError
from fairlead.methods import METHODS, PRESETS
from fairlead.methods.citations import PAPERS, cite
from fairlead.schedules import SCHEDULES
from fairlead.task.catalog import TASKS, one_line
from fairlead.version import __version__

data_app = typer.Typer(help="Data sets: list, get, check.", no_args_is_help=True)
app.add_typer(data_app, name="data")

DataFolder = Annotated[
    Path | None, typer.Option("--data", help="folder with data sets, instead of $FAIRLEAD_DATA")
]


@data_app.command("list")
def data_list_command(data: DataFolder = None) -> None:
    """List the data sets, where each is, and what its file holds."""
    heads = ("name", "description", "samples", "classes", "clients", "where")
    table = Table(
        *heads, title="data sets: samples for training + test, as published if not on this machine"
    )
    problems = []
    try:
        for row in sources.listing(data):
            samples, classes, clients = f"{row.samples:,}", str(row.classes), ""
            if row.holds is not None:
                held = row.holds
                other = row.samples not in (0, held.train + held.test)
                samples = held.samples + f" of {row.samples:,}" * other
                classes, clients = (
                    str(held.classes),
                    "" if held.clients is None else f"{held.clients:,}",
                )
            problems += [row.wrong] * bool(row.wrong)
            table.add_row(row.name, row.what, samples, classes, clients, row.where)
    except FairleadError as error:
        fail(error)
    out.print(table)
    for problem in problems:
        out.print(problem, highlight=False)


@data_app.command("get")
def data_get_command(name: str, data: DataFolder = None) -> None:
    """Download a data set to the cache, unless it is already on this machine."""
    try:
        paths = sources.get(name, data)
        out.print(", ".join(map(str, paths)) or f"{name} is embedded", highlight=False)
    except FairleadError as error:
        fail(error)


@data_app.command("check")
def data_check_command(name: str, data: DataFolder = None) -> None:
    """Verify a data set's checksums and read all of it."""
    try:
        for line in sources.check(name, data):
            out.print(line, highlight=False, markup=False)
    except FairleadError as error:
        fail(error)


@app.command("list")
def list_command() -> None:
    """List methods, compressors, tasks, splits and schedules."""
    methods = Table("method", "description", "paper", title="methods")
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
        table = Table(title, "description", title=f"{title}s")
        for name, entry in group.items():
            table.add_row(name, one_line(entry))
        out.print(table)


@app.command("cite")
def cite_command(method: str) -> None:
    """Print the BibTeX entry of a method's paper."""
    try:
        out.print(cite(method), markup=False, highlight=False)
    except FairleadError as error:
        fail(error)


@app.command("version")
def version_command() -> None:
    """Print the versions of fairlead, torch, numpy and Python."""
    out.print(f"fairlead {__version__}, torch {torch.__version__}, numpy {np.__version__}, "
              f"python {sys.version.split()[0]}", highlight=False)  # fmt: skip
