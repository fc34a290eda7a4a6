"""The results of `advice.py` as tables in docs/diagnose.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

QUESTIONS = (
    "local steps pay", "method", "local steps", "step size", "compressor", "rounds to the target", "centralised",
    "layers", "half of the clients",
)  # fmt: skip
RATIOS = ("local steps pay", "compressor", "half of the clients")
"""Answers that are a ratio of costs, of which the side of one is what counts."""
PAGE = Path(__file__).parent.parent / "docs" / "diagnose.md"
MARKS = "<!-- results: benchmarks/advice.py --page -->", "<!-- end of results -->"
WHO = ("rule", "without constants", "fixed", "random", "halving")


def tables(every: Sequence[Mapping[str, Any]]) -> str:
    """The results as Markdown; pairs that were cut off have rounds only."""
    text = []
    for unit in ("rounds", "bits"):
        lines = [line for line in every if unit in line]
        if not lines:
            continue
        text += [f"**{unit.capitalize()} to the target, over the best of the grid**", ""]
        who = [name for name in WHO if all(name in line[unit] for line in lines)]
        head = ["pair", f"best of the grid: {unit}", *who]
        text += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for line in lines:
            best = line["grid"][unit]
            shown = f"{best:.0f}" if unit == "rounds" else f"{best / 1e6:.3g} Mbit"
            cells = [_ratio(line[unit][one]) for one in who]
            text.append("| " + " | ".join([line["pair"], shown, *cells]) + " |")
        for name, of in (("median", np.median), ("worst", max)):
            cells = [_number(float(of([_value(line[unit][one]) for line in lines]))) for one in who]
            text.append("| " + " | ".join([f"**{name}**", "", *cells]) + " |")
        text.append("")
    head = [
        "answer",
        "asked",
        "range settled it",
        "right within its range",
        "settled for the right side",
    ]
    text += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for k, name in enumerate(QUESTIONS):
        rows = [line["answers"][k] for line in every]
        known = [row for row in rows if row["right"] is not None and row["truth"] != 0]
        clear = [row for row in known if row["clear"]]
        side = f"{sum(map(_right_side, clear))} of {len(clear)}" if name in RATIOS else ""
        cells = [
            f"{k + 1}. {name}",
            len(known),
            len(clear),
            sum(row["right"] for row in known),
            side,
        ]
        text.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(text) + "\n"


def _right_side(row: Mapping[str, Any]) -> bool:
    """Whether a ratio that was said to be above or below one is so; one that is infinite is stored as null."""
    truth = math.inf if row["truth"] is None else row["truth"]
    return (truth > 1) == (row["said"][1] > 1)


def write_page(lines: Sequence[Mapping[str, Any]], count: int) -> None:
    """Replace what is between the marks of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    head = f"{len(lines)} of the {count} pairs are stored in `benchmarks/results/advice.jsonl`.\n"
    made = "\n".join([MARKS[0], head, *([tables(lines)] if lines else [])]) + MARKS[1]
    PAGE.write_text(before + made + after, encoding="utf-8")


def _value(cell: Mapping[str, Any]) -> float:
    return math.inf if cell["ratio"] is None else cell["ratio"]


def _ratio(cell: Mapping[str, Any]) -> str:
    return "diverged" if cell["diverged"] else _number(_value(cell))


def _number(value: float) -> str:
    return "not reached" if math.isinf(value) else f"{value:.2f}"
