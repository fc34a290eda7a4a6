"""A settings file with everything that can be set, explained, from the same lists as the flags."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from fairlead.cli.flags import in_panels
from fairlead.cli.settings import DEFAULTS, OPTIONS
from fairlead.errors import FairleadError

HEAD = """\
# Settings for `fairlead run`, `fairlead compare` and `fairlead tune`:
#
#   fairlead run --config {file}
#
# Lines such as #lr = 0.1 set nothing until you remove the #. Their values are
# the defaults, unless they are marked as examples; some tasks have others.
# Flags take precedence over this file.
"""

SET = ("task", "method", "rounds")
"""What the file sets; the other lines are comments."""

EXAMPLES: dict[str, Any] = {
    "split_value": 0.1, "data": "data", "clients": 20, "cohort": 5, "steps": 10, "epochs": 2, "lr": 0.1,
    "schedule": "cosine", "server_lr": 1.0, "compressor": "qsgd:4", "momentum": 0.9, "momentum_reset": False,
    "local": "adam:clip=1", "aggregate": "median",
    "beta": 0.2, "alpha": 0.1, "damping": 0.9, "first_batch": 256, "gamma": 1.0, "layers": "-3",
    "set": "a=0.3", "server": "momentum", "mu": 0.1, "option": "II", "warm_start": True,
    "target": "accuracy=0.9", "valid": 0.2, "dtype": "float64", "task_set": "l2=0.01",
    "checkpoint_every": 10, "track": "tensorboard", "out": "out/run", "measures": "dissimilarity,cka",
    "every": 10, "average": "uniform",
}  # fmt: skip
"""Values for settings that have no default."""


def write_template(file: Path, overwrite: bool) -> None:
    """Write the settings file."""
    if file.exists() and not overwrite:
        raise FairleadError(f"{file} exists: give another name, or --overwrite")
    try:
        file.write_text(template(file), encoding="utf-8")
    except OSError as error:
        raise FairleadError(f"cannot write to {file}: {error.strerror}") from error


def template(file: Path) -> str:
    """The settings file as text."""
    lines = [HEAD.format(file=file).rstrip()]
    options = {key: value for key, value in OPTIONS.items() if key in DEFAULTS}
    last = None
    for panel, key in in_panels(options):
        if panel != last:
            lines += ["", f"# ---- {panel or 'Other'} ".ljust(78, "-")]
            last = panel
        default = DEFAULTS[key]
        value = EXAMPLES.get(key, "…") if default is None else default
        line = f"{'' if key in SET else '#'}{key} = {json.dumps(value)}"
        lines += ["", *_comment(OPTIONS[key][1]), line + "  # an example" * (default is None)]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 76, break_on_hyphens=False)]
