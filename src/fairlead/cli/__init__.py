"""The command line."""

import sys
from typing import Any, NoReturn

NEEDED = "error: the command line needs typer and rich: pip install typer rich"


def _missing() -> NoReturn:
    sys.stderr.write(f"{NEEDED}\n")
    raise SystemExit(2)


app: Any
try:
    from fairlead.cli import main, deploy, info, new, bench  # isort: skip: the order of the help
    from fairlead.cli.common import app
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("typer", "rich"):
        raise
    app = _missing
else:
    __all__ = ["app", "bench", "deploy", "info", "main", "new"]
