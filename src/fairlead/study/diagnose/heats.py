"""The rule, carried out: step sizes, methods, local steps, a second seed, and runs for two more questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from fairlead.describe import counted
from fairlead.run.train import Run, train
from fairlead.study.diagnose.answers import COMPRESSED, Seen
from fairlead.study.diagnose.constants import Constants, constants
from fairlead.study.diagnose.race import Race, work_of
from fairlead.study.diagnose.rule import (
    LARGE,
    Candidate,
    Facts,
    extended,
    large_batch,
    methods,
    more_steps,
    step_sizes,
)
from fairlead.task.pooled import pooled

SHARES = {"measures": 0.05, "step sizes": 0.13, "methods": 0.42, "local steps": 0.2, "final": 0.2}
"""What each part of the diagnosis may spend of the budget."""
HALF = 0.5
"""The share of clients that do not answer, for the last question."""
ENOUGH = 4
"""Rounds that answer the questions about few clients and centralised training."""

Say: TypeAlias = Callable[[str], None]


def measure_at(
    race: Race, facts: Facts, known: list[Constants], where: str, run: Run | None = None
) -> Facts:
    """Measure the constants; those at the start are what the rule goes by."""
    share = SHARES["measures"] / 2 * race.budget
    x = None if run is None else run.x
    found = constants(race.task, where, share, race.settings, x)
    if found is None:
        return facts
    known.append(found)
    race.charge("measures", found.gradients, found.bits)
    if found.beta <= 0 or found.smooth <= 0 or run is not None:
        return facts
    return replace(facts, beta=found.beta, smooth=found.smooth)


def raced(
    race: Race, facts: Facts, reasons: list[str], known: list[Constants], measure: bool, tell: Say
) -> list[Candidate]:
    """The rule, carried out with one seed: step sizes, then methods, then local steps. All that ran, the best first."""
    tried = step_sizes(facts)
    limit = race.spent + SHARES["step sizes"] * race.budget
    race.advance(tried, 1, what="step sizes")
    while race.spent < limit:
        best = race.ranked(tried)[0]
        one = extended(tried, best)
        if one is None or race.spent + race.price(one) > limit:
            break
        tried.append(one)
        race.advance([one], 1, what="step sizes")
    left = max(0.0, limit - race.spent) / race.budget
    tried = race.ranked(tried)
    tried = race.halve(tried[:2], left, "step sizes", first=2, most=8) + tried[2:]
    best = tried[0]
    tell(f"step size: {best.lr:g} for FedAvg with {counted(best.steps, 'local step')}")
    if measure:
        measure_at(race, facts, known, f"round {race.done(best)} of the race", race.runs[best, 0])
    lanes, why = methods(facts, best.lr)
    reasons += why
    packed = [one for one in lanes if one.family == COMPRESSED and race.by == "rounds"]
    raced = race.halve([o for o in lanes if o not in packed], SHARES["methods"], "methods", first=2)
    run = [one for one in raced if race.done(one)]
    if packed and race.cost(packed, 2) < race.budget - race.spent:
        race.advance(packed, 2, what="methods")
        run += packed
    if len(run) < len(lanes):
        missing = ", ".join(one.family for one in lanes if one not in run)
        reasons.append(f"the budget did not allow for {missing}")
    ahead = ", ".join(one.family for one in run[:2])
    tell(f"methods: {ahead} ahead after {counted(race.done(run[0]), 'round')}")
    more = _with_more_steps(race, facts, run, reasons)
    rest = [one for one in race.ranked(tried) if race.done(one)]
    return list(dict.fromkeys([*more, *run, *rest]))


def _with_more_steps(
    race: Race, facts: Facts, run: Sequence[Candidate], reasons: list[str]
) -> list[Candidate]:
    """The best local method with more steps, next to what it was with few: the better first, if it is ahead of all."""
    best = next((one for one in run if one.family not in LARGE), None)
    limit, tried = race.spent + SHARES["local steps"] * race.budget, []
    for one in more_steps(facts, best) if best else []:
        if race.spent + race.price(one) > limit:
            break
        race.advance([one], 1, what="local steps")
        tried.append(one)
        if race.ranked([*tried, run[0]])[0] == one:
            break
    if not tried:
        reasons.append(f"the budget did not allow for {facts.many} local steps")
        return []
    first = race.ranked(tried)[0]
    race.advance(
        [first],
        min(race.done(run[0]), race.reachable([first], limit - race.spent)),
        what="local steps",
    )
    order = race.ranked([run[0], *tried])
    return order[: order.index(run[0]) + 1] + [one for one in order if one != run[0]]


def with_second_seed(
    race: Race, facts: Facts, order: Sequence[Candidate], reasons: list[str], tell: Say
) -> None:
    """A second seed for the two best methods, FedAvg and the large-batch one."""
    alive = [one for one in order if not race.is_lost(one)]
    rivals = [one for one in alive if one.family != alive[0].family][:1]
    always = [
        next((o for o in alive if o.family == name), None)
        for name in ("FedAvg", large_batch(facts))
    ]
    finalists = list(dict.fromkeys([alive[0], *rivals, *(one for one in always if one)]))
    left = (race.budget - race.spent) / 2  # the rest is for questions 7 and 9
    while len(finalists) > 2 and race.reachable(finalists, left, seed=1) < 2:
        finalists.pop()
    rounds = min(race.reachable(finalists, left, seed=1), race.done(alive[0]))
    if rounds < 1:
        reasons.append("the budget did not allow for a second seed: ranges are guesses")
        return
    race.advance(finalists, rounds, seed=1, what="final")
    tell(
        f"final: {counted(len(finalists), 'configuration')} with a second seed for {counted(rounds, 'round')}"
    )


def settled(race: Race, order: Sequence[Candidate]) -> list[Candidate]:
    """The order after the second seed: the two best change places if they do so in the mean."""
    both = [one for one in order if (one, 1) in race.runs and not race.is_lost(one, 1)]
    if len(both) < 2 or both[0] != order[0]:
        return list(order)
    first = both[0]
    for other in both[1:]:
        ratio = race.saving(first, other) * race.saving(first, other, 1)
        if ratio < 1:
            first = other
    return [first, *(one for one in order if one != first)]


def asked_further(race: Race, order: Sequence[Candidate], tell: Say) -> Seen:
    """Runs for two questions: the same with half the clients, and with all data in one place. Where the recommendation
    is too dear for that, the best of the cheaper ones is asked."""
    task, settings = race.task, {**race.settings}
    batch = settings.pop("batch_size", None)
    left = race.budget - race.spent
    best, rounds = order[0], 0
    for one in order:
        affordable = int(min(race.done(one), left / (race.price(one) * (1 + HALF))))
        if affordable > rounds and not race.is_lost(one):
            best, rounds = one, affordable
        if rounds >= ENOUGH:
            break
    if rounds < 2:
        return Seen()
    work = {} if best.family == "FedSGD" else {"steps": best.steps}
    few = train(
        task, best.method, rounds=rounds, progress=False, workers=1,
        **{**settings, "batch_size": batch, "dropout": HALF, **work},
    )  # fmt: skip
    race.charge("final", few.counters.gradients, few.ledger.up + few.ledger.down)
    one_place = pooled(task)
    plan, local = work_of(race.settings)
    together = float(np.minimum(local.sizes_of(task.sizes), task.sizes).mean()) * len(
        plan.sampler.cohort(0, 0, task.clients)
    )
    settings = {
        n: v for n, v in settings.items() if n not in ("cohort", "dropout", "weighting", "drift")
    }
    alone = {} if best.family == "FedSGD" else {**work, "batch_size": max(1, round(together))}
    central = train(
        one_place, best.method, rounds=rounds, progress=False, workers=1, **{**settings, **alone}
    )
    race.charge("final", central.counters.gradients, 0)
    tell(f"final: half of the clients, and all data in one place, for {counted(rounds, 'round')}")
    return Seen(best, few, central)
