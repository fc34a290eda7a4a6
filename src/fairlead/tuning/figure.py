"""How much the step size matters, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.losses import better_larger
from fairlead.report.plots import COLORS, STYLE

if TYPE_CHECKING:
    from fairlead.tuning.result import Tuning

REACH = 1e9  # of the logarithmic axis


def sensitivity(tuning: Tuning, path: str | Path | None) -> Any:
    """Rounds to the target, where there is one, and the final metric against the step size; the best
    is filled, and hollow points at the top missed the target."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    aim = tuning.aim
    panels = [("rounds", f"rounds to {aim.metric} {aim.goal:g}")] if aim.goal is not None else []
    panels.append(("final", f"final {aim.metric.replace('_', ' ')}"))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.2 * len(panels), 3.1), layout="constrained")
        for place, (name, title) in enumerate(panels, 1):
            axes = figure.add_subplot(1, len(panels), place)
            for label, color in zip(tuning.entries, COLORS * 9, strict=False):
                _curve(axes, tuning, label, name, color)
            axes.set_xscale("log")
            axes.set_xlabel("step size")
            axes.set_ylabel(title)
            if name == "final" and not better_larger(aim.metric):
                _logarithmic(axes)
        figure.axes[0].legend()
        if path is not None:
            figure.savefig(path)
    return figure


def _logarithmic(axes: Any) -> None:
    """A logarithmic axis, cut above what a run on its way to infinity came to."""
    values = [v for line in axes.get_lines() for v in line.get_ydata()]
    if values and min(values) > 0:
        axes.set_yscale("log")
        if max(values) > REACH * min(values):
            axes.set_ylim(top=REACH * min(values))


def _curve(axes: Any, tuning: Tuning, label: str, name: str, color: str) -> None:
    rows = tuning.sensitivity(label)
    whole = [(row.lr, getattr(row, name)) for row in rows if getattr(row, name) is not None]
    best = tuning.entries[label].lr(tuning.best_trial(label))
    at, values = [lr for lr, _ in whole], [value for _, value in whole]
    axes.plot(at, values, color=color, label=label, linewidth=1.5, marker="o", markersize=3)
    chosen = [(lr, value) for lr, value in whole if lr == best]
    axes.plot(*zip(*chosen, strict=True), color=color, marker="o", markersize=8) if chosen else None
    if name == "rounds":
        missed = [row.lr for row in rows if row.rounds is None and row.state == "complete"]
        line = {"color": color, "linestyle": "", "marker": "^", "fillstyle": "none"}
        axes.plot(missed, [tuning.rounds] * len(missed), markersize=6, **line)
