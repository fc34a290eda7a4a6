"""What tables of tuned methods share: step sizes, means with deviations, comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fairlead.study.reproduce.case import Result, Results, Tuned, tuned
from fairlead.study.reproduce.outcome import Claim, judged

GRID = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
"""Step sizes."""
WIDE = (100.0, 30.0, *GRID, 0.003, 0.001)
"""Those tried while the best one lies at the edge of what was tried."""
MIDDLE = (1.0, 0.3, 0.1)
"""Those tried first where the grid is widened as needed."""


def settled(results: Results, metric: str, goal: float | None) -> Tuned:
    """The step size that is best with the first seed, with the results of all its seeds. It is at the edge also
    while step sizes next to it have not been tried yet."""
    best = tuned(results.where(seed=0), metric, goal)
    tried = list(results.by("lr"))
    return Tuned(best.lr, results.where(lr=best.lr), best.lr in (min(tried), max(tried)))


def step_sizes(
    results: Results,
    metric: str,
    goal: float | None,
    first: Sequence[float] = MIDDLE,
    grid: Sequence[float] = WIDE,
) -> list[float]:
    """The step sizes to try: the first ones and, while the best lies at the edge of those, the next one of a wide grid."""
    tried = list(first)
    known = results.where(seed=0)
    while all(len(known.where(lr=lr)) for lr in tried):
        best = tuned(Results([r for r in known if r.labels["lr"] in tried]), metric, goal)
        larger = [lr for lr in grid if lr > max(tried)]
        smaller = [lr for lr in grid if lr < min(tried)]
        if best.edge and best.lr == max(tried) and larger:
            tried.append(min(larger))
        elif best.edge and best.lr == min(tried) and smaller:
            tried.append(max(smaller))
        else:
            break
    return tried


def seeds_to_add(
    results: Results, lrs: Sequence[float], metric: str, goal: float | None, seeds: int
) -> list[tuple[float, int]]:
    """The best step size with each further seed, once all step sizes were tried with the first one."""
    known = results.where(seed=0)
    if not all(len(known.where(lr=lr)) for lr in lrs):
        return []
    lr = settled(results, metric, goal).lr
    return [(lr, seed) for seed in range(1, seeds)]


def spread(values: Sequence[float], unit: float = 1.0) -> str:
    """Mean and standard deviation in a unit; or how many were finite.

    >>> spread([1e9, 3e9], 1e9), spread([1.0, math.inf]), spread([math.inf])
    ('2 ± 1', 'reached by 1 of 2', 'not reached')
    """
    scaled = np.asarray(values, float) / unit
    if not len(scaled):
        return ""
    reached = int(np.isfinite(scaled).sum())
    if reached < len(scaled):
        return f"reached by {reached} of {len(scaled)}" if reached else "not reached"
    return number(scaled.mean()) + (f" ± {number(scaled.std())}" if len(scaled) > 1 else "")


def number(value: float) -> str:
    """Three digits, and all of those before the point.

    >>> number(1311.6), number(0.12345)
    ('1,312', '0.123')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def costs_shown(results: Results, metric: str, goal: float) -> dict[str, str]:
    """Columns with what a target took besides rounds."""
    units = {"bits_up": ("Mbit up", 1e6), "bits": ("Mbit in all", 1e6)}
    units |= {"gradients": ("million gradients", 1e6)}
    return {
        title: spread(results.costs(metric, goal, axis), unit)
        for axis, (title, unit) in units.items()
    }


def interpolated(result: Result, metric: str, level: float, axis: str = "round") -> float:
    """What it took to reach any level of a metric that grows, between the stored points of its curve.

    >>> curve = {"round": [0, 10, 20], "accuracy": [0.1, 0.5, 0.4]}
    >>> round(interpolated(Result({}, "", curve=curve), "accuracy", 0.3), 6)
    5.0
    """
    best = np.maximum.accumulate(np.nan_to_num(np.asarray(result.curve[metric], float)))
    if level > best[-1]:
        return math.inf
    at = int((best >= level).argmax())
    spent = result.curve[axis]
    if at == 0:
        return float(spent[0])
    share = (level - best[at - 1]) / (best[at] - best[at - 1])
    return float(spent[at - 1] + share * (spent[at] - spent[at - 1]))


class Contest:
    """Methods' rounds to a target, to be compared in pairs. edges: keys whose best step size lies at the edge of
    its grid, so that a wider grid may change the result. name: how a key is written."""

    def __init__(
        self,
        found: Mapping[Any, Tuned],
        value: Callable[[Results], float],
        name: Callable[[Any], str] = str,
    ) -> None:
        self.name = name
        self.values = {key: value(entry.results) for key, entry in found.items()}
        self.edges = {key for key, entry in found.items() if entry.edge}

    def judged(
        self,
        text: str,
        pairs: Sequence[tuple[Any, Any]],
        evidence: str,
        change: str = "",
        strict: bool = True,
    ) -> Claim:
        """Whether the first of each pair is less than the second (or no more than it); pairs in which neither reached the target
        decide nothing, and a best step size at the edge of its grid leaves the claim open."""
        known = [(a, b) for a, b in pairs if a in self.values and b in self.values]
        run = bool(known)
        known = [(a, b) for a, b in known if min(self.values[a], self.values[b]) < math.inf]
        edges = sorted({self.name(k) for pair in known for k in pair if k in self.edges})
        good = [
            self.values[a] < self.values[b] if strict else self.values[a] <= self.values[b]
            for a, b in known
        ]
        void = f"the best step size is at the edge of its grid for {'; '.join(edges)}"
        none = "neither of any pair reached the target" if run and not known else ""
        return judged(text, good, evidence, change, void=void if edges else none)
