"""The results of a tuning."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairlead.errors import FairleadError, unknown
from fairlead.study.compare import base_lr as base_lr
from fairlead.study.compare import in_words as spread
from fairlead.study.compare import markdown
from fairlead.study.compare import rounds_in_words as shown_rounds
from fairlead.study.measured import Measured
from fairlead.study.tuning.objective import Aim, Tried
from fairlead.study.tuning.space import Choices, Method, Space


class Sensitivity(NamedTuple):
    """The best trial with one step size; None for values of missed, stopped or diverged trials."""

    lr: float
    value: float | None
    """The objective value, see `fairlead.study.tuning.objective`."""
    rounds: float | None
    """Mean rounds to the target."""
    final: float | None
    """Mean final metric; if runs stop at the target, the metric there."""
    state: str


@dataclass
class Entry:
    """One method of a tuning."""

    label: str
    method: Method
    """The method as given."""
    space: Space
    trials: list[Tried]

    def lr(self, trial: Tried) -> float:
        """The base step size of a trial."""
        return float(trial.settings.get("lr", base_lr(self.method)))

    def plain(self, trial: Tried) -> dict[str, Any]:
        """A trial's settings as plain values: numbers, strings and booleans."""
        found: dict[str, Any] = {}
        for name, word in trial.settings.items():
            part = self.space.parts[name]
            value = part.values.get(word, word) if isinstance(part, Choices) else word
            found[name] = value if isinstance(value, bool | int | float | str) else word
        return found


@dataclass
class Tuning:
    """The trials of several methods.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(gradient=10.0)
    >>> tuning = fl.tune(task, fl.FedAvg(lr=1.0), rounds=9, lr=[1, 0.3], metric="distance")
    >>> print(tuning.to_markdown(), *tuning.notes())
    | method | lr | best distance | final distance | trials |
    |---|---|---|---|---|
    | FedAvg | 1 | 0.2076 | 0.2076 | 2 |
     note: FedAvg did best with lr 1, an edge of the grid: extend it
    """

    aim: Aim
    rounds: int
    seeds: list[int]
    entries: dict[str, Entry]
    measured: Measured
    """The metric, and what settings were chosen by."""

    def best_trial(self, label: str) -> Tried:
        """The best trial of a method."""
        return min(self._entry(label).trials, key=self.aim.rank)

    def best(self, label: str) -> Method:
        """A method with its best settings."""
        entry, trial = self._entry(label), self.best_trial(label)
        if trial.state == "diverged":
            raise FairleadError(f"every trial of {label} diverged: try smaller step sizes")
        return entry.space.apply(entry.method, trial.settings)

    def sensitivity(self, label: str) -> list[Sensitivity]:
        """The results per step size, ascending, each with its best other settings if these were
        searched too."""
        entry = self._entry(label)
        found: dict[float, Tried] = {}
        for trial in sorted(entry.trials, key=self.aim.rank):
            found.setdefault(entry.lr(trial), trial)
        return [
            Sensitivity(lr, self.value(t), t.mean("rounds"), t.mean("final"), t.state)
            for lr, t in sorted(found.items())
        ]

    def value(self, trial: Tried) -> float | None:
        """A complete trial's objective value; None if it was given up or diverged."""
        return self.aim.value(trial.runs) if trial.state == "complete" else None

    def table(self) -> list[dict[str, str]]:
        """One row per method: its best settings and their results."""
        names = dict.fromkeys(name for e in self.entries.values() for name in e.space.parts)
        return [
            self._row(label, [name for name in names if name != "lr"]) for label in self.entries
        ]

    def _row(self, label: str, others: list[str]) -> dict[str, str]:
        entry, trial, aim = self.entries[label], self.best_trial(label), self.aim
        row = {"method": label, "lr": f"{entry.lr(trial):.4g}"}
        row.update({name: shown(trial.settings.get(name, "")) for name in others})
        runs = trial.runs
        if aim.goal is not None:
            sign = self.measured.sign
            reached = np.array([np.inf if r.rounds is None else r.rounds for r in runs])
            row[f"rounds to {aim.metric} {sign} {aim.goal:g}"] = shown_rounds(reached, self.rounds)
        if aim.by == "bits":
            bits = [r.bits for r in runs if r.bits is not None]
            row["Mbit to target"] = f"{np.mean(bits) / 1e6:.4g}" if len(bits) == len(runs) else ""
        for name in ("best", "final"):
            values = [np.nan if getattr(r, name) is None else getattr(r, name) for r in runs]
            row[f"{name} {aim.metric}"] = spread(values)
        if aim.test is not None:
            row[f"test {aim.test.removeprefix('test_')}"] = spread(
                [np.nan if r.test is None else r.test for r in runs]
            )
        row["trials"] = _counted(entry.trials)
        return row

    def to_markdown(self) -> str:
        """The table in Markdown, and what it was tuned on."""
        return markdown(self.table(), self.measured.sentence)

    def to_csv(self) -> str:
        """All trials as CSV: settings, state, value, and means over seeds."""
        names = dict.fromkeys(
            name for e in self.entries.values() for t in e.trials for name in t.settings
        )
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        means = ("rounds", "bits", "final", "best")
        writer.writerow(["method", "trial", *names, "state", "value", *means, "seeds"])
        for label, entry in self.entries.items():
            for t in entry.trials:
                own = [t.settings.get(name) for name in names]
                numbers = [self.value(t), *(t.mean(name) for name in means)]
                writer.writerow([label, t.number, *own, t.state, *numbers, len(t.runs)])
        return text.getvalue()

    def notes(self) -> list[str]:
        """Notes on the table: the data that settings were chosen on, best values at the edge of a grid, and
        targets that were not reached."""
        found = [self.measured.note] if self.measured.note else []
        for label, entry in self.entries.items():
            trial = self.best_trial(label)
            if trial.state == "diverged":
                found.append(f"note: every trial of {label} diverged: try smaller step sizes")
                continue
            if self.aim.to_target and trial.mean("rounds") is None:
                found.append(
                    f"note: no trial of {label} reached the target with all seeds: the closest one is "
                    "shown"
                )
            for name, part in entry.space.parts.items():
                if isinstance(part, Choices) and part.numeric:
                    tried = {t.settings[name] for t in entry.trials}
                    best = trial.settings[name]
                    if len(tried) > 1 and best and best in (min(tried), max(tried)):
                        found.append(
                            f"note: {label} did best with {name} {best:g}, an edge of the grid: extend it"
                        )
        return found

    def to_json(self) -> dict[str, Any]:
        """The data for reports: rounds to the target and final metric against the step size."""
        methods = {}
        for label, entry in self.entries.items():
            rows = self.sensitivity(label)
            methods[label] = {
                "lr": [row.lr for row in rows],
                "rounds": [row.rounds for row in rows],
                "final": [row.final for row in rows],
                "best": entry.lr(self.best_trial(label)),
            }
        aim, what = self.aim, self.measured
        return {
            "metric": aim.metric, "reported": what.metric, "better": what.better, "on": what.on,
            "target": aim.goal, "objective": aim.by, "methods": methods, "notes": self.notes(),
        }  # fmt: skip

    def plot(self, path: str | Path | None = None) -> Any:
        """Rounds to the target and final metric against the step size."""
        from fairlead.study.tuning.figure import sensitivity

        return sensitivity(self, path)

    def write(
        self,
        folder: str | Path,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        figure: str = "png",
    ) -> list[str]:
        """Write table.md, trials.csv, tuning.json, sensitivity.png and a best-….toml per method; return
        their names. settings: the full settings for `fairlead run`, per method."""
        from fairlead.study.tuning.files import write

        return write(self, Path(folder), settings or {}, figure)

    def _entry(self, label: str) -> Entry:
        if label not in self.entries:
            raise unknown("method", label, self.entries)
        return self.entries[label]


def shown(value: Any) -> str:
    """A setting in a table."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _counted(trials: list[Tried]) -> str:
    """The number of trials, and how many were given up or diverged."""
    counts = {s: sum(t.state == s for t in trials) for s in ("given up", "diverged")}
    details = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{len(trials)} ({details})" if details else str(len(trials))
