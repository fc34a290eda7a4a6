"""The command: fairlead bench."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console

import fairlead
from fairlead.cli.common import ABOUT, app, errors_printed, examples, out
from fairlead.errors import FairleadError


def harness() -> ModuleType:
    """The package `bench`, which lies in the checkout beside src and is not installed."""
    folder = Path(fairlead.__file__).parents[2] / "benchmarks"
    if not (folder / "bench").is_dir():
        raise FairleadError(
            "the benchmarks come with fairlead's source checkout and not with this installation: "
            'get the source, run pip install -e ".[all]" in its folder, and then fairlead bench'
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module("bench")


@app.command(
    "bench",
    rich_help_panel=ABOUT,
    cls=examples("fairlead bench W1 W2", "fairlead bench --peers --out out/bench"),
)
def bench_command(
    workloads: Annotated[
        list[str] | None, typer.Argument(help="W1 … W6, W6run; by default W1 W2 W3")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda")] = "cpu",
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="install and time other libraries too")
    ] = False,
    repeats: Annotated[int, typer.Option("--repeats", help="turns of everybody")] = 5,
    engine: Annotated[
        str, typer.Option("--engine", help="auto, vmap, loop or distributed")
    ] = "auto",
    precision: Annotated[
        str, typer.Option("--precision", help="float32, tf32 or bfloat16")
    ] = "float32",
    compile: Annotated[
        bool, typer.Option("--compile", help="let torch.compile make the rounds")
    ] = False,
    tuned: Annotated[
        bool, typer.Option("--tuned", help="and try kernels for each product")
    ] = False,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="the scaling curves, too or alone")
    ] = False,
    rounds: Annotated[int | None, typer.Option("--rounds", help="of a whole run (W6run)")] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="about how long a turn is")] = 1.0,
    busy: Annotated[
        bool, typer.Option("--busy", help="keep one core busy with other work meanwhile")
    ] = False,
    folder: Annotated[
        Path, typer.Option("--out", help="a folder for table, figures and numbers")
    ] = Path("out/bench"),
) -> None:
    """How fast rounds are: beside a floor, a bare PyTorch loop and other libraries."""
    progress = Console(stderr=True)
    with errors_printed():
        bench = harness()
        with progress.status("…") as status:
            lines = progress.is_terminal

            def say(text: str) -> None:
                status.update(text) if lines else progress.print(
                    text, markup=False, highlight=False
                )

            report = bench.bench(
                workloads or (), device=device, peers=peers, repeats=repeats, engine=engine,
                precision=precision, compile="tuned" if tuned else compile, curves=scaling, rounds=rounds,
                seconds=seconds, busy=busy, say=say, each=lambda report: bench.write(report, folder),
            )  # fmt: skip
        out.print(bench.markdown(report), highlight=False, soft_wrap=True)
        out.print(f"written: {folder}/{', '.join(bench.write(report, folder))}", highlight=False)
