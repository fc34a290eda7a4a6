"""The figure of sensitivity to the step size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairlead.figures.style import in_style, look, save

SPAN = 1e9  # largest ratio on the logarithmic axis
TICKS = 8  # up to this many step sizes each gets a tick


def sensitivity(tuning: Any, path: str | Path | None) -> Any:
    """Rounds to the target, if there is one, and the final metric against the step size; the best is a
    large dot, and triangles at the top mark missed targets."""
    from matplotlib.figure import Figure

    aim = tuning.aim
    tried = sorted({row.lr for label in tuning.entries for row in tuning.sensitivity(label)})
    panels = [("rounds", f"rounds to {aim.metric} {aim.goal:g}")] if aim.goal is not None else []
    panels.append(("final", f"final {aim.metric.replace('_', ' ')}"))
    with in_style():
        figure = Figure(figsize=(3.4 * len(panels), 2.5), layout="constrained")
        for position, (name, title) in enumerate(panels, 1):
            axes = figure.add_subplot(1, len(panels), position)
            for number, label in enumerate(tuning.entries):
                _curve(axes, tuning, label, name, look(number))
            axes.set_xscale("log")
            axes.set_xlim(min(tried) / 1.2, max(tried) * 1.2)
            if len(tried) <= TICKS:
                axes.set_xticks(tried, [f"{lr:.4g}" for lr in tried])
                axes.set_xticks([], minor=True)
            axes.set_xlabel("step size")
            axes.set_ylabel(title)
            if name == "final" and aim.better == "lower":
                _logarithmic(axes)
        figure.axes[0].legend()
        if path is not None:
            save(figure, path)
    return figure


def _logarithmic(axes: Any) -> None:
    """Use a logarithmic axis, cut off where a run is diverging."""
    values = [v for line in axes.get_lines() for v in line.get_ydata()]
    if values and min(values) > 0:
        axes.set_yscale("log")
        if max(values) > SPAN * min(values):
            axes.set_ylim(top=SPAN * min(values))


def _curve(axes: Any, tuning: Any, label: str, name: str, drawn: dict[str, Any]) -> None:
    rows = tuning.sensitivity(label)
    points = [(row.lr, getattr(row, name)) for row in rows if getattr(row, name) is not None]
    best = tuning.entries[label].lr(tuning.best_trial(label))
    axes.plot(*_columns(points), label=label, marker="o", markersize=3, **drawn)
    marker = {"color": drawn["color"], "linestyle": ""}
    axes.plot(
        *_columns([(lr, value) for lr, value in points if lr == best]), "o", markersize=7, **marker
    )
    if name == "rounds":
        missed = [row.lr for row in rows if row.rounds is None and row.state == "complete"]
        limit = [tuning.rounds] * len(missed)
        axes.plot(missed, limit, "^", markersize=6, fillstyle="none", **marker)


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [lr for lr, _ in points], [value for _, value in points]
