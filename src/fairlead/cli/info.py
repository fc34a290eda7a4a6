"""The informational commands: fairlead init, data list | get | check, list, cite, doctor, version."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fairlead.cli.common import ABOUT, TRAIN, app, errors_printed, examples, group_examples, out
from fairlead.cli.names import same_name
from fairlead.version import __version__


@app.command(
    "init",
    rich_help_panel=TRAIN,
    cls=examples("fairlead init", "fairlead init mine.toml && fairlead run --config mine.toml"),
)
def init_command(
    file: Annotated[Path, typer.Argument(help="the file to write")] = Path("settings.toml"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the file")] = False,
) -> None:
    """Write a file with all settings, explained, for `--config` of run, compare and tune."""
    from fairlead.cli.template import write_template

    with errors_printed():
        write_template(file, overwrite)
        out.print(
            f"written: {file}; edit it, then: fairlead run --config {file}",
            highlight=False,
            soft_wrap=True,
        )


data_app = typer.Typer(
    cls=group_examples("fairlead data list", "fairlead data get cifar10"),
    help="Data sets: list, get, check.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(data_app, name="data", rich_help_panel=ABOUT)

DataFolder = Annotated[
    Path | None, typer.Option("--data", help="folder with data sets, instead of $FAIRLEAD_DATA")
]
DataName = Annotated[str, typer.Argument(help="the data set; see `fairlead data list`")]


@data_app.command("list", cls=examples("fairlead data list", "fairlead data list --data folder"))
def data_list_command(data: DataFolder = None) -> None:
    """List the data sets, where each is, and what its file holds."""
    from fairlead.data import sources

    heads = ("name", "description", "samples", "classes", "clients", "where")
    table = Table(
        *heads, title="data sets: samples for training + test, as published if not on this machine"
    )
    problems = []
    with errors_printed():
        for row in sources.listing(data):
            samples, classes, clients = f"{row.samples:,}", str(row.classes), ""
            if row.holds is not None:
                held = row.holds
                other = row.samples not in (0, held.train + held.test)
                samples = held.samples + f" of {row.samples:,}" * other
                clients = "" if held.clients is None else f"{held.clients:,}"
                classes = str(held.classes)
            problems += [row.wrong] * bool(row.wrong)
            table.add_row(row.name, row.what, samples, classes, clients, row.where)
    out.print(table)
    for problem in problems:
        out.print(problem, highlight=False)


@data_app.command("get", cls=examples("fairlead data get cifar10"))
def data_get_command(name: DataName, data: DataFolder = None) -> None:
    """Download a data set to the cache, unless it is already on this machine."""
    from fairlead.data import sources

    with errors_printed():
        name = same_name(name, sources.SOURCES)
        paths = sources.get(name, data)
        text = ", ".join(map(str, paths)) or f"{name} is embedded"
        out.print(text, highlight=False, soft_wrap=True)


@data_app.command("check", cls=examples("fairlead data check cifar10"))
def data_check_command(name: DataName, data: DataFolder = None) -> None:
    """Verify a data set's checksums and read all of it."""
    from fairlead.data import sources

    with errors_printed():
        for line in sources.check(same_name(name, sources.SOURCES), data):
            out.print(line, highlight=False, markup=False)


@app.command("list", rich_help_panel=ABOUT, cls=examples("fairlead list"))
def list_command() -> None:
    """List methods, compressors, measures, tasks, splits and schedules."""
    from fairlead.compress import COMPRESSORS
    from fairlead.data.splits import SPLITS
    from fairlead.measure import PROBES
    from fairlead.methods import METHODS, PRESETS
    from fairlead.methods.citations import PAPERS
    from fairlead.schedules import SCHEDULES
    from fairlead.task.catalog import TASKS, one_line

    methods = Table("method", "description", "paper", title="methods")
    for name, kind in METHODS.items():
        methods.add_row(name, one_line(kind), PAPERS[kind.paper].short)
    for name, (base, more) in PRESETS.items():
        settings = ", ".join(f"{k} {v}" for k, v in more.items())
        methods.add_row(name, f"{base} with {settings}", PAPERS[METHODS[base].paper].short)
    out.print(methods)
    groups: dict[str, dict[str, Any]] = {
        "compressor": COMPRESSORS, "measure": PROBES, "task": TASKS, "split": SPLITS, "schedule": SCHEDULES,
    }  # fmt: skip
    for title, group in groups.items():
        table = Table(title, "description", title=f"{title}s")
        for name, entry in group.items():
            table.add_row(name, one_line(entry))
        out.print(table)


@app.command(
    "cite",
    rich_help_panel=ABOUT,
    cls=examples("fairlead cite fedglomo", "fairlead cite scaffold >> references.bib"),
)
def cite_command(
    method: Annotated[str, typer.Argument(help="the method; see `fairlead list`")],
) -> None:
    """Print the BibTeX entry of a method's paper."""
    from fairlead.methods import METHODS, PRESETS
    from fairlead.methods.citations import cite

    with errors_printed():
        text = cite(same_name(method, [*METHODS, *PRESETS]))
        out.print(text, markup=False, highlight=False, soft_wrap=True)


@app.command("doctor", rich_help_panel=ABOUT, cls=examples("fairlead doctor"))
def doctor_command() -> None:
    """Show versions, devices, and what is installed and what is missing."""
    from fairlead.cli.doctor import say_all

    say_all()


@app.command("version", rich_help_panel=ABOUT, cls=examples("fairlead version"))
def version_command() -> None:
    """Print the versions of fairlead, torch, numpy and Python."""
    import numpy as np
    import torch

    out.print(f"fairlead {__version__}, torch {torch.__version__}, numpy {np.__version__}, "
              f"python {sys.version.split()[0]}", highlight=False)  # fmt: skip
