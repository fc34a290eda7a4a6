"""The rule, carried out: step sizes, methods, local steps, a second seed, and runs for two more questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from fairlead.describe import counted
from fairlead.run.train import train
from fairlead.study.diagnose.answers import COMPRESSED, Seen
from fairlead.study.diagnose.constants import Constants, constants
from fairlead.study.diagnose.race import Race, work_of
from fairlead.study.diagnose.rule import (
    LARGE,
    Candidate,
    Facts,
    extended,
    favourite,
    going_on,
    large_batch,
    methods,
    more_steps,
    step_sizes,
    taken,
)
from fairlead.task.pooled import pooled

SHARES = {"measures": 0.1, "step sizes": 0.35, "methods": 0.25, "local steps": 0.2, "final": 0.1}
"""What each part of the diagnosis may spend of the budget."""
FIRST, LONG = 2, 6
"""Rounds that every configuration is raced for, and the two best step sizes."""
HALF = 0.5
"""The share of clients that do not answer, for the last question."""
ENOUGH = 4
"""Rounds that answer the questions about few clients and centralised training."""

Say: TypeAlias = Callable[[str], None]


def measure(race: Race, facts: Facts, known: list[Constants]) -> Facts:
    """Measure the constants at the start, for the rule to go by."""
    found = constants(race.task, "the start", SHARES["measures"] * race.budget, race.settings)
    if found is None:
        return facts
    known.append(found)
    race.charge("measures", found.gradients, found.bits)
    if found.beta <= 0 or found.smooth <= 0:
        return facts
    return replace(facts, beta=found.beta, smooth=found.smooth)


def raced(race: Race, facts: Facts, reasons: list[str], tell: Say) -> list[Candidate]:
    """The rule, carried out with one seed: step sizes, then methods, then local steps. All that ran, the best first."""
    tried = _step_size(race, facts)
    best = tried[0]
    tell(f"step size: {best.lr:g} for FedAvg with {counted(best.steps, 'local step')}")
    lanes, why = methods(facts, best.lr, race.by)
    reasons += why
    name = favourite(facts, race.by)
    lanes.sort(key=lambda one: one.family != name)
    enough = race.cost(lanes, FIRST) <= SHARES["methods"] * race.budget
    start = FIRST if enough else 1  # all of them for one round rather than some for two
    run = race.halve(lanes, SHARES["methods"], "methods", first=start, most=FIRST)
    run = [one for one in run if race.done(one)]
    if len(run) < len(lanes):
        missing = ", ".join(one.family for one in lanes if one not in run)
        reasons.append(f"the budget did not allow for {missing}")
    first = next((one for one in run if one.family == name), run[0])
    race.advance([first], FIRST, what="methods")
    rounds = replace(race, by="rounds")  # what bits and hours say is in the choice of the favourite
    same = (COMPRESSED, going_on(first, facts, race.by).family)
    rivals = [o for o in run if o.family not in same and race.done(o) >= FIRST]
    one = taken({o: rounds.saving(o, first) for o in rivals if o != first}, first)
    one = going_on(one, facts, race.by)
    fast = ", ".join(lane.family for lane in run[:2])
    tell(f"methods: {fast} ahead after {counted(race.done(first), 'round')}, {one.family} goes on")
    race.advance([one], 1, what="methods")
    more = _with_more_steps(race, facts, one, reasons)
    rest = [one for one in race.ranked(tried) if race.done(one)]
    return sorted(dict.fromkeys([*more, one, *run, *rest]), key=race.is_lost)


def _step_size(race: Race, facts: Facts) -> list[Candidate]:
    """FedAvg with several step sizes, the best first."""
    tried = step_sizes(facts)
    limit = race.spent + SHARES["step sizes"] * race.budget
    while len(tried) > 1 and race.spent + race.cost(tried, 1) > limit:
        tried.pop()
    rounds = max(1, min(FIRST, race.reachable(tried, limit - race.spent)))
    race.advance(tried, rounds, what="step sizes")
    while True:
        one = extended(tried, race.ranked(tried)[0])
        if one is None or race.spent + rounds * race.price(one) > limit:
            break
        tried.append(one)
        race.advance([one], rounds, what="step sizes")
    tried = race.ranked(tried)
    longer = min(LONG, race.reachable(tried[:2], limit - race.spent))
    race.advance(tried[:2], longer, what="step sizes")
    return race.ranked(tried[:2]) + tried[2:]


def _with_more_steps(
    race: Race, facts: Facts, best: Candidate, reasons: list[str]
) -> list[Candidate]:
    """A method with few and with more steps, the one to take first."""
    if best.family in LARGE:
        return [best]
    limit, tried = race.spent + SHARES["local steps"] * race.budget, [best]
    for one in more_steps(facts, best):
        rounds = min(FIRST, race.reachable([one], limit - race.spent))
        if rounds < 1:
            break
        race.advance([one], rounds, what="local steps")
        tried.insert(0, one)
        if race.progresses(one) and not race.is_lost(one):
            break
    if len(tried) == 1:
        reasons.append(f"the budget did not allow for {facts.many} local steps")
    return tried


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


def with_the_rest(race: Race, best: Candidate, tell: Say) -> None:
    """What is left of the budget goes to the recommendation, as its forecast is the better the longer it ran."""
    rounds = race.reachable([best], race.budget - race.spent)
    if rounds > race.done(best):
        race.advance([best], rounds, what="final")
        tell(
            f"final: {best} for {counted(race.done(best), 'round')}, with what is left of the budget"
        )
