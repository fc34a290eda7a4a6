"""fairlead deploy: real federations, on Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.common import TRAIN, app, errors_printed, examples, group_examples, out

deploy_app = typer.Typer(
    cls=group_examples("fairlead deploy init my-federation --clients 3"),
    help="Real federations, on Flower: init.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(deploy_app, name="deploy", rich_help_panel=TRAIN)


@deploy_app.callback()
def _group() -> None:
    """Real federations, on Flower."""


@deploy_app.command("init", cls=examples("fairlead deploy init my-federation --clients 3"))
def deploy_init_command(
    folder: Annotated[Path, typer.Argument(help="a new folder")],
    clients: Annotated[int, typer.Option(help="how many clients there are")] = 3,
) -> None:
    """Write a project: settings, the clients' and the server's data, Flower's apps, scripts for certificates and
    keys. It runs as it is, on made-up data."""
    from fairlead.deploy.init import write_project

    with errors_printed():
        for path in write_project(folder, clients):
            out.print(f"written: {path}", highlight=False, soft_wrap=True)
