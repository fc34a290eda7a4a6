"""The report commands: fairlead report | watch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.common import app, fail, out
from fairlead.errors import FairleadError
from fairlead.figures.plots import stored_figure
from fairlead.figures.style import figure_path
from fairlead.report import html, watch
from fairlead.report.gather import gather, grouped, readable, shown

Folders = Annotated[list[Path], typer.Argument(help="run folders, or folders that contain them")]
Title = Annotated[str | None, typer.Option("--title", help="the page's title")]


@app.command("report")
def report_command(
    folders: Folders,
    title: Title = None,
    file: Annotated[
        Path | None,
        typer.Option("--out", help="the page; by default report.html in the first folder"),
    ] = None,
    figure: Annotated[
        str | None, typer.Option("--figure", help="also save the curves as pdf, svg or png")
    ] = None,
) -> None:
    """Write an HTML report of runs: curves over seeds, cost to the target, split, drift, step sizes."""
    try:
        page = file or folders[0] / "report.html"
        data = gather(folders, title)
        picture = None if figure is None else figure_path(page.parent, page.stem, figure)
        html.write(data, page)
        if picture is not None:
            stored_figure(grouped(readable(shown(folders))[0]), picture)
        written = [page] if picture is None else [page, picture]
        out.print(f"written: {', '.join(map(str, written))}", highlight=False)
    except FairleadError as error:
        fail(error)


@app.command("watch")
def watch_command(
    folders: Folders,
    title: Title = None,
    host: Annotated[str, typer.Option("--host", help="the address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="the port; 0 picks a free one")] = 8765,
) -> None:
    """Serve the same page, live, while runs are in progress; stop with Ctrl-C."""

    def on_ready(url: str) -> None:
        out.print(f"watching on {url} (stop with Ctrl-C)", highlight=False)

    try:
        watch.serve(partial(gather, folders, title), host, port, on_ready)
    except FairleadError as error:
        fail(error)
