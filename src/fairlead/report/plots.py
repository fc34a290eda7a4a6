"""Figures with matplotlib, imported only when one is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairlead.losses import better_larger

if TYPE_CHECKING:
    from fairlead.compare import Comparison
    from fairlead.train import Run

STYLE: Any = {
    "figure.dpi": 150,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}
COLORS = ["#7f7f7f", "#d1495b", "#edae49", "#00798c", "#5f4b8b", "#2e933c", "#b5651d", "#3d5a80"]

AXES = {
    "round": "rounds", "communications": "communication rounds", "bits": "bits up and down", "bits_up": "bits up",
    "bits_down": "bits down", "gradients": "sample gradients",
}  # fmt: skip


@contextmanager
def panels(path: Path, rows: int, columns: int, share_y: bool) -> Iterator[Any]:
    """Rows of empty axes in the house style; the picture is written when the block ends."""
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, "axes.prop_cycle": cycler(color=COLORS)}):
        size = (3.4 * columns + 0.6, 2.9 * rows)
        figure = Figure(figsize=size, layout="constrained")
        yield figure.subplots(rows, columns, squeeze=False, sharey=share_y)
        figure.savefig(path)


def comparison(result: Comparison, path: str | Path | None, x: str = "round") -> Any:
    """The comparison's metric, and the objective beside it, against a column of the history; for a
    saddle task the metric against communication rounds and against bits."""
    groups = {label: entry.runs for label, entry in result.entries.items()}
    first = next(iter(groups.values()))[0]
    panels = [(result.metric, x)]
    if x == "round" and first.task.flip is not None:  # the value of a game says nothing
        panels = [(result.metric, "communications"), (result.metric, "bits")]
    elif result.metric != "loss" and all("loss" in runs[0].history for runs in groups.values()):
        panels.append(("loss", x))
    return _figure(groups, panels, path, {result.metric: result.target})


def run_figure(run: Run, path: str | Path | None, x: str = "round") -> Any:
    """The curves of a single run."""
    names = ("accuracy", "auc", "distance", "residual_norm", "worst_loss", "loss", "test_loss")
    panels = [(name, x) for name in names if name in run.history][:2]
    return _figure({type(run.algorithm).__name__: [run]}, panels, path, {})


def _figure(
    groups: dict[str, list[Run]],
    panels: list[tuple[str, str]],
    path: str | Path | None,
    targets: dict[str, float | None],
) -> Any:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.2 * len(panels), 3.1), layout="constrained")
        for place, (name, x) in enumerate(panels, 1):
            axes = figure.add_subplot(1, len(panels), place)
            for (label, runs), color in zip(groups.items(), COLORS * 9, strict=False):
                _band(axes, label, runs, name, x, color)
            goal = targets.get(name)
            if goal is not None:
                axes.axhline(goal, color="black", linewidth=0.8, linestyle=":")
            if not better_larger(name) and _positive(groups, name):
                axes.set_yscale("log")
                low, high = axes.get_ylim()
                if high < 100 * low:  # a short axis reads better in plain numbers
                    axes.yaxis.set_major_formatter("{x:g}")
                    axes.yaxis.set_minor_formatter("{x:g}")
            axes.set_xlabel(AXES.get(x, x))
            axes.set_ylabel(name.replace("_", " "))
        figure.axes[0].legend()
        if path is not None:
            figure.savefig(path)
    return figure


def _band(axes: Any, label: str, runs: list[Run], name: str, x: str, color: str) -> None:
    length = min(len(run.history.rows) for run in runs)
    values = np.array([run.history[name][:length] for run in runs])
    at = np.mean([run.history[x][:length] for run in runs], axis=0)
    mean, std = values.mean(0), values.std(0)
    axes.plot(at, mean, color=color, label=label, linewidth=1.5)
    if len(runs) > 1:
        axes.fill_between(at, mean - std, mean + std, color=color, alpha=0.2, linewidth=0)


def _positive(groups: dict[str, list[Run]], name: str) -> bool:
    return all((run.history[name] > 0).any() for runs in groups.values() for run in runs)
