"""The objective value of trials.

rounds, bits   the mean over seeds of the rounds, or of the bits up and down, needed to reach the target.
               If a seed missed it, 10¹⁵·(1 + the mean shortfall over seeds) instead, which is more than
               for any trial that reached it. Here shortfall = gap/(gap + |target|), where gap is the
               distance of a seed's best value from the target, or zero if the seed reached it.
final, best    the mean over seeds of the last, or of the best, value of the metric.

A trial with a diverged seed is the worst of all. Equal trials are ordered by their final metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fairlead.errors import FairleadError, unknown
from fairlead.run.train import Run
from fairlead.task.metrics import Better, known, reaches

BY = ("rounds", "bits", "final", "best")
COLUMNS = {"rounds": "round", "bits": "bits"}
MISSED = 1e15


@dataclass(frozen=True)
class Outcome:
    """The results of one run; None if not finite or not reached."""

    seed: int
    stopped: str
    rounds: int | None
    """Rounds to the target."""
    bits: int | None
    """Bits up and down to the target."""
    final: float | None
    best: float | None
    test: float | None = None
    """The final metric on test data, if settings are chosen on validation data."""


@dataclass(frozen=True)
class Tried:
    """One trial: its settings and the results of each seed's run."""

    number: int
    settings: dict[str, Any]
    state: str
    """Either "complete", "given up" or "diverged"."""
    runs: list[Outcome]

    def mean(self, name: str) -> float | None:
        """The mean over seeds of a field of the runs, if the trial is complete and all seeds have it."""
        values = [getattr(run, name) for run in self.runs]
        known = self.state == "complete" and all(value is not None for value in values)
        return float(np.mean(values)) if known else None


@dataclass(frozen=True)
class Aim:
    """The objective: what is minimized or maximized.

    >>> aim = Aim("rounds", "accuracy", 0.9)
    >>> near, far = (Outcome(0, "rounds", None, None, a, a) for a in (0.89, 0.5))
    >>> aim.value([Outcome(0, "target", 60, 9, 0.9, 0.9)]) < aim.value([near]) < aim.value([far])
    True
    """

    by: str
    metric: str
    goal: float | None = None
    better: Better | None = None
    """Which way the metric is better; by default what fairlead knows of its name."""
    test: str | None = None
    """The same metric on test data, to be shown for the best trial, if the other one is of validation data."""

    def __post_init__(self) -> None:
        if self.better is None:
            object.__setattr__(self, "better", known(self.metric))
        if self.better is None:
            raise FairleadError(
                f"nothing says which way the metric '{self.metric}' is better: pass better=\"lower\" or "
                'better="higher"'
            )
        if self.by not in BY:
            raise unknown("objective", str(self.by), BY)
        if self.to_target and self.goal is None:
            raise FairleadError(
                f"{self.by} are counted to a target, and there is none: give target={{'accuracy': 0.9}}, "
                'or tune by="final"'
            )

    @property
    def to_target(self) -> bool:
        """Whether runs end at the target."""
        return self.by in COLUMNS

    @property
    def larger(self) -> bool:
        """Whether a larger value is better."""
        return not self.to_target and self.better == "higher"

    def reached(self, row: Mapping[str, float]) -> bool:
        """Whether an evaluation reaches the target."""
        if self.goal is None:
            return False
        return reaches(row[self.metric], self.goal, self.better or "lower")

    def outcome(self, run: Run, seed: int) -> Outcome:
        """The results of a run."""
        history = run.history
        at = next((row for row in history.rows if self.reached(row)), None)
        final, best = history.last(self.metric), _best(history[self.metric], self.better)
        return Outcome(
            seed, run.stopped, None if at is None else int(at["round"]),
            None if at is None else int(at["bits"]), _finite(final), _finite(best),
            None if self.test is None else _finite(history.last(self.test)),
        )  # fmt: skip

    def value(self, runs: Sequence[Outcome]) -> float:
        """The objective value of all seeds' runs; see the module docstring."""
        worst = -math.inf if self.larger else math.inf
        if any(run.stopped == "diverged" for run in runs):
            return worst
        if not self.to_target:
            values = [getattr(run, self.by) for run in runs]
            return worst if None in values else float(np.mean(values))
        shortfalls = [self.shortfall(run) for run in runs]
        if any(shortfalls):
            return MISSED * (1 + float(np.mean(shortfalls)))
        return self.total(runs) / len(runs)

    def shortfall(self, run: Outcome) -> float:
        """How far a run stayed from the target: 0 if it reached it, at most 1 otherwise."""
        if run.rounds is not None or self.goal is None:
            return 0.0
        gap = math.inf if run.best is None else abs(self.goal - run.best)
        return 1.0 if math.isinf(gap) else gap / (gap + (abs(self.goal) or 1.0))

    def total(self, runs: Sequence[Outcome]) -> float:
        """The sum of rounds or bits over the runs; infinite if one missed the target."""
        spent = [getattr(run, self.by) for run in runs]
        return math.inf if None in spent else float(sum(spent))

    def rank(self, trial: Tried) -> tuple[int, float, float, int]:
        """The sort key of trials, best first."""
        state = ("complete", "given up", "diverged").index(trial.state)
        value = self.value(trial.runs) if trial.state == "complete" else math.inf
        final = trial.mean("final")
        last = math.inf if final is None else (-final if self.better == "higher" else final)
        return state, -value if self.larger else value, last, trial.number


def stored(runs: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Outcomes in JSON form."""
    return [asdict(run) for run in runs]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _best(values: Any, better: Better | None) -> float:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return math.nan
    return float(finite.max() if better == "higher" else finite.min())
