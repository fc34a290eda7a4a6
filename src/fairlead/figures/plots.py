"""Figures; matplotlib is imported only when one is drawn."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.errors import FairleadError
from fairlead.figures.places import places
from fairlead.figures.style import in_style, look, save, style

MAIN = (
    "accuracy",
    "auc",
    "distance",
    "residual_norm",
    "worst_loss",
    "loss",
    "test_loss",
    "valid_loss",
)
"""The most informative metrics of a run, in order of preference."""

AXES = {
    "round": "rounds", "communications": "communication rounds", "bits": "bits up and down", "bits_up": "bits up",
    "bits_down": "bits down", "gradients": "sample gradients",
}  # fmt: skip


def comparison(result: Any, path: str | Path | None, x: str = "round") -> Any:
    """The comparison's metric and the objective against a column of the history; for a saddle task the
    metric against communication rounds and against bits."""
    groups = {label: entry.runs for label, entry in result.entries.items()}
    first = next(iter(groups.values()))[0]
    panels = [(result.metric, x)]
    if x == "round" and first.task.flip is not None:  # a game's value is not informative
        panels = [(result.metric, "communications"), (result.metric, "bits")]
    elif result.metric != "loss" and all("loss" in runs[0].history for runs in groups.values()):
        panels.append(("loss", x))
    return _figure(groups, panels, path, {result.metric: result.target})


def run_figure(run: Any, path: str | Path | None, x: str = "round") -> Any:
    """The curves of a single run."""
    return _figure({type(run.algorithm).__name__: [run]}, _main([run], x), path, {})


def _main(runs: Sequence[Any], x: str) -> list[tuple[str, str]]:
    """The two most informative metrics that all runs have, or else that some have."""
    shared = [name for name in MAIN if all(name in run.history for run in runs)]
    some = [name for name in MAIN if any(name in run.history for run in runs)]
    if not some:
        raise FairleadError("there is nothing to draw: no metric was recorded")
    return [(name, x) for name in (shared or some)[:2]]


def _figure(
    groups: Mapping[str, Sequence[Any]],
    panels: list[tuple[str, str]],
    path: str | Path | None,
    targets: dict[str, float | None],
) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    with in_style():
        width, height = style()["figure.figsize"]
        figure = Figure(figsize=(width * len(panels), height), layout="constrained")
        explained: set[str] = set()
        numbers = dict(zip(groups, places(list(groups)), strict=True))
        for position, (name, x) in enumerate(panels, 1):
            axes = figure.add_subplot(1, len(panels), position)
            drawn = {
                label: (numbers[label], having)
                for label, runs in groups.items()
                if (having := [run for run in runs if name in run.history])
            }
            for label, (number, runs) in drawn.items():
                _band(axes, label, runs, name, x, look(number))
            if not explained.issuperset(drawn):
                axes.legend()
            explained.update(drawn)
            goal = targets.get(name)
            if goal is not None:
                axes.axhline(goal, color="black", linewidth=0.8, linestyle=":")
            if _is_lower_better(groups, name) and _positive(groups, name):
                axes.set_yscale("log")
                low, high = axes.get_ylim()
                if high < 100 * low:  # plain numbers read better on a short axis
                    axes.yaxis.set_minor_locator(
                        LogLocator(subs="all" if high < 5 * low else (2, 5))
                    )
                    axes.yaxis.set_major_formatter("{x:g}")
                    axes.yaxis.set_minor_formatter("{x:g}")
            axes.set_xlabel(AXES.get(x, x))
            axes.set_ylabel(name.replace("_", " "))
        if path is not None:
            save(figure, path)
    drawn_in_notebooks: Any = figure
    drawn_in_notebooks._repr_png_ = partial(_png, figure)
    return figure


def _png(figure: Any) -> bytes:
    """As notebooks show it, whichever backend matplotlib has there."""
    with in_style(), io.BytesIO() as file:
        figure.savefig(file, format="png")
        return file.getvalue()


def _band(
    axes: Any, label: str, runs: Sequence[Any], name: str, x: str, drawn: dict[str, Any]
) -> None:
    length = min(len(run.history.rows) for run in runs)
    values = np.array([run.history[name][:length] for run in runs])
    at = np.mean([run.history[x][:length] for run in runs], axis=0)
    mean, std = values.mean(0), values.std(0)
    axes.plot(at, mean, label=label, **drawn)
    if len(runs) > 1:
        low, high = mean - std, mean + std
        axes.fill_between(at, low, high, color=drawn["color"], alpha=0.2, linewidth=0)


def _is_lower_better(groups: Mapping[str, Sequence[Any]], name: str) -> bool:
    histories = [run.history for runs in groups.values() for run in runs if name in run.history]
    return any(history.direction(name) == "lower" for history in histories)


def _positive(groups: Mapping[str, Sequence[Any]], name: str) -> bool:
    histories = [run.history for runs in groups.values() for run in runs if name in run.history]
    return all((history[name] > 0).any() for history in histories)


def stored_figure(
    groups: Mapping[str, Sequence[Any]], path: str | Path | None, x: str = "round"
) -> Any:
    """The curves of stored runs, averaged over seeds."""
    runs = [run for some in groups.values() for run in some]
    goals = next((run.about["target"] for run in runs if run.about.get("target")), {})
    return _figure(groups, _main(runs, x), path, goals)
