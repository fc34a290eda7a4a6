"""Comparing methods on one task: tune each on the same grid, run several seeds, tabulate and plot."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.core.method import Algorithm
from fairlead.errors import FairleadError
from fairlead.progress import Progress
from fairlead.run.many import pays, train_many
from fairlead.run.train import Run, train
from fairlead.schedules import Rate, Schedule, scaled
from fairlead.study.measured import Measured, measured
from fairlead.task.task import Task

ZERO_AT_SOLUTION = ("distance", "x_distance", "y_distance", "gap", "residual_norm")


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
class Comparison:
    """Runs of several methods on one task.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(gradient=10.0)
    >>> methods = {"FedAvg": fl.FedAvg(lr=0.5), "SCAFFOLD": fl.Scaffold(lr=0.5)}
    >>> result = fl.compare(task, methods, rounds=150, steps=5, target={"distance": 1e-3})
    >>> result.rounds_to_target("FedAvg"), bool(result.rounds_to_target("SCAFFOLD")[0] < 100)
    (array([inf]), True)
    """

    entries: dict[str, Entry]
    measured: Measured
    """The metric, and what step sizes were chosen by."""
    target: float | None
    rounds: int
    weighting: str | Sequence[float] = "uniform"

    @property
    def metric(self) -> str:
        """The metric that methods are compared by."""
        return self.measured.metric

    @property
    def is_tuned(self) -> bool:
        """Whether step sizes were chosen among several."""
        return any(len(entry.tuning) > 1 for entry in self.entries.values())

    def rounds_to_target(self, label: str) -> NDArray[np.float64]:
        """Each seed's rounds to the target, infinite if it was not reached."""
        if self.target is None:
            raise FairleadError("the comparison has no target: pass compare(target=…)")
        reached = [run.rounds_to(self.metric, self.target) for run in self.entries[label].runs]
        return np.array([math.inf if r is None else r for r in reached])

    def table(self) -> list[dict[str, str]]:
        """One row per method: tuned step size, rounds to the target, best and final metric."""
        rows = []
        for label, entry in self.entries.items():
            row = {"method": label, "lr": f"{base_lr(entry.algorithm):.4g}"}
            if self.target is not None:
                name = f"rounds to {self.metric} {self.measured.sign} {self.target:g}"
                row[name] = rounds_in_words(self.rounds_to_target(label), self.rounds)
            runs = [run.history for run in entry.runs]
            row[f"best {self.metric}"] = in_words([h.best(self.metric) for h in runs])
            row[f"final {self.metric}"] = in_words([h.last(self.metric) for h in runs])
            row["exchanges"] = f"{np.mean([h.last('exchanges') for h in runs]):.0f}"
            row["Mbit"] = f"{np.mean([h.last('bits') for h in runs]) / 1e6:.4g}"
            row["gradients"] = f"{np.mean([h.last('gradients') for h in runs]):,.0f}"
            row["seconds"] = f"{np.mean([run.seconds for run in entry.runs]):.2f}"
            rows.append(row)
        return rows

    def notes(self) -> list[str]:
        """Notes on the table: the metric at the solution, if known, the data that step sizes were chosen on, and
        those at the edge of the grid."""
        task = next(iter(self.entries.values())).runs[0].task
        found = []
        if task.optimum is not None and self.metric not in ZERO_AT_SOLUTION:
            best = task.evaluate(task.optimum, weighting=self.weighting)[self.metric]
            found.append(f"note: {self.metric} is {best:.4g} at the centralised solution")
        if self.is_tuned and self.measured.note:
            found.append(self.measured.note)
        for label, entry in self.entries.items():
            lr, tried = base_lr(entry.algorithm), entry.tuning
            if len(tried) > 1 and lr in (min(tried), max(tried)):
                found.append(f"note: {label} did best with {lr:g}, an edge of the grid: extend it")
        return found

    @property
    def goal(self) -> dict[str, float] | None:
        """The target in the form for `train`."""
        return None if self.target is None else {self.metric: self.target}

    def tuning(self) -> dict[str, Any]:
        """The step sizes tried, with rounds to the target and final metric, ready for JSON."""
        methods = {}
        for label, entry in self.entries.items():
            tried = sorted(entry.tuning)
            rounds = [entry.tuning[lr] if self.target is not None else math.nan for lr in tried]
            methods[label] = {
                "lr": tried, "rounds": list(map(_finite, rounds)),
                "final": [_finite(entry.finals[lr]) for lr in tried], "best": base_lr(entry.algorithm),
            }  # fmt: skip
        what = self.measured
        return {
            "metric": what.by,
            "reported": what.metric,
            "better": what.better,
            "on": what.on,
            "target": self.target,
            "objective": "rounds" if self.target is not None else "final",
            "methods": methods,
            "notes": self.notes(),
        }

    def to_markdown(self) -> str:
        """The table in Markdown, and what it was tuned on."""
        return markdown(self.table(), self.measured.sentence if self.is_tuned else "")

    def to_csv(self) -> str:
        """The table as CSV."""
        rows, text = self.table(), io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def plot(self, path: str | Path | None = None, x: str = "round") -> Any:
        """The metric and the loss against rounds (or another column), mean ± one std over seeds."""
        from fairlead.report.plots import comparison

        return comparison(self, path, x)


def compare(
    task: Task,
    methods: Mapping[str, Algorithm[Any, Any]] | Sequence[Algorithm[Any, Any]],
    *,
    rounds: int,
    seeds: int | Sequence[int] = 1,
    grid: Sequence[float] | None = None,
    target: Mapping[str, float] | None = None,
    metric: str | None = None,
    progress: bool | None = None,
    together: bool | None = None,
    **settings: Any,
) -> Comparison:
    """Run several methods with the same seeds and settings (those of `train`).

    grid: step sizes to try for every method, over all seeds; the one that reaches the target in
        the fewest rounds on average is chosen, or without a target (or if none reaches it) the one
        with the best final metric. If the task has validation data (`valid`), that counts, and the test set
        is only for the table.
    metric: what to compare; by default the target's, else accuracy, the distance or the loss.
    together: whether all step sizes and seeds of a method run at once, each to the end (see
        `fl.train_many`); by default on a GPU and for small problems. Otherwise they run one by one,
        and a step size is stopped once it needs more rounds than the best so far. Workers share one
        run's clients, so several workers mean one run at a time.
    """
    named = methods if isinstance(methods, Mapping) else labelled(methods)
    if not named:
        raise FairleadError("there is nothing to compare: give at least one method")
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    what = measured(task, metric, target, settings, "compare")
    goal = None if target is None else target[what.metric]
    single = [name for name in ("callbacks", "checkpoints", "out", "resume") if name in settings]
    shared = {name: value for name, value in settings.items() if name != "workers"}
    if settings.get("workers") not in (None, 1, "auto"):
        single.append("workers")
    if together and single:
        raise FairleadError(
            f"{single[0]} is only for single runs: leave out {single[0]} or together"
        )
    if together is None:
        together = not single and pays(task, rounds=rounds, **shared)
    used = shared if together else settings
    search = _Search(task, rounds, seeds, grid, what, goal, progress, used)
    tune = search.at_once if together else search.one_by_one
    entries = {label: tune(label, method) for label, method in named.items()}
    return Comparison(entries, what, goal, rounds, settings.get("weighting", "uniform"))


@dataclass(frozen=True)
class _Search:
    """How every method of a comparison is tuned and run."""

    task: Task
    rounds: int
    seeds: Sequence[int]
    grid: Sequence[float] | None
    measured: Measured
    goal: float | None
    progress: bool | None
    settings: dict[str, Any]

    def at_once(self, label: str, method: Any) -> Entry:
        """Run all step sizes and seeds of a method together; the result is the best step size's runs."""
        task, rounds, seeds, grid = self.task, self.rounds, self.seeds, self.grid
        metric, goal = self.measured.by, self.goal
        tuned = {lr: method.with_lr(with_value(method.lr, lr)) for lr in grid or ()}
        tuned = tuned or {base_lr(method): method}
        pairs = [(lr, seed) for lr in tuned for seed in seeds]
        bar = Progress.of(self.progress, rounds * len(pairs), label)
        work = [(tuned[lr], seed) for lr, seed in pairs]
        found = train_many(task, work, rounds=rounds, progress=bar, **self.settings)
        runs = {
            lr: [r for (at, _), r in zip(pairs, found, strict=True) if at == lr] for lr in tuned
        }
        sign = -1 if self.measured.better == "higher" else 1
        used: dict[float, float] = {}
        finals: dict[float, float] = {}
        for lr, mine in runs.items():
            reached = [None if goal is None else run.rounds_to(metric, goal) for run in mine]
            each = [math.inf if k is None else k for k in reached]
            used[lr] = 0.0 if goal is None else float(np.mean(each))
            diverged = any(run.stopped == "diverged" for run in mine)
            last = [run.history.last(metric) for run in mine]
            finals[lr] = sign * math.inf if diverged else float(np.mean(last))
        best = min(tuned, key=lambda lr: (used[lr], sign * finals[lr]))
        tried = bool(grid)
        return Entry(label, tuned[best], runs[best], used if tried else {}, finals if tried else {})

    def one_by_one(self, label: str, method: Any) -> Entry:
        """Tune over the grid, then train with every seed."""
        task, rounds, seeds, grid = self.task, self.rounds, self.seeds, self.grid
        total = (len(grid or []) + 1) * len(seeds)
        with Progress.of(self.progress, total, label) as bar:
            done = 0

            def one(method: Algorithm[Any, Any], limit: int, **more: Any) -> Run:
                nonlocal done
                run = train(task, method, rounds=limit, progress=False, **{**self.settings, **more})
                done += 1
                bar.update(
                    min(done, total), run.history.rows[-1], f"{label}, lr {base_lr(method):g}"
                )
                return run

            tuning: dict[float, float] = {}
            finals: dict[float, float] = {}
            if grid:
                method, tuning, finals = _tuned(
                    one, method, grid, self.measured, self.goal, rounds, seeds
                )
            runs = [one(method, rounds, seed=seed) for seed in seeds]
        return Entry(label, method, runs, tuning, finals)


def _tuned(
    one: Any,
    method: Any,
    grid: Sequence[float],
    measured: Measured,
    goal: float | None,
    rounds: int,
    seeds: Sequence[int],
) -> tuple[Algorithm[Any, Any], dict[float, float], dict[float, float]]:
    """The method with the best step size, and each step size's mean rounds and final metric."""
    metric, sign = measured.by, -1 if measured.better == "higher" else 1
    stop = {} if goal is None else {"target": {metric: goal}}
    tried: dict[float, tuple[float, float]] = {}
    least = float(rounds * len(seeds))  # a step size is stopped once it needs more
    for lr in grid:
        candidate = method.with_lr(with_value(method.lr, lr))
        used, finals = 0.0, []
        for seed in seeds:
            limit = int(min(rounds, least - used))
            run = one(candidate, limit, seed=seed, **stop) if limit > 0 else None
            reached = run.rounds_to(metric, goal) if run and goal is not None else None
            if goal is not None:
                used += math.inf if reached is None else reached
            if run is None or run.stopped == "diverged":
                finals.append(math.inf)
            else:
                finals.append(sign * run.history.last(metric))
            if goal is not None and reached is None:
                break
        tried[lr] = (used, float(np.mean(finals)))
        least = min(least, used) if goal is not None else least
    best = min(tried, key=lambda lr: tried[lr])
    means = {lr: used / len(seeds) for lr, (used, _) in tried.items()}
    finals = {lr: sign * final for lr, (_, final) in tried.items()}
    return method.with_lr(with_value(method.lr, best)), means, finals


def with_value(rate: Rate, lr: float) -> Rate:
    """The same schedule with another base step size."""
    return scaled(rate, lr / rate.lr) if isinstance(rate, Schedule) else lr


def labelled(methods: Sequence[Algorithm[Any, Any]]) -> dict[str, Algorithm[Any, Any]]:
    """Methods by class name, numbered if it repeats."""
    named: dict[str, Algorithm[Any, Any]] = {}
    for method in methods:
        name = type(method).__name__
        count = sum(label.split(" ")[0] == name for label in named)
        named[f"{name} {count + 1}" if count else name] = method
    return named


def base_lr(method: Any) -> float:
    """The base step size; for a function its first value."""
    lr: Any = getattr(method.lr, "lr", method.lr)
    first: Any = lr(0) if callable(lr) else lr
    return first


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def markdown(rows: list[dict[str, str]], sentence: str = "") -> str:
    """Rows as a Markdown table, with a sentence below it."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    return "\n".join([*lines, "", sentence] if sentence else lines) + "\n"


def in_words(values: list[float]) -> str:
    mean, std = float(np.mean(values)), float(np.std(values))
    return f"{mean:.4g} ± {std:.2g}" if len(values) > 1 else f"{mean:.4g}"


def rounds_in_words(values: NDArray[np.float64], limit: int) -> str:
    """Mean ± std if every seed reached the target; else the number that did."""
    if np.isfinite(values).all():
        return (
            f"{values.mean():.1f} ± {values.std():.1f}" if len(values) > 1 else f"{values[0]:.0f}"
        )
    reached = int(np.isfinite(values).sum())
    return (
        f"{limit}+" if reached == 0 else f"{limit}+ ({reached} of {len(values)} seeds reached it)"
    )
