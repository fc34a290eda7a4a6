"""The cases of a recipe, and what is stored of each."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from fnmatch import fnmatch
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from fairlead.core.method import Algorithm
from fairlead.describe import described
from fairlead.run.history import History
from fairlead.run.train import Run
from fairlead.task.metrics import reaches
from fairlead.task.task import Task

Label: TypeAlias = str | int | float
AXES = ("round", "communications", "nominal_up", "bits_up", "bits", "gradients")
"""What it costs to reach a target."""
POINTS = 60
"""Points kept of a curve."""


@dataclass(frozen=True)
class Form:
    """How a recipe is carried out.

    readings: how to read what the paper leaves open, by name; a recipe lists those it has.
    """

    quick: bool = False
    seeds: int | None = None
    device: str = "cpu"
    readings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its files: "quick" or "full", with the readings chosen.

        >>> Form(readings={"width": "100"}).name
        'full-width=100'
        """
        chosen = [f"{key}={value}" for key, value in sorted(self.readings.items())]
        return "-".join(["quick" if self.quick else "full", *chosen])


@dataclass(frozen=True)
class Case:
    """One training of a recipe: a method on a task, with one step size and seed; or a computation.

    labels: what it is, for tables; they name it. task: makes the task, given a device. settings: those of
    `train`. after: returns numbers about the finished run. compute: returns numbers instead of a run. Both are ready for JSON.
    """

    labels: Mapping[str, Label]
    task: Callable[..., Task] | None = None
    method: Algorithm[Any, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    compute: Callable[[], Mapping[str, Any]] | None = None
    after: Callable[[Run], Mapping[str, Any]] | None = None

    @property
    def name(self) -> str:
        """Its labels in one word.

        >>> Case({"method": "FedAvg", "lr": 0.1}).name
        'method=FedAvg,lr=0.1'
        """
        text = ",".join(f"{key}={value}" for key, value in self.labels.items())
        return re.sub(r"[^\w.,=+-]+", "_", text)

    @property
    def digest(self) -> str:
        """Changes with any setting that shapes the result, but not with the code: stored results outlive versions."""
        parts = [
            set_apart(p) for p in (self.labels, self.task, self.method, self.settings, self.compute)
        ]
        parts += [set_apart(self.after)] if self.after is not None else []
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def set_apart(thing: Any) -> Any:
    """What a case is made of, ready for JSON: functions by name, records by the fields that are not as by default.

    >>> from functools import partial
    >>> from fairlead.methods import FedAvg
    >>> set_apart([partial(max, 3, key=abs), FedAvg(0.1)])
    [{'max': [3], 'key': 'abs'}, {'FedAvg': {'lr': 0.1}}]
    """
    if isinstance(thing, partial):
        named = {key: set_apart(value) for key, value in thing.keywords.items()}
        return {thing.func.__qualname__: [set_apart(part) for part in thing.args], **named}
    if is_dataclass(thing) and not isinstance(thing, type):
        plain = {f.name: f.default for f in fields(thing) if f.default is not MISSING}
        plain |= {
            f.name: f.default_factory() for f in fields(thing) if f.default_factory is not MISSING
        }
        own = {f.name: getattr(thing, f.name) for f in fields(thing)}
        chosen = {name: v for name, v in own.items() if name not in plain or plain[name] != v}
        return {type(thing).__qualname__: set_apart(chosen)}
    if isinstance(thing, Mapping):
        return {str(key): set_apart(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple | range):
        return [set_apart(part) for part in thing]
    if callable(thing) and hasattr(thing, "__qualname__"):
        return thing.__qualname__
    return described(thing)


@dataclass(frozen=True)
class Result:
    """What is stored of a finished case.

    end: the last row of the history. best: the best value of each metric with a target, or of the first one.
    reach: per metric and target, what it took to reach it, in the order of AXES. curve: columns of the history, thinned.
    """

    labels: Mapping[str, Label]
    digest: str
    stopped: str = ""
    seconds: float = 0.0
    end: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, float] = field(default_factory=dict)
    reach: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    curve: Mapping[str, Sequence[float]] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    engine: str = ""

    @classmethod
    def of(
        cls,
        case: Case,
        run: Run,
        targets: Mapping[str, Sequence[float]],
        columns: Sequence[str],
        lasting: bool = False,
    ) -> Result:
        """Of a finished run. lasting: a target is reached when it is not left again."""
        h = run.history
        reach = {
            metric: {
                f"{goal:g}": found for goal in goals if (found := _cost(h, metric, goal, lasting))
            }
            for metric, goals in targets.items()
        }
        kept = [name for name in h if name in AXES or any(fnmatch(name, c) for c in columns)]
        return cls(
            case.labels, case.digest, run.stopped, round(run.seconds, 3),
            {name: _short(value) for name, value in h.rows[-1].items()},
            {m: _short(h.best(m)) for m in {*targets, *columns} if m in h and h.direction(m)},
            reach, {name: thinned(h[name]) for name in kept},
            case.after(run) if case.after is not None else {}, run.engine,
        )  # fmt: skip

    def line(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def read(cls, line: str) -> Result:
        """From what `line` gave."""
        return cls(**json.loads(line))

    def cost(self, metric: str, goal: float, axis: str = "round") -> float:
        """What it took to reach a target; infinite if it was not reached."""
        found = self.reach.get(metric, {}).get(f"{goal:g}")
        return math.inf if found is None else found[AXES.index(axis)]


def _cost(h: History, metric: str, goal: float, lasting: bool) -> list[float]:
    """What it took to reach a target: nothing if it was not reached."""
    way = h.direction(metric)
    if metric not in h or way is None:
        return []
    good = reaches(h[metric], goal, way)
    bad = np.flatnonzero(~good)
    at = (int(bad[-1]) + 1 if len(bad) else 0) if lasting else int(good.argmax())
    return [_short(h[axis][at]) for axis in AXES] if at < len(good) and good[at] else []


def _short(value: float) -> float:
    """Seven digits, which is what float32 has."""
    return float(f"{value:.7g}") if math.isfinite(value) else value


def thinned(values: Sequence[float] | np.ndarray[Any, Any]) -> list[float]:
    """At most POINTS values, half of them evenly spaced and half of them early ones, with the first and the last.

    >>> thinned(range(3))
    [0.0, 1.0, 2.0]
    """
    last, half = len(values) - 1, POINTS // 2
    even, early = np.linspace(0, last, half), np.geomspace(1, last + 1, half) - 1
    places = np.unique(np.concatenate([even, early]).round().astype(int))
    places = np.arange(last + 1) if last < POINTS else places
    return [_short(float(v)) for v in np.asarray(values, float)[places]]


class Results(Sequence[Result]):
    """Results, to be picked by their labels."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = list(results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: Any) -> Any:
        return self.results[index]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def where(self, **labels: Label) -> Results:
        """Those with these labels."""
        return Results([r for r in self if all(r.labels.get(k) == v for k, v in labels.items())])

    def by(self, label: str) -> dict[Any, Results]:
        """In groups of equal label, in the order in which they come."""
        values = dict.fromkeys(r.labels[label] for r in self if label in r.labels)
        return {value: self.where(**{label: value}) for value in values}

    def costs(self, metric: str, goal: float, axis: str = "round") -> list[float]:
        """What each took to reach a target."""
        return [r.cost(metric, goal, axis) for r in self]

    def mean(self, value: Callable[[Result], float]) -> float:
        """The mean of a number over the results."""
        return float(np.mean([value(r) for r in self])) if self.results else math.nan


@dataclass(frozen=True)
class Tuned:
    """The results of the best step size. edge: it is the smallest or largest that was tried."""

    lr: float
    results: Results
    edge: bool


def tuned(
    results: Results, metric: str, goal: float | None = None, higher: bool = True, over: str = "lr"
) -> Tuned:
    """The step size that reaches a target in the fewest rounds on average, or the best value where none does or
    there is no target."""
    sign = -1.0 if higher else 1.0

    def rank(some: Results) -> tuple[float, float]:
        worst = math.inf
        value = some.mean(lambda r: sign * r.best.get(metric, sign * worst))
        rounds = 0.0 if goal is None else float(np.mean(some.costs(metric, goal)))
        return rounds, worst if math.isnan(value) else value

    groups = results.by(over)
    best = min(groups, key=lambda lr: rank(groups[lr]))
    return Tuned(best, groups[best], len(groups) > 2 and best in (min(groups), max(groups)))
