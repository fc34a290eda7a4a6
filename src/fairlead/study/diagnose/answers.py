"""The nine answers, each with the number behind it and its range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.run.train import Run
from fairlead.study.diagnose.forecast import rounds_to
from fairlead.study.diagnose.race import MOST, Race
from fairlead.study.diagnose.ranges import Range, of_ratios, of_seeds, short
from fairlead.study.diagnose.rule import LADDER, LARGE, Candidate, Facts
from fairlead.study.measured import Measured

UNCLEAR = "no clear winner"
COMPRESSED = "FedAvg in 4 bits"


@dataclass(frozen=True)
class Answer:
    """An answer in words, and its number with a range where there is one.

    clear: whether the range settles the question
    """

    question: str
    words: str
    number: Range | None = None
    clear: bool = True
    rows: tuple[dict[str, str], ...] = ()
    """A table, for the forecasts."""

    def __str__(self) -> str:
        return f"{self.question} {self.words}"


@dataclass(frozen=True)
class Seen:
    """A configuration with half of the clients, and with all data in one place, if they were run."""

    one: Candidate | None = None
    few: Run | None = None
    central: Run | None = None


def answers(
    race: Race, facts: Facts, order: Sequence[Candidate], seen: Seen, what: Measured, target: float | None
) -> list[Answer]:  # fmt: skip
    """The answers to the nine questions."""
    alive = [one for one in order if not race.is_lost(one)]
    return [
        _local_steps(race, alive),
        _method(race, alive),
        _steps(race, alive),
        _step_size(race, alive),
        _compressor(race, alive),
        _forecast(race, facts, alive, what, target),
        _central(race, seen, what),
        _layers(race, facts, alive),
        _few_clients(race, alive[0], seen),
    ]


def best_of(
    order: Sequence[Candidate], *families: str, steps: int | None = None
) -> Candidate | None:
    """The best configuration of some methods."""
    fits = (o for o in order if o.family in families and steps in (None, o.steps))
    return next(fits, None)


def ratio(race: Race, one: Candidate, other: Candidate) -> Range:
    """How many times the cost of one the other needs to get as far, over the seeds that both ran."""
    seeds = [k for k in (0, 1) if (one, k) in race.runs and (other, k) in race.runs]
    return of_ratios([race.saving(one, other, k) for k in seeds])


def _verdict(found: Range) -> bool:
    return found.low > 1 or found.high < 1


def _needs(race: Race, found: Range, verb: str = "needs") -> str:
    """What a configuration needs to get as far as another; the largest ratio stands for one that came nowhere."""
    if found.value >= MOST:
        return "made no progress yet"
    return f"{verb} {found} times the {race.by}"


def _local_steps(race: Race, order: Sequence[Candidate]) -> Answer:
    question = "Do local steps pay against one large-batch step per round?"
    sgd = best_of(order, *LARGE)
    local = next((one for one in order if one.family not in LARGE), None)
    if sgd is None or local is None:
        return Answer(question, "Not known: none was raced, or it diverged.", clear=False)
    found = ratio(race, local, sgd)
    word = (
        "Yes" if found.low > 1 else "No" if found.high < 1 else f"{UNCLEAR[0].upper()}{UNCLEAR[1:]}"
    )
    return Answer(
        question, f"{word}: to get as far as {local}, {sgd.family} {_needs(race, found)}.", found,
        _verdict(found),
    )  # fmt: skip


def _method(race: Race, order: Sequence[Candidate]) -> Answer:
    question, best = "Which method?", order[0]
    other = next((one for one in order if one.family != best.family), None)
    if other is None:
        return Answer(question, f"{best.family}: no other was raced.", clear=False)
    found = ratio(race, best, other)
    clear = found.low > 1
    tie = "" if clear else f", {UNCLEAR} between the two"
    return Answer(
        question, f"{best.family}{tie}: {other.family}, the next best, {_needs(race, found)}.", found, clear
    )  # fmt: skip


def _steps(race: Race, order: Sequence[Candidate]) -> Answer:
    question, best = "How many local steps?", order[0]
    if best.family in LARGE:
        return Answer(question, "One large-batch step per round.", Range(1, 1, 1))
    other = next((o for o in order if o.family == best.family and o.steps != best.steps), None)
    if other is None:
        return Answer(
            question, f"{best.steps}; no other number was raced.", Range(best.steps, 1, math.inf), clear=False
        )  # fmt: skip
    found = ratio(race, best, other)
    clear = found.low > 1
    ends = (best.steps, best.steps) if clear else sorted((best.steps, other.steps))
    tie = "" if clear else f", {UNCLEAR} between the two"
    return Answer(
        question, f"{best.steps}{tie}: {other.steps} {_needs(race, found, 'need')}.",
        Range(best.steps, *ends), clear,
    )  # fmt: skip


def _step_size(race: Race, order: Sequence[Candidate]) -> Answer:
    best = order[0]
    tried = sorted({o.lr for o in order if o.family == best.family and o.steps == best.steps})
    low, high = best.lr / math.sqrt(LADDER), best.lr * math.sqrt(LADDER)
    near = [lr for lr in tried if lr != best.lr]
    if near:
        all_tried = ", ".join(f"{lr:g}" for lr in tried)
        words = f"lr {best.lr:g}, the best of {all_tried}: expect the optimum between {low:.2g} and {high:.2g}."
    else:
        low, high = best.lr / LADDER, best.lr * LADDER
        words = f"lr {best.lr:g}, from FedAvg's; no other was raced with this method, so try {low:.2g} and {high:.2g} too."
    if "server" in best.written:
        momentum = best.written["server"].partition(":")[2] or "0.9"
        words += f" The server's momentum is {momentum}, with a step of 1."
    return Answer("Which step size?", words, Range(best.lr, low, high), bool(near))


def _compressor(race: Race, order: Sequence[Candidate]) -> Answer:
    question = "Which compressor?"
    packed = best_of(order, COMPRESSED)
    plain = best_of(order, "FedAvg", steps=packed.steps) if packed else None
    if packed is None or plain is None:
        return Answer(question, "Not known: no compressed method was raced.", clear=False)
    bits = Race(race.task, race.settings, 0, race.score, race.lower, "bits", runs=race.runs)
    found = ratio(bits, packed, plain)
    up = [race.runs[one, 0].ledger.up / race.done(one) for one in (plain, packed)]
    start = f"4 bits (qsgd:4) send {up[0] / up[1]:.3g} times fewer bits up"
    if found.low > 1:
        words = f"{start}, and FedAvg without them needs {found} times the bits in all: use them where bits count."
    elif found.high < 1:
        words = f"None: {start}, but FedAvg needs only {found} times the bits in all without them."
    else:
        words = f"{UNCLEAR[0].upper()}{UNCLEAR[1:]}: {start}; FedAvg without them needs {found} times the bits in all."
    return Answer(question, words, found, _verdict(found))


def _forecast(
    race: Race, facts: Facts, order: Sequence[Candidate], what: Measured, target: float | None
) -> Answer:
    question = "How many rounds, bits, gradients and hours?"
    named = {
        "recommended": order[0],
        "FedAvg": best_of(order, "FedAvg"),
        "large batch": best_of(order, *LARGE),
    }
    rows, first = [], None
    for name, one in named.items():
        if one is None:
            continue
        run = race.runs[one, 0]
        if target is None:
            rounds = Range(facts.rounds, facts.rounds, facts.rounds)
        else:
            seeds = [k for k in (0, 1) if (one, k) in race.runs]
            curves = [race.runs[one, k].history[what.by] for k in seeds]
            rounds = rounds_to(curves, target, what.better, 100.0 * facts.rounds)
        first = first or rounds
        each = {
            "Mbit up": run.ledger.up / 1e6, "Mbit": (run.ledger.up + run.ledger.down) / 1e6,
            "gradients": run.counters.gradients,
        }  # fmt: skip
        row = {"": name if name == "recommended" else one.family, "rounds": str(rounds)}
        row |= {column: str(rounds.times(total / run.rounds)) for column, total in each.items()}
        if race.link is not None:
            row["hours"] = str(rounds.times(race.hours_per_round(one)))
        rows.append(row)
    assert first is not None
    goal = (
        f"the planned {facts.rounds} rounds"
        if target is None
        else f"{what.metric} {what.sign} {target:g}"
    )
    missing = "; give --link for hours" if race.link is None else ""
    words = f"To {goal}: {first} rounds{missing}."
    return Answer(question, words, first, math.isfinite(first.high), tuple(rows))


def _central(race: Race, seen: Seen, what: Measured) -> Answer:
    question = "How far below centralised training?"
    if seen.one is None or seen.central is None or seen.central.stopped == "diverged":
        why = (
            "the budget did not allow for it"
            if seen.central is None
            else "with this step size it diverges"
        )
        return Answer(question, f"Not known: {why}.", clear=False)
    rounds = seen.central.rounds
    weighting = race.settings.get("weighting", "uniform")
    there = float(
        race.task.evaluate(seen.central.x, seen.central.session.buffers, weighting=weighting)[
            what.by
        ]
    )
    sign = 1.0 if what.better == "higher" else -1.0
    gaps = []
    for k in (0, 1):
        run = race.runs.get((seen.one, k))
        if run is not None and run.rounds >= rounds:
            gaps.append(sign * (there - float(run.history[what.by][rounds])))
    found = of_seeds(gaps)
    found = Range(found.value, min(found.low, 0.0), found.high)
    side = "below" if found.value > 0 else "not below"
    words = (
        f"After {rounds} rounds of {seen.one}, {what.by} is {short(abs(found.value))} {side} that of the same steps on all data in one "
        f"place, {there:.4g} (range {short(found.low)} … {short(found.high)})."
    )
    return Answer(question, words, found, found.low > 0 or found.high < 0)


def _layers(race: Race, facts: Facts, order: Sequence[Candidate]) -> Answer:
    question, one = "Which layers differ?", best_of(order, "FedAvg")
    if facts.layers < 2 or one is None:
        return Answer(
            question,
            "The model has one layer." if facts.layers < 2 else "Not known: FedAvg diverged.",
        )
    by_layer = drifts([run for (c, _), run in race.runs.items() if c == one])
    if not by_layer:
        return Answer(question, "Not known: drift was not recorded.", clear=False)
    ranked = sorted(by_layer.items(), key=lambda item: -item[1].value)
    (top, most), (_, least) = ranked[0], ranked[-1]
    near = [name for name, found in ranked if found.high >= most.low]
    which = top if len(near) == 1 else f"{UNCLEAR} among {', '.join(near)}"
    words = (
        f"{which}: the clients' steps there have a drift diversity of {most}, at least {short(least.value)} elsewhere "
        f"({1 / facts.cohort:.2g} if all agree, 1 if they are at right angles)."
    )
    rows = tuple({"layer": name, "drift diversity": str(found)} for name, found in ranked)
    return Answer(question, words, most, len(near) == 1, rows)


def drifts(runs: Sequence[Run]) -> dict[str, Range]:
    """The drift diversity of each layer over the last half of some runs: the mean, and from the lowest to the highest."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for row in run.history.rows[len(run.history.rows) // 2 :]:
            for name, value in row.items():
                if name.startswith("drift/") and math.isfinite(value):
                    found.setdefault(name.removeprefix("drift/"), []).append(value)
    return {name: Range(float(np.mean(v)), min(v), max(v)) for name, v in found.items()}


def _few_clients(race: Race, best: Candidate, seen: Seen) -> Answer:
    question = "What if only half of the clients answer?"
    if seen.one is None or seen.few is None:
        return Answer(question, "Not known: the budget did not allow for it.", clear=False)
    if seen.few.stopped == "diverged":
        return Answer(
            question, "It diverges: use a smaller step size.", Range(math.inf, 1, math.inf)
        )
    one = seen.one
    found = of_ratios([slowdown(race, one, seen.few, k) for k in (0, 1) if (one, k) in race.runs])
    asked = "" if one == best else f", as seen with {one}"
    word = "It takes" if _verdict(found) else "No clear difference: it takes"
    return Answer(question, f"{word} {found} times as many rounds{asked}.", found, _verdict(found))


def slowdown(race: Race, best: Candidate, few: Any, seed: int) -> float:
    """How many times as many rounds a run needs as the best to get as far as both have been."""
    runs = {(best, 0): race.runs[best, seed], (best, 1): few}
    rounds = Race(race.task, race.settings, 0, race.score, race.lower, runs=runs)
    if not rounds.progresses(best, 1):
        return MOST
    level = max(float(rounds.smoothed(best, k)[-1]) for k in (0, 1))
    usual, late = (rounds.cost_to(best, level, k) for k in (0, 1))
    return late / usual if usual > 0 else 1.0
