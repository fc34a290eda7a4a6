"""The command: fairlead bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fairlead.bench import bench, markdown, write
from fairlead.cli.common import app, fail, out
from fairlead.errors import FairleadError


@app.command("bench")
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
    folder: Annotated[
        Path, typer.Option("--out", help="a folder for table, figures and numbers")
    ] = Path("out/bench"),
) -> None:
    """How fast rounds are: beside a floor, a bare PyTorch loop and other libraries."""
    progress = Console(stderr=True)
    try:
        with progress.status("…") as status:
            lines = progress.is_terminal

            def say(text: str) -> None:
                status.update(text) if lines else progress.print(
                    text, markup=False, highlight=False
                )

            report = bench(
                workloads or (), device=device, peers=peers, repeats=repeats, engine=engine,
                precision=precision, compile="tuned" if tuned else compile, curves=scaling, rounds=rounds,
                seconds=seconds, say=say, each=lambda report: write(report, folder),
            )  # fmt: skip
        out.print(markdown(report), highlight=False, soft_wrap=True)
        out.print(f"written: {folder}/{', '.join(write(report, folder))}", highlight=False)
    except FairleadError as error:
        fail(error)
