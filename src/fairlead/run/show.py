"""A run in one line, and as a notebook shows it."""

from __future__ import annotations

from typing import Any

from fairlead.figures import inline
from fairlead.figures.plots import MAIN

ENDINGS = {
    "rounds": "", "target": ", reached the target", "diverged": ", diverged", "interrupted": ", interrupted",
    "callback": ", stopped by a callback",
}  # fmt: skip


def main_metric(history: Any) -> str | None:
    """The most informative metric of a history."""
    return next((name for name in MAIN if name in history), None)


def sentence(run: Any) -> str:
    """What a run is and how far it got."""
    count = f"{run.rounds} round{'s' * (run.rounds != 1)}"
    names = [name for name in MAIN if run.history.rows and name in run.history.rows[-1]][:2]
    values = "".join(f", {name.replace('_', ' ')} {run.history.last(name):.4g}" for name in names)
    name = type(run.algorithm).__name__
    return f"{name} on {run.task.name}: {count}{ENDINGS[run.stopped]}{values}"


def html(run: Any) -> str:
    """The last and best values in a table, and the curve of the main metric."""
    history, last = run.history, run.history.rows[-1]
    shown = [n for n in last if history.direction(n) is not None and last[n] == last[n]]
    rows = [
        {
            "": name.replace("_", " "),
            "last": f"{last[name]:.5g}",
            "best": f"{history.best(name):.5g}",
        }
        for name in shown
    ]
    rows += [{"": "bits up and down", "last": f"{last['bits']:,.0f}", "best": ""}]
    rows += [{"": "seconds in rounds", "last": f"{last['seconds']:.3g}", "best": ""}]
    name = main_metric(history)
    if name is None:
        return inline.block(sentence(run), inline.table(rows))
    line = {type(run.algorithm).__name__: (history["round"], history[name])}
    log = history.direction(name) == "lower"
    return inline.block(sentence(run), inline.curves(line, name, log), inline.table(rows))
