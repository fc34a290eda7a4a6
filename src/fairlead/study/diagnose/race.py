"""The race: configurations that start from the same state, see the same cohorts and batches, and go on from where they
are. Nothing that was seen is thrown away, and every gradient and bit is counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.data.batches import Batches
from fairlead.run.loop import Plan
from fairlead.run.many import train_many
from fairlead.run.train import Run, planned
from fairlead.study.diagnose.link import Link
from fairlead.study.diagnose.rule import Candidate
from fairlead.task.task import Task

MOST = 100.0
"""A larger ratio of costs is not told from an infinite one."""


@dataclass(frozen=True)
class Entry:
    """One line of the bill: what was spent on what."""

    what: str
    gradients: int
    bits: int


@dataclass
class Race:
    """Runs by configuration and seed.

    settings: of `train`, without rounds, steps, epochs and seed     budget: in gradients
    score: the column to compare by, and whether lower values of it are better
    by: what costs are counted in, "rounds", "bits" or "hours"
    """

    task: Task
    settings: Mapping[str, Any]
    budget: float
    score: str
    lower: bool = True
    by: str = "rounds"
    link: Link | None = None
    runs: dict[tuple[Candidate, int], Run] = field(default_factory=dict)
    bill: list[Entry] = field(default_factory=list)

    # -- what it costs ------------------------------------------------------------------------------

    @property
    def spent(self) -> int:
        """Gradients so far."""
        return sum(entry.gradients for entry in self.bill)

    def price(self, candidate: Candidate) -> float:
        """Gradients per round: of a whole pass for FedSGD, else of the steps' batches."""
        plan, local = work_of(self.settings, steps=candidate.steps)
        ids = plan.sampler.cohort(plan.seed, 0, self.task.clients)
        answering = 1 - plan.dropout if isinstance(plan.dropout, float) else 1.0
        sizes = self.task.sizes
        if candidate.family == "FedSGD":
            return answering * len(ids) * float(sizes.mean())
        batch = np.minimum(local.sizes_of(sizes), sizes)
        return answering * len(ids) * float(batch.mean()) * candidate.steps

    def cost(self, candidates: Sequence[Candidate], rounds: int, seed: int = 0) -> float:
        """Gradients to bring configurations to a round."""
        return sum(
            self.price(one) * max(0, rounds - self.done(one, seed))
            for one in candidates
            if not self.is_lost(one, seed)
        )

    def done(self, candidate: Candidate, seed: int = 0) -> int:
        """The rounds that a configuration has run."""
        run = self.runs.get((candidate, seed))
        return 0 if run is None else run.rounds

    def is_lost(self, candidate: Candidate, seed: int = 0) -> bool:
        """Whether it diverged."""
        run = self.runs.get((candidate, seed))
        return run is not None and run.stopped == "diverged"

    def reachable(self, candidates: Sequence[Candidate], limit: float, seed: int = 0) -> int:
        """The last round that all of them can be brought to for so many gradients."""
        prices = [self.price(one) for one in candidates]
        known = sum(p * self.done(one, seed) for p, one in zip(prices, candidates, strict=True))
        return int((limit + known) / sum(prices)) if prices else 0

    def charge(self, what: str, gradients: int, bits: int) -> None:
        """Enter what was spent, together with earlier entries of the same name."""
        for place, old in enumerate(self.bill):
            if old.what == what:
                self.bill[place] = Entry(what, old.gradients + gradients, old.bits + bits)
                return
        self.bill.append(Entry(what, gradients, bits))

    # -- running ------------------------------------------------------------------------------------

    def advance(
        self, candidates: Sequence[Candidate], rounds: int, seed: int = 0, what: str = "race"
    ) -> None:
        """Bring configurations to a round, each from where it is."""
        due = [c for c in candidates if self.done(c, seed) < rounds and not self.is_lost(c, seed)]
        gradients = bits = 0
        for steps in sorted({one.steps for one in due}):
            some = [one for one in due if one.steps == steps]
            before = [self.runs.get((one, seed)) for one in some]
            found = train_many(
                self.task, [(one.method, seed) for one in some], rounds=rounds, steps=steps,
                resume=before, progress=False, **self.settings,
            )  # fmt: skip
            for one, old, new in zip(some, before, found, strict=True):
                self.runs[one, seed] = new
                gradients += new.counters.gradients - (0 if old is None else old.counters.gradients)
                bits += _bits(new) - (0 if old is None else _bits(old))
        if due:
            self.charge(what, gradients, bits)

    def halve(
        self,
        candidates: Sequence[Candidate],
        share: float,
        what: str,
        first: int = 1,
        keep: int = 2,
        most: int = 2**20,
    ) -> list[Candidate]:
        """Successive halving within a share of the budget: all run for `first` rounds, the better half for twice as
        many, and so on, but at least `keep` of them. Where the budget does not allow the first rounds, the last ones
        are left out. All of them, the best first."""
        limit = min(self.spent + share * self.budget, self.budget)
        left, out = list(candidates), []
        while len(left) > keep and self.spent + self.cost(left, first) > limit:
            left.pop()
        rounds = first
        while True:
            self.advance(left, rounds, what=what)
            left = self.ranked(left)
            size = max(keep, math.ceil(len(left) / 2))
            left, out = left[:size], left[size:] + out
            more = min(2 * rounds, most, self.reachable(left, limit - self.spent))
            if more <= rounds or len(left) < 2:
                return left + out
            rounds = more

    # -- comparing ----------------------------------------------------------------------------------

    def curve(self, candidate: Candidate, seed: int = 0) -> NDArray[np.float64]:
        """The score by round, smaller is better; infinite where it is lost."""
        run = self.runs[candidate, seed]
        values = run.history[self.score] * (1 if self.lower else -1)
        return np.where(np.isfinite(values), values, np.inf)

    def smoothed(self, candidate: Candidate, seed: int = 0) -> NDArray[np.float64]:
        """The score in the mean over the later half of the rounds so far, as single rounds depend on who took part."""
        values = self.curve(candidate, seed)
        total = np.append(0.0, np.cumsum(values))
        last = np.arange(len(values))
        first = last // 2 + (last > 0)
        return (total[last + 1] - total[first]) / (last + 1 - first)

    def costs(self, candidate: Candidate, seed: int = 0) -> NDArray[np.float64]:
        """What it had cost by each round, in the unit of the race."""
        run = self.runs[candidate, seed]
        if self.by == "bits":
            return run.history["bits"]
        each = self.hours_per_round(candidate, seed) if self.by == "hours" else 1.0
        return run.history["round"] * each

    def hours_per_round(self, candidate: Candidate, seed: int = 0) -> float:
        """Hours of a round on the link."""
        run = self.runs[candidate, seed]
        assert self.link is not None
        whole = self.link.seconds(run.ledger, run.counters.steps, self.step_seconds)
        return whole / max(1, run.rounds) / 3600

    @property
    def step_seconds(self) -> float:
        """Seconds of a local step of one client, as measured here."""
        runs = [run for (one, _), run in self.runs.items() if one.family != "FedSGD"]
        work = sum(run.counters.steps * _cohort(run) for run in runs)
        return sum(run.seconds for run in runs) / max(1, work)

    def value(self, candidate: Candidate, cost: float, seed: int = 0) -> float:
        """The score at a cost, between rounds on a line."""
        if self.is_lost(candidate, seed):
            return math.inf
        return float(np.interp(cost, self.costs(candidate, seed), self.smoothed(candidate, seed)))

    def ranked(self, candidates: Sequence[Candidate], seed: int = 0) -> list[Candidate]:
        """The best first, compared at the cost that all of them have reached; those that are lost last."""
        alive = [c for c in candidates if (c, seed) in self.runs and not self.is_lost(c, seed)]
        if not alive:
            return list(candidates)
        common = min(float(self.costs(one, seed)[-1]) for one in alive)
        found = {one: self.value(one, common, seed) for one in alive}
        return sorted(candidates, key=lambda one: found.get(one, math.inf))

    def saving(self, one: Candidate, other: Candidate, seed: int = 0) -> float:
        """How many times the cost of `one` the other needs to get as far as both have been, up to a hundred."""
        idle = [self.is_lost(c, seed) or not self.progresses(c, seed) for c in (one, other)]
        if any(idle):
            return 1.0 if all(idle) else 1 / MOST if idle[0] else MOST
        level = max(float(self.smoothed(c, seed)[-1]) for c in (one, other))
        found = self.cost_to(other, level, seed) / self.cost_to(one, level, seed)
        return min(MOST, max(1 / MOST, found))

    def progresses(self, candidate: Candidate, seed: int = 0) -> bool:
        """Whether it is better than at the start."""
        values = self.smoothed(candidate, seed)
        return bool(values[-1] < values[0])

    def cost_to(self, candidate: Candidate, level: float, seed: int = 0) -> float:
        """The cost at which a score is first reached, between rounds on a line; infinite if it is not."""
        values, costs = self.smoothed(candidate, seed), self.costs(candidate, seed)
        hit = np.flatnonzero(values <= level)
        if not len(hit):
            return math.inf
        k = int(hit[0])
        if k == 0:
            return 0.0
        share = (values[k - 1] - level) / (values[k - 1] - values[k])
        return float(costs[k - 1] + share * (costs[k] - costs[k - 1]))


def work_of(settings: Mapping[str, Any], **more: Any) -> tuple[Plan, Batches]:
    """The plan and the local work of settings of `train`."""
    known = {name: value for name, value in settings.items() if name != "engine"}
    return planned(**{"rounds": 1, **known, **more})


def _bits(run: Run) -> int:
    return run.ledger.up + run.ledger.down


def _cohort(run: Run) -> float:
    """Clients per exchange, in the mean."""
    asked = [len(exchange.clients) for exchange in run.ledger.exchanges if not exchange.measure]
    return float(np.mean(asked)) if asked else 1.0
