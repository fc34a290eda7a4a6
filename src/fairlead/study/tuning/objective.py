"""What trials are worth.

rounds, bits   the mean over seeds of the rounds, or of the bits up and down, that reaching the target took.
               If a seed missed it, 10¹⁵·(1 + the mean of lack over seeds) instead, which is more than
               any trial that got there has. Here lack = gap/(gap + |target|), where gap is the
               distance of a seed's best value from the target, and zero if it got there.
final, best    the mean over seeds of the last, or of the best, value of the metric.

A trial with a seed that diverged is the worst of all. Equal trials are ordered by their final metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fairlead.errors import FairleadError, unknown
from fairlead.task.losses import better_larger
from fairlead.run.train import Run

BY = ("rounds", "bits", "final", "best")
COLUMNS = {"rounds": "round", "bits": "bits"}
MISSED = 1e15


@dataclass(frozen=True)
class Outcome:
    """What one run came to; None for what is not finite, or was not reached."""

    seed: int
    stopped: str
    rounds: int | None
    """Rounds to the target."""
    bits: int | None
    """Bits up and down to the target."""
    final: float | None
    best: float | None


@dataclass(frozen=True)
class Tried:
    """One trial: settings and what a run of every seed came to."""

    number: int
    settings: dict[str, Any]
    state: str
    """Either "complete", "given up" or "diverged"."""
    runs: list[Outcome]

    def mean(self, name: str) -> float | None:
        """The mean over seeds of a field of the runs, if all seeds have it and the trial is whole."""
        values = [getattr(run, name) for run in self.runs]
        whole = self.state == "complete" and all(value is not None for value in values)
        return float(np.mean(values)) if whole else None


@dataclass(frozen=True)
class Aim:
    """What is aimed at.

    >>> aim = Aim("rounds", "accuracy", 0.9)
    >>> near, far = (Outcome(0, "rounds", None, None, a, a) for a in (0.89, 0.5))
    >>> aim.value([Outcome(0, "target", 60, 9, 0.9, 0.9)]) < aim.value([near]) < aim.value([far])
    True
    """

    by: str
    metric: str
    goal: float | None = None

    def __post_init__(self) -> None:
        if self.by not in BY:
            raise unknown("objective", str(self.by), BY)
        if self.to_target and self.goal is None:
            raise FairleadError(
                f"{self.by} are counted up to a target, and there is none: give target={{'accuracy': 0.9}}, "
                'or tune by="final"'
            )

    @property
    def to_target(self) -> bool:
        """Whether runs end at the target."""
        return self.by in COLUMNS

    @property
    def larger(self) -> bool:
        """Whether a larger value is better."""
        return not self.to_target and better_larger(self.metric)

    def reached(self, row: Mapping[str, float]) -> bool:
        """Whether an evaluation is at the target."""
        if self.goal is None:
            return False
        value = row[self.metric]
        return value >= self.goal if better_larger(self.metric) else value <= self.goal

    def outcome(self, run: Run, seed: int) -> Outcome:
        """What a run came to."""
        history = run.history
        at = next((row for row in history.rows if self.reached(row)), None)
        final, best = history.last(self.metric), _best(history[self.metric], self.metric)
        return Outcome(
            seed, run.stopped, None if at is None else int(at["round"]),
            None if at is None else int(at["bits"]), _finite(final), _finite(best),
        )  # fmt: skip

    def value(self, runs: Sequence[Outcome]) -> float:
        """What the runs of all seeds are worth; see the head of this file."""
        worst = -math.inf if self.larger else math.inf
        if any(run.stopped == "diverged" for run in runs):
            return worst
        if not self.to_target:
            values = [getattr(run, self.by) for run in runs]
            return worst if None in values else float(np.mean(values))
        lacks = [self.lack(run) for run in runs]
        if any(lacks):
            return MISSED * (1 + float(np.mean(lacks)))
        return self.total(runs) / len(runs)

    def lack(self, run: Outcome) -> float:
        """How far from the target a run stayed: 0 if it got there, below 1 otherwise."""
        if run.rounds is not None or self.goal is None:
            return 0.0
        gap = math.inf if run.best is None else abs(self.goal - run.best)
        return 1.0 if math.isinf(gap) else gap / (gap + (abs(self.goal) or 1.0))

    def total(self, runs: Sequence[Outcome]) -> float:
        """Rounds or bits of all runs together; infinite if one missed the target."""
        spent = [getattr(run, self.by) for run in runs]
        return math.inf if None in spent else float(sum(spent))

    def rank(self, trial: Tried) -> tuple[int, float, float, int]:
        """What trials are sorted by, the best first."""
        whole = ("complete", "given up", "diverged").index(trial.state)
        value = self.value(trial.runs) if trial.state == "complete" else math.inf
        final = trial.mean("final")
        last = math.inf if final is None else (-final if better_larger(self.metric) else final)
        return whole, -value if self.larger else value, last, trial.number


def stored(runs: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Outcomes as JSON takes them."""
    return [asdict(run) for run in runs]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _best(values: Any, metric: str) -> float:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return math.nan
    return float(finite.max() if better_larger(metric) else finite.min())
