"""How each method of a comparison is tuned and run: all step sizes and seeds at once, or one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.core.method import Algorithm
from fairlead.errors import FairleadError
from fairlead.progress import Progress
from fairlead.run.folder import StoredRun
from fairlead.run.many import train_many
from fairlead.run.train import Run, train
from fairlead.schedules import Rate, Schedule, scaled
from fairlead.study.folder import ComparisonFolder
from fairlead.study.measured import Measured
from fairlead.task.task import Task


@dataclass
class Entry:
    """One method of a comparison."""

    label: str
    algorithm: Algorithm[Any, Any]
    """The method with its chosen step size."""
    runs: list[Run]
    tuning: dict[float, float]
    """Mean rounds to the target per step size; infinite if it was missed or the runs were stopped early. On
    validation data, if the task has them."""
    finals: dict[float, float]
    """Mean final metric per step size; infinite if a run diverged or was stopped early. On validation data,
    if the task has them."""


@dataclass
class Search:
    """What all methods share.

    bar: shows the rounds of the whole comparison. place: where runs are kept, if they are.
    """

    task: Task
    rounds: int
    seeds: Sequence[int]
    grid: Sequence[float] | None
    measured: Measured
    goal: float | None
    settings: dict[str, Any]
    bar: Progress
    place: ComparisonFolder | None = None
    done: int = field(default=0, init=False)
    """Rounds that are behind us; a run that was stopped early counts in full."""

    @property
    def sign(self) -> int:
        """1 if small values of the metric are good, else -1."""
        return -1 if self.measured.better == "higher" else 1

    @property
    def metric(self) -> str:
        """The metric that step sizes are chosen by."""
        return self.measured.by

    def advance(self, run: Run | StoredRun, label: str, runs: int = 1) -> None:
        """Count all rounds of so many runs as done."""
        self.done += runs * self.rounds
        self.bar.update(self.done, run.history.rows[-1], label)

    # -- all at once --------------------------------------------------------------------------------

    def at_once(self, label: str, method: Any) -> Entry:
        """Run all step sizes and seeds of a method together; the result is the best step size's runs."""
        tuned: dict[float, Any] = {
            lr: method.with_lr(with_value(method.lr, lr)) for lr in self.grid or ()
        } or {base_lr(method): method}
        pairs = [(lr, seed) for lr in tuned for seed in self.seeds]
        found = self._trained(label, tuned, pairs)
        self.advance(found[-1], label, len(found))
        runs = {
            lr: [run for (at, _), run in zip(pairs, found, strict=True) if at == lr] for lr in tuned
        }
        used = {lr: self._used(mine) for lr, mine in runs.items()}
        finals = {lr: self._final(mine) for lr, mine in runs.items()}
        best = min(tuned, key=lambda lr: (used[lr], self.sign * finals[lr]))
        kept = self._chosen(label, tuned[best], best, pairs, runs[best])
        tried = bool(self.grid)
        return Entry(label, tuned[best], kept, used if tried else {}, finals if tried else {})

    def _trained(
        self, label: str, tuned: Mapping[float, Any], pairs: Sequence[tuple[float, int]]
    ) -> Sequence[Run | StoredRun]:
        """The runs, as stored if all of them have ended."""
        place, outs = self.place, {}
        if place is not None:
            folders = [self._folder(label, lr, seed) for lr, seed in pairs]
            stored = [place.ended(folder, self.rounds) for folder in folders]
            known = [run for run in stored if run is not None]
            if len(known) == len(stored):
                return known
            outs = {"outs": [place.recorder(f, label) for f in folders], "resume": "auto"}
        work = [(tuned[lr], seed) for lr, seed in pairs]
        bar = self.bar.part(self.done, label)
        found = train_many(
            self.task, work, rounds=self.rounds, progress=bar, **outs, **self.settings
        )
        for run in found:
            _check_ended(run)
        return found

    def _folder(self, label: str, lr: float, seed: int) -> Path:
        assert self.place is not None
        return self.place.trial(label, lr, seed) if self.grid else self.place.run(label, seed)

    def _chosen(
        self,
        label: str,
        method: Any,
        lr: float,
        pairs: Sequence[tuple[float, int]],
        runs: Sequence[Run | StoredRun],
    ) -> list[Run]:
        """The runs with the chosen step size; of the others only the histories are kept."""
        place = self.place
        if place is not None:
            folders = {pair: self._folder(label, *pair) for pair in pairs}
            for (at, seed), folder in folders.items():
                if at == lr:
                    place.trim(place.choose(folder, label, seed), 1)
                else:
                    place.trim(folder, 0)
        found = []
        for seed, run in zip(self.seeds, runs, strict=True):
            if isinstance(run, StoredRun):  # its state is in its checkpoint
                run = self._train(
                    label, method, self.rounds, seed, place and place.run(label, seed)
                )
            found.append(run)
        return found

    def _used(self, runs: Sequence[Run | StoredRun]) -> float:
        """The mean rounds to the target."""
        if self.goal is None:
            return 0.0
        reached = [run.history.first_reach(self.metric, self.goal) for run in runs]
        return float(np.mean([math.inf if k is None else k for k in reached]))

    def _final(self, runs: Sequence[Run | StoredRun]) -> float:
        """The mean final metric."""
        if any(_ending(run) == "diverged" for run in runs):
            return self.sign * math.inf
        return float(np.mean([run.history.last(self.metric) for run in runs]))

    # -- one by one ---------------------------------------------------------------------------------

    def one_by_one(self, label: str, method: Any) -> Entry:
        """Tune over the grid, then train with every seed."""
        tuning: dict[float, float] = {}
        finals: dict[float, float] = {}
        if self.grid:
            method, tuning, finals = self._tuned(label, method, self.grid)
        runs = []
        for seed in self.seeds:
            folder = None if self.place is None else self.place.run(label, seed)
            run = self._train(label, method, self.rounds, seed, folder)
            if self.place is not None and folder is not None:
                self.place.trim(folder, 1)
            self.advance(run, label)
            runs.append(run)
        return Entry(label, method, runs, tuning, finals)

    def _tuned(
        self, label: str, method: Any, grid: Sequence[float]
    ) -> tuple[Algorithm[Any, Any], dict[float, float], dict[float, float]]:
        """The method with the best step size, and each step size's mean rounds and final metric."""
        tried: dict[float, tuple[float, float]] = {}
        least = float(self.rounds * len(self.seeds))  # a step size is stopped once it needs more
        goal = self.goal
        for lr in grid:
            candidate = method.with_lr(with_value(method.lr, lr))
            used, finals, left = 0.0, [], len(self.seeds)
            for seed in self.seeds:
                limit = int(min(self.rounds, least - used))
                run = self._try(label, candidate, lr, seed, limit) if limit > 0 else None
                reached = (
                    run.history.first_reach(self.metric, goal) if run and goal is not None else None
                )
                if goal is not None:
                    used += math.inf if reached is None else reached
                if run is None or _ending(run) == "diverged":
                    finals.append(math.inf)
                else:
                    finals.append(self.sign * run.history.last(self.metric))
                if run is not None:
                    left -= 1
                    self.advance(run, f"{label}, lr {lr:g}")
                if goal is not None and reached is None:
                    break
            self.done += left * self.rounds
            tried[lr] = (used, float(np.mean(finals)))
            least = min(least, used) if goal is not None else least
        best = min(tried, key=lambda lr: tried[lr])
        means = {lr: used / len(self.seeds) for lr, (used, _) in tried.items()}
        final = {lr: self.sign * final for lr, (_, final) in tried.items()}
        return method.with_lr(with_value(method.lr, best)), means, final

    def _try(
        self, label: str, method: Algorithm[Any, Any], lr: float, seed: int, limit: int
    ) -> Run | StoredRun:
        """A run with one of the step sizes, which stops at the target."""
        place, folder = self.place, None
        if place is not None:
            folder = place.tried(label, lr, seed)
            known = place.ended(folder, limit)
            if known is not None:
                place.trim(folder, 0)
                return known
        stop = {} if self.goal is None else {"target": {self.metric: self.goal}}
        run = self._train(label, method, limit, seed, folder, f"{label}, lr {lr:g}", **stop)
        if place is not None and folder is not None:
            place.trim(folder, 0)  # its history is enough
        return run

    def _train(
        self,
        label: str,
        method: Algorithm[Any, Any],
        rounds: int,
        seed: int,
        folder: Path | None,
        shown: str | None = None,
        **more: Any,
    ) -> Run:
        kept = {}
        if self.place is not None and folder is not None:
            kept = {"out": self.place.recorder(folder, label), "resume": "auto"}
        bar = self.bar.part(self.done, shown or label)
        settings = {**self.settings, **kept, **more}
        return _check_ended(
            train(self.task, method, rounds=rounds, seed=seed, progress=bar, **settings)
        )


def _ending(run: Run | StoredRun) -> str:
    return run.status if isinstance(run, StoredRun) else run.stopped


def _check_ended(run: Run) -> Run:
    if run.stopped == "interrupted":
        raise FairleadError(
            "the comparison was interrupted: give it again with the same folder to finish it"
        )
    return run


def with_value(rate: Rate, lr: float) -> Rate:
    """The same schedule with another base step size."""
    return scaled(rate, lr / rate.lr) if isinstance(rate, Schedule) else lr


def base_lr(method: Any) -> float:
    """The base step size; for a function its first value."""
    lr: Any = getattr(method.lr, "lr", method.lr)
    first: Any = lr(0) if callable(lr) else lr
    return first
