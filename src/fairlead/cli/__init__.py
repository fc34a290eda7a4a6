"""The command line."""

from fairlead.cli import bench, commands, info, reports, reproduce, tuning
from fairlead.cli.common import app
from fairlead.cli.runs import runs_app

app.add_typer(runs_app, name="runs")

__all__ = ["app", "bench", "commands", "info", "reports", "reproduce", "tuning"]
