"""Which method, how many local steps and which step size for a task: measure, race, answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.data.batches import Geometric
from fairlead.describe import counted
from fairlead.errors import FairleadError, unknown
from fairlead.study.diagnose import heats
from fairlead.study.diagnose.answers import Answer, answers
from fairlead.study.diagnose.constants import Constants
from fairlead.study.diagnose.heats import (
    SHARES,
    Say,
    asked_further,
    raced,
    with_second_seed,
    with_the_rest,
)
from fairlead.study.diagnose.link import Link
from fairlead.study.diagnose.race import Race, work_of
from fairlead.study.diagnose.ranges import short
from fairlead.study.diagnose.rule import Candidate, Facts
from fairlead.study.measured import Measured, measured
from fairlead.task.evaluation import recorded
from fairlead.task.task import Task

UNITS = ("rounds", "bits", "hours")
FEW_ROUNDS = 16
"""Rounds of the planned work below which a budget decides little."""


@dataclass
class Diagnosis:
    """What a diagnosis found; printed, it is one page.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=4, dim=5, delta=0.3, gradient=5.0)
    >>> found = fl.diagnose(task, rounds=300, steps=4, target={"distance": 1e-3})
    >>> found.best.family, len(found.answers)
    ('SCAFFOLD with server momentum', 9)
    """

    task: Task
    facts: Facts
    race: Race
    metric: Measured
    target: float | None
    planned: float
    """Gradients of the planned run."""
    constants: list[Constants]
    reasons: list[str]
    """Why configurations were left out."""
    order: list[Candidate]
    """All that was raced, the best first."""
    answers: list[Answer] = field(default_factory=list)

    @property
    def best(self) -> Candidate:
        """The recommendation."""
        return self.order[0]

    def __str__(self) -> str:
        lines = [f"{self.task.name}: {self.best}", ""]
        lines += [f"{k}. {answer}" for k, answer in enumerate(self.answers, 1)]
        return "\n".join([*lines, "", *self.notes(), self.cost_sentence()])

    def notes(self) -> list[str]:
        """What was left out, and on which data settings were chosen."""
        return [f"note: {reason}" for reason in self.reasons]

    def cost_sentence(self) -> str:
        """What the diagnosis itself cost."""
        bits = sum(entry.bits for entry in self.race.bill)
        parts = ", ".join(f"{entry.what} {short(entry.gradients)}" for entry in self.race.bill)
        share = self.race.spent / self.planned
        return (
            f"the diagnosis cost {short(self.race.spent)} gradients ({parts}), {share:.0%} of the planned run, and "
            f"{short(bits / 1e6)} Mbit"
        )

    def bill(self) -> list[dict[str, str]]:
        """What the diagnosis cost, as a table."""
        rows = [*self.race.bill]
        total = (sum(e.gradients for e in rows), sum(e.bits for e in rows))
        named = [(e.what, e.gradients, e.bits) for e in rows] + [("all", *total)]
        return [
            {"part": what, "gradients": f"{g:,}", "Mbit": short(b / 1e6)} for what, g, b in named
        ]

    def lanes(self) -> list[dict[str, str]]:
        """Every configuration that was raced, the best first, as a table."""
        rows = []
        for one in self.order:
            run = self.race.runs[one, 0]
            lost = "diverged" if self.race.is_lost(one) else ""
            value = lost or f"{run.history.last(self.race.score):.4g}"
            seeds = sum((one, seed) in self.race.runs for seed in range(2))
            rows.append({
                "method": one.family, "K": "-" if one.family == "FedSGD" else str(one.steps), "lr": f"{one.lr:g}",
                "rounds": str(run.rounds), "seeds": str(seeds), self.race.score: value,
            })  # fmt: skip
        return rows

    def advice(self) -> dict[str, Any]:
        """The settings of the recommendation for `fairlead run`."""
        return self.best.written

    def write(self, folder: str | Path, settings: Mapping[str, Any] | None = None) -> list[str]:
        """Write advice.toml, diagnosis.txt and diagnosis.html, a page with plots; return their names. settings: those of
        `fairlead run` for the task and the planned run."""
        from fairlead.study.diagnose.files import write

        return write(self, Path(folder), settings or {})


def diagnose(
    task: Task,
    *,
    rounds: int,
    target: Mapping[str, float] | None = None,
    steps: int | Sequence[int] | Geometric | None = None,
    epochs: int | None = None,
    budget: float = 0.1,
    by: str | None = None,
    link: Link | str | None = None,
    measure: bool = True,
    say: Say | None = None,
    **settings: Any,
) -> Diagnosis:
    """Find a method, a number of local steps and a step size for a task, and answer nine questions about them.

    rounds, steps, epochs and the other settings are those of `train`, for the run that is planned.
    target: the metric value to reach, for forecasts.
    budget: the gradients to spend, or, up to one, their share of those of the planned run.
    by: what to save: "rounds", "bits" or "hours", by default rounds, or hours if there is a link.
    link: the slowest client's link as down/up/latency, such as "10Mbit/1Mbit/50ms".
    measure: whether to measure curvature, from which the step sizes start; else they start from 0.1.
    say: is called with the plan before anything runs, and with what is going on.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=4, dim=5, delta=0.3, gradient=5.0)
    >>> found = fl.diagnose(task, rounds=300, steps=4)
    >>> sorted(found.advice())
    ['lr', 'method', 'server', 'steps']
    """
    if task.flip is not None:
        raise FairleadError(
            "diagnose is for minimization: compare methods for saddle problems with fl.compare"
        )
    for name in (
        "callbacks",
        "checkpoints",
        "resume",
        "out",
        "workers",
        "measures",
        "every",
        "average",
        "per_client",
    ):
        if settings.pop(name, None):
            raise FairleadError(f"{name} is for single runs: leave it out of a diagnosis")
    link = Link.parse(link) if isinstance(link, str) else link
    by = by or ("rounds" if link is None else "hours")
    if by not in UNITS:
        raise unknown("thing to save", by, UNITS)
    if by == "hours" and link is None:
        raise FairleadError("hours depend on the link: give one, such as 10Mbit/1Mbit/50ms")
    if not budget > 0:
        raise FairleadError(
            f"the budget is {budget}: give gradients, or a share of the planned run in (0, 1]"
        )
    what = measured(task, None, target, settings, "diagnose")
    goal = None if target is None else target[what.metric]
    facts, gradients = _facts(task, rounds, steps, epochs, settings)
    settings = {**settings, "eval_every": 1, "drift": facts.layers > 1}
    score, lower = _score(task, settings, what)
    whole = budget if budget > 1 else budget * gradients
    race = Race(task, settings, whole, score, lower, by, link)
    reasons: list[str] = []
    tell = say or (lambda text: None)
    tell(_plan(task, facts, race, gradients))
    known: list[Constants] = []
    if measure:
        facts = heats.measure(race, facts, known)
    order = raced(race, facts, reasons, tell)
    with_second_seed(race, facts, order, reasons, tell)
    seen = asked_further(race, order, tell)
    with_the_rest(race, order[0], tell)
    if what.note:
        reasons.append(what.note.removeprefix("note: "))
    found = Diagnosis(task, facts, race, what, goal, gradients, known, reasons, order)
    found.answers = answers(race, facts, order, seen, what, goal)
    return found


def _facts(
    task: Task, rounds: int, steps: Any, epochs: int | None, settings: Mapping[str, Any]
) -> tuple[Facts, float]:
    """What the rule asks for, and the gradients of the planned run."""
    plan, local = work_of(settings, rounds=rounds, steps=steps, epochs=epochs)
    local.check(task.sizes)
    plan.sampler.check(task.clients, rounds)
    some = [len(plan.sampler.cohort(plan.seed, k, task.clients)) for k in range(min(rounds, 3))]
    if isinstance(steps, Geometric):
        taken = 1 / steps.p
    else:
        taken = float(np.mean(local.steps_of(task.sizes)))
    batch = float(np.minimum(local.sizes_of(task.sizes), task.sizes).mean())
    groups = {name.rpartition(".")[0] for name in task.layers}
    cohort = float(np.mean(some))
    each = float(task.sizes.mean()) / batch
    facts = Facts(task.clients, cohort, rounds, max(1, round(taken)), len(groups), each)
    return facts, rounds * cohort * taken * batch


def _score(task: Task, settings: Mapping[str, Any], what: Measured) -> tuple[str, bool]:
    """The column by which configurations are compared: a loss, as it tells them apart earlier than a metric that
    counts; on validation data if there are any, else on the training data, or on test data if that is not recorded."""
    known = recorded(task, settings.get("weighting", "uniform"), settings.get("objective", True))
    for name in ("valid_loss", "loss", "test_loss"):
        if name in known:
            return name, True
    return what.by, what.better == "lower"


def _plan(task: Task, facts: Facts, race: Race, gradients: float) -> str:
    one = race.price(Candidate("FedAvg", facts.steps, 1.0))
    lines = [
        f"planned: {counted(facts.rounds, 'round')} of {facts.steps} local steps on {task.name}, "
        f"{facts.cohort:.3g} of {counted(facts.clients, 'client')} in a round: {short(gradients)} gradients",
        f"budget of the diagnosis: {short(race.budget)} gradients, {race.budget / gradients:.0%} of that, as many as "
        f"{race.budget / one:.3g} of its rounds",
        *(f"  {share:.0%} for {name}" for name, share in SHARES.items()),
    ]
    if race.budget < FEW_ROUNDS * one:
        lines.append(
            f"this decides little: give --budget {FEW_ROUNDS * one:.3g} (budget={FEW_ROUNDS * one:.3g}) or more"
        )
    return "\n".join(lines)
