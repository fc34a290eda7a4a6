"""Measurements kept in benchmarks/results, from which docs/speed.md is made: what was run, where, when, and what
came out."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import fairlead
from bench.machine import load, name_of

RESULTS = Path(__file__).parents[1] / "results"
Entry = dict[str, Any]


def keep(name: str, results: Any, device: str = "cpu", folder: Path = RESULTS) -> Path:
    """Write what a script found to a file of this name; an earlier one is replaced."""
    script = Path(sys.argv[0])
    program = script.parent.name if script.name == "__main__.py" else f"benchmarks/{script.name}"
    entry = {
        "command": shlex.join([program, *_without_places(sys.argv[1:])]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"device": device, "name": name_of(device), "load": load()},
        "versions": {
            "fairlead": fairlead.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "results": results,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(entry, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def _without_places(words: list[str]) -> list[str]:
    """A command without the places that its other files went to."""
    flags, kept = ("--out", "--results"), []
    places = iter(words)
    for word in places:
        if word in flags:
            next(places, None)
        elif not word.startswith(tuple(f"{flag}=" for flag in flags)):
            kept.append(word)
    return kept


def read(kind: str, folder: Path = RESULTS) -> list[Entry]:
    """What is kept under names that begin so, in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{kind}*.json"))]
