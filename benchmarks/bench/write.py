"""A report as files: bench.json, bench.md, and figures where matplotlib is installed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from bench.run import Report
from bench.table import markdown
from fairlead.errors import FairleadError


def write(report: Report, folder: str | Path) -> list[str]:
    """Write everything there is to a folder; the names of the files."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / "bench.json").write_text(json.dumps(report, indent=1) + "\n")
        (place / "bench.md").write_text(markdown(report))
    except OSError as error:
        raise FairleadError(f"cannot write to {place}: {error.strerror or error}") from error
    written = ["bench.json", "bench.md"]
    if find_spec("matplotlib") is None:
        return written
    from bench import figure

    if report["workloads"]:
        figure.bars(report, place / "bench.png")
        written.append("bench.png")
    if report["scaling"]:
        figure.curves(report, place / "scaling.png")
        written.append("scaling.png")
    return written
