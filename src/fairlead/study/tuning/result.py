"""What a tuning came to."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairlead.study.compare import base_lr as base_lr
from fairlead.study.compare import in_words as spread
from fairlead.study.compare import rounds_in_words as shown_rounds
from fairlead.errors import FairleadError, unknown
from fairlead.task.losses import better_larger
from fairlead.study.tuning.space import Choices, Method, Space
from fairlead.study.tuning.objective import Aim, Tried


class Sensitivity(NamedTuple):
    """The best trial with one step size; None for what was missed, given up or lost."""

    lr: float
    value: float | None
    """What it is worth, see `fairlead.study.tuning.objective`."""
    rounds: float | None
    """Mean rounds to the target."""
    final: float | None
    """Mean final metric; where runs end at the target, that is there."""
    state: str


@dataclass
class Entry:
    """One method of a tuning."""

    label: str
    method: Method
    """The method as it was given."""
    space: Space
    trials: list[Tried]

    def lr(self, trial: Tried) -> float:
        """The base step size of a trial."""
        return float(trial.settings.get("lr", base_lr(self.method)))

    def plain(self, trial: Tried) -> dict[str, Any]:
        """The settings of a trial as files take them: numbers, words, true and false."""
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
    >>> tuning = fl.tuning.tune(task, fl.FedAvg(lr=1.0), rounds=9, lr=[1, 0.3], metric="distance")
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

    def best_trial(self, label: str) -> Tried:
        """The trial of a method that came out best."""
        return min(self._entry(label).trials, key=self.aim.rank)

    def best(self, label: str) -> Method:
        """A method with its best settings."""
        entry, trial = self._entry(label), self.best_trial(label)
        if trial.state == "diverged":
            raise FairleadError(f"every trial of {label} diverged: take smaller step sizes")
        return entry.space.made(entry.method, trial.settings)

    def sensitivity(self, label: str) -> list[Sensitivity]:
        """What each step size came to, ascending; with its best other settings, if these were
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
        """What a finished trial is worth; None if it was given up or diverged."""
        return self.aim.value(trial.runs) if trial.state == "complete" else None

    def table(self) -> list[dict[str, str]]:
        """One row a method: its best settings, and what they came to."""
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
            sign = "≥" if better_larger(aim.metric) else "≤"
            reached = np.array([np.inf if r.rounds is None else r.rounds for r in runs])
            row[f"rounds to {aim.metric} {sign} {aim.goal:g}"] = shown_rounds(reached, self.rounds)
        if aim.by == "bits":
            bits = [r.bits for r in runs if r.bits is not None]
            row["Mbit to there"] = f"{np.mean(bits) / 1e6:.4g}" if len(bits) == len(runs) else ""
        for name in ("best", "final"):
            values = [np.nan if getattr(r, name) is None else getattr(r, name) for r in runs]
            row[f"{name} {aim.metric}"] = spread(values)
        row["trials"] = _counted(entry.trials)
        return row

    def to_markdown(self) -> str:
        """The table in Markdown."""
        rows = self.table()
        lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
        return "\n".join(lines + ["| " + " | ".join(row.values()) + " |" for row in rows]) + "\n"

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
        """What a reader of the table should know: winners at an edge of their grid, targets that
        nothing reached."""
        found = []
        for label, entry in self.entries.items():
            trial = self.best_trial(label)
            if trial.state == "diverged":
                found.append(f"note: every trial of {label} diverged: take smaller step sizes")
                continue
            if self.aim.to_target and trial.mean("rounds") is None:
                found.append(
                    f"note: {label} reached the target with all seeds in no trial: the one that came "
                    "nearest is shown"
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
        """What reports read: rounds to the target and final metric against the step size."""
        methods = {}
        for label, entry in self.entries.items():
            rows = self.sensitivity(label)
            methods[label] = {
                "lr": [row.lr for row in rows],
                "rounds": [row.rounds for row in rows],
                "final": [row.final for row in rows],
                "best": entry.lr(self.best_trial(label)),
            }
        aim = self.aim
        return {"metric": aim.metric, "target": aim.goal, "objective": aim.by, "methods": methods}

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
        """Write table.md, trials.csv, tuning.json, sensitivity.png and a best-….toml for each method;
        returns their names. settings: what `fairlead run` takes for each method, in full."""
        from fairlead.study.tuning.files import write

        return write(self, Path(folder), settings or {}, figure)

    def _entry(self, label: str) -> Entry:
        if label not in self.entries:
            raise unknown("method", label, self.entries)
        return self.entries[label]


def shown(value: Any) -> str:
    """A setting as a table shows it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _counted(trials: list[Tried]) -> str:
    """How many trials there were, and how many of them came to nothing."""
    lost = {s: sum(t.state == s for t in trials) for s in ("given up", "diverged")}
    said = ", ".join(f"{count} {state}" for state, count in lost.items() if count)
    return f"{len(trials)} ({said})" if said else str(len(trials))
