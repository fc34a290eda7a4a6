"""A bound against what was measured; matplotlib is imported only when a figure is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairlead.errors import FairleadError
from fairlead.figures.style import in_style, look, save, style
from fairlead.theory.bound import Bound, Constants, Settings

Theorem = Callable[[Constants, Settings, int], Bound]


def bounds(
    theorem: Theorem, constants: Constants, settings: Settings, rounds: Sequence[int]
) -> list[Bound]:
    """The theorem after each of these numbers of rounds, all with the step size it takes for the last one."""
    last = theorem(constants, settings, max(rounds))
    return [theorem(constants, replace(settings, lr=last.lr), r) for r in rounds]


def bound_figure(
    theorem: Theorem,
    constants: Constants,
    settings: Settings,
    measured: ArrayLike,
    path: str | Path | None = None,
    label: str = "measured",
) -> Any:
    """The theorem's bound and the mean that it bounds, after 1, 2, … rounds.

    measured: the error after 0, 1, 2, … rounds of a run with these settings, such as f(x^r) − f*; its mean with
        the theorem's weights is drawn, beside the error itself.
    """
    from matplotlib.figure import Figure

    values = np.asarray(measured, dtype=float)
    if values.ndim != 1 or len(values) < 2:
        raise FairleadError("measured needs the error after 0, 1, … rounds, at least two values")
    rounds = range(1, len(values))
    found = bounds(theorem, constants, settings, rounds)
    means = [bound.average(values[: r + 1]) for r, bound in zip(rounds, found, strict=True)]
    last = found[-1]
    with in_style():
        figure = Figure(figsize=style()["figure.figsize"], layout="constrained")
        axes = figure.add_subplot()
        side = "at least" if last.lower else "at most"
        axes.plot(rounds, [bound.value for bound in found], label=f"bound ({side})", **look(0))
        if last.rate is not None:
            axes.plot(rounds, means, label=f"{label}, the theorem's mean", **look(1))
        axes.plot(rounds, values[1:], label=label, **look(2))
        axes.set_yscale("log")
        axes.set_xlabel("rounds")
        axes.set_ylabel(last.of)
        broken = [str(c) for c in last.conditions if not c.holds]
        axes.set_title(last.theorem if not broken else f"{last.theorem}\nnot valid: {broken[0]}")
        axes.legend()
        if path is not None:
            save(figure, path)
    return figure
