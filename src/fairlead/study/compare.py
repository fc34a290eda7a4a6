"""Comparing methods on one task: tune each on the same grid, run several seeds, tabulate and plot."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.core.method import Algorithm
from fairlead.describe import described
from fairlead.errors import FairleadError
from fairlead.figures import inline
from fairlead.figures.plots import comparison
from fairlead.progress import Progress
from fairlead.run.history import History
from fairlead.run.many import pays
from fairlead.run.train import Run
from fairlead.study.folder import ComparisonFolder
from fairlead.study.measured import Measured, measured
from fairlead.study.search import Entry as Entry
from fairlead.study.search import Search
from fairlead.study.search import base_lr as base_lr
from fairlead.study.search import with_value as with_value
from fairlead.task.per_client import CLIENT, PERSONAL
from fairlead.task.task import Task

ZERO_AT_SOLUTION = ("distance", "x_distance", "y_distance", "gap", "residual_norm")


@dataclass(repr=False)
class Comparison:
    """Runs of several methods on one task; a notebook shows the table and the curves.

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

    def __repr__(self) -> str:
        return f"<Comparison: {self._sentence()}>"

    def _sentence(self) -> str:
        best = ", ".join(
            f"{label} {np.mean([run.history.best(self.metric) for run in entry.runs]):.4g}"
            for label, entry in self.entries.items()
        )
        run = next(iter(self.entries.values())).runs[0]
        return f"best {self.metric.replace('_', ' ')} on {run.task.name} in {self.rounds} rounds: {best}"

    def _repr_html_(self) -> str:
        lines = {
            label: (entry.runs[0].history["round"], mean_over(entry.runs, self.metric))
            for label, entry in self.entries.items()
        }
        lines = {label: (rounds[: len(y)], y) for label, (rounds, y) in lines.items()}
        drawn = inline.curves(lines, self.metric, log=self.measured.better == "lower")
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes())
        return inline.block(self._sentence(), drawn, inline.table(self.table()), notes)

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

    def table(self, seconds: bool = True) -> list[dict[str, str]]:
        """One row per method: tuned step size, rounds to the target, best and final metric, its mean and
        deviation over clients if they were recorded, and the time it took unless seconds=False."""
        rows = []
        for label, entry in self.entries.items():
            row = {"method": label, "lr": f"{base_lr(entry.algorithm):.4g}"}
            if self.target is not None:
                name = f"rounds to {self.metric} {self.measured.sign} {self.target:g}"
                row[name] = rounds_in_words(self.rounds_to_target(label), self.rounds)
            runs = [run.history for run in entry.runs]
            row[f"best {self.metric}"] = in_words([h.best(self.metric) for h in runs])
            row[f"final {self.metric}"] = in_words([h.last(self.metric) for h in runs])
            row |= _over_clients(self.metric, runs)
            row["exchanges"] = f"{np.mean([h.last('exchanges') for h in runs]):.0f}"
            row["Mbit"] = f"{np.mean([h.last('bits') for h in runs]) / 1e6:.4g}"
            row["gradients"] = f"{np.mean([h.last('gradients') for h in runs]):,.0f}"
            if seconds:
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

    def to_markdown(self, seconds: bool = True) -> str:
        """The table in Markdown, and what it was tuned on."""
        return markdown(self.table(seconds), self.measured.sentence if self.is_tuned else "")

    def to_csv(self, seconds: bool = True) -> str:
        """The table as CSV."""
        rows, text = self.table(seconds), io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def plot(self, path: str | Path | None = None, x: str = "round") -> Any:
        """The metric and the loss against rounds (or another column), mean ± one std over seeds."""
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
    out: str | Path | ComparisonFolder | None = None,
    overwrite: bool = False,
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
        run's clients, so `workers` above 1 means one run at a time.
    out: a folder in which every run is written as it goes, and the tables at the end. Given again, the same
        comparison does only what is missing, and ends in the same table; overwrite=True starts anew.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=6, gradient=10.0)
    >>> methods = [fl.FedAvg(lr=0.5), fl.Scaffold(lr=0.5)]
    >>> result = fl.compare(task, methods, rounds=20, steps=5, progress=False)
    >>> [row["method"] for row in result.table()]
    ['FedAvg', 'Scaffold']
    """
    named = methods if isinstance(methods, Mapping) else labelled(methods)
    if not named:
        raise FairleadError("there is nothing to compare: give at least one method")
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    what = measured(task, metric, target, settings, "compare")
    goal = None if target is None else target[what.metric]
    seeds = list(seeds)
    for name in ("checkpoints", "resume") if out is not None else ():
        if name in settings:
            raise FairleadError(f"the runs in out have checkpoints of their own: leave out {name}")
    single = [name for name in ("callbacks", "checkpoints", "resume") if name in settings]
    shared = {name: value for name, value in settings.items() if name != "workers"}
    if settings.get("workers") not in (None, 1, "auto"):
        single.append("workers")
    if together and single:
        raise FairleadError(
            f"{single[0]} is only for single runs: leave out {single[0]} or together"
        )
    place = None
    if out is not None:
        place = (
            out if isinstance(out, ComparisonFolder) else ComparisonFolder(out, overwrite=overwrite)
        )
        if together is None and not single and place.known is not None:
            together = bool(place.known.get("together"))
    if together is None:
        together = not single and pays(task, rounds=rounds, **shared)
    used = shared if together else settings
    each = len(grid or [None]) + (0 if together or not grid else 1)
    total = len(named) * each * len(seeds) * rounds
    with contextlib.ExitStack() as stack:
        if place is not None:
            apart = ("callbacks", "workers")  # what does not change the results
            about = {
                "task": task.fingerprint(), "methods": described(named), "rounds": rounds, "seeds": seeds,
                "grid": None if grid is None else list(grid), "metric": what.metric, "target": goal,
                "together": together,
                "settings": described({k: v for k, v in settings.items() if k not in apart}),
            }  # fmt: skip
            stack.enter_context(place.at_work(about, None if goal is None else {what.metric: goal}))
        bar = stack.enter_context(Progress.of(progress, total, "comparison"))
        search = Search(task, rounds, seeds, grid, what, goal, used, bar, place)
        tune = search.at_once if together else search.one_by_one
        entries = {label: tune(label, method) for label, method in named.items()}
        result = Comparison(entries, what, goal, rounds, settings.get("weighting", "uniform"))
        if place is not None:
            place.write(result)
    return result


def labelled(methods: Sequence[Algorithm[Any, Any]]) -> dict[str, Algorithm[Any, Any]]:
    """Methods by class name, numbered if it repeats."""
    named: dict[str, Algorithm[Any, Any]] = {}
    for method in methods:
        name = type(method).__name__
        count = sum(label.split(" ")[0] == name for label in named)
        named[f"{name} {count + 1}" if count else name] = method
    return named


def mean_over(runs: Sequence[Run], metric: str) -> NDArray[np.float64]:
    """The mean of a metric over seeds, up to the shortest run."""
    length = min(len(run.history.rows) for run in runs)
    return np.mean([run.history[metric][:length] for run in runs], axis=0)


def _over_clients(metric: str, runs: Sequence[History]) -> dict[str, str]:
    """The final metric over clients, mean ± std and the worst tenth of them, averaged over seeds."""
    found = {}
    for prefix, worst in ((CLIENT, "worst tenth"), (PERSONAL, "personal worst tenth")):
        stem = prefix + metric
        if all(f"{stem}_mean" in history for history in runs):
            mean, std, least = (
                np.mean([h.last(f"{stem}_{part}") for h in runs])
                for part in ("mean", "std", "worst")
            )
            found |= {stem: f"{mean:.4g} ± {std:.2g}", worst: f"{least:.4g}"}
    return found


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
