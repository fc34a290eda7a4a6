"""The command line."""

from fairlead.cli.commands import app

__all__ = ["app"]
