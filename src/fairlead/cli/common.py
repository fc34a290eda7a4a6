"""Shared by the commands: the app, its consoles and error messages. It needs no torch."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from fairlead.cli.console import Plain
from fairlead.engine.processes.environment import is_first
from fairlead.errors import FairleadError, Lost
from fairlead.version import __version__

TRAIN, RESULTS, ABOUT = "Train", "Results", "Names, data and this installation"
"""The panels of `fairlead --help`."""

OPTIONAL = {name: name for name in ("matplotlib", "pooch", "pyarrow", "optuna", "tensorboard")}
OPTIONAL["sklearn"] = "scikit-learn"
"""The packages of optional modules: what the extra `all` installs."""

COLUMNS = ("folder", "method", "lr", "task", "seed", "rounds", "asked", "status", "metric", "value",
           "bytes", "when")  # fmt: skip
"""The columns of `fairlead runs list`."""


def examples(*lines: str) -> type[TyperCommand]:
    """A command whose help ends with lines to type."""

    class Command(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            super().format_help(ctx, formatter)
            _print_examples(lines)

    return Command


def group_examples(*lines: str) -> type[TyperGroup]:
    """A group of commands whose help ends with lines to type."""

    class Group(TyperGroup):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            super().format_help(ctx, formatter)
            _print_examples(lines)

    return Group


def _print_examples(lines: Sequence[str]) -> None:
    console = Plain(markup=False, highlight=False)
    console.print(" Examples:")
    for line in lines:
        console.print(f"   {line}", soft_wrap=True)
    console.print()


app = typer.Typer(
    cls=group_examples(
        "fairlead run --method scaffold --split dirichlet --out out/run",
        "fairlead compare --methods fedavg,scaffold --out out/compare",
        "fairlead report out/compare",
        "fairlead run --help",
        "fairlead --install-completion",
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Plain(quiet=not is_first(), markup=False)  # one process prints; brackets are literal


def _version(asked: bool) -> None:
    if asked:
        out.print(f"fairlead {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def speak(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Federated optimization when clients' data differ."""
    warnings.showwarning = _warn  # without the source location


def _warn(message: Any, *location: Any, **more: Any) -> None:
    _complain(Text("warning: ", style="yellow"), str(message), quiet=not is_first())


def _complain(word: Text, text: str, quiet: bool) -> None:
    Plain(stderr=True, quiet=quiet).print(word + Text(text, style="not bold default"))


def say_loading(what: str) -> None:
    """A first sign of life, before torch is imported, which takes seconds."""
    if "torch" not in sys.modules:
        console = Plain(stderr=True, quiet=not is_first())
        console.print(f"{what}: loading PyTorch …", markup=False, highlight=False)


def fail(error: FairleadError) -> NoReturn:
    """Exit with the error message instead of a traceback; only one process reports lost ones."""
    _complain(
        Text("error: ", style="bold red"),
        str(error),
        quiet=not is_first() and isinstance(error, Lost),
    )
    raise typer.Exit(2) from None


@contextmanager
def errors_printed() -> Iterator[None]:
    """Exit with an error message instead of a traceback; also where an optional package is missing."""
    try:
        yield
    except FairleadError as error:
        fail(error)
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in OPTIONAL:
            raise
        fail(FairleadError(f"this needs {OPTIONAL[name]}: pip install {OPTIONAL[name]}"))
