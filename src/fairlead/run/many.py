"""Many runs of one task, such as seeds and step sizes, as one further axis of the matrices."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fairlead.core.method import Algorithm
from fairlead.run.callbacks import Callback
from fairlead.run.loop import Course
from fairlead.describe import described
from fairlead.engine.autotune import is_small
from fairlead.engine.cohort import SimulatedCohort
from fairlead.engine.many_runs import Seat, joined_rounds
from fairlead.engine.simulate import Mode, Simulate
from fairlead.errors import FairleadError
from fairlead.task.evaluation import evaluate_many
from fairlead.run.progress import Progress
from fairlead.run.folder import Recorder
from fairlead.run.interrupt import Stop
from fairlead.task.task import Task
from fairlead.run.train import Run, finished, planned, set_out


def train_many(
    task: Task,
    runs: Sequence[tuple[Algorithm[Any, Any], int]],
    *,
    rounds: int,
    engine: Mode | Simulate = "auto",
    progress: bool | Progress | None = None,
    callbacks: Callable[[int], Sequence[Callback]] | None = None,
    outs: Sequence[str | Path | Recorder | None] | None = None,
    together: bool | None = None,
    **settings: Any,
) -> list[Run]:
    """Train every (method, seed) with the same settings, those of `train`.

    Runs of one method that differ in seed and local step size take their steps together, as many as
    fit the memory, which on a GPU and for small models costs little more than one of them; results are
    those of single runs up to rounding. A run's `seconds` are its share of the time.

    callbacks: makes the callbacks of each run from its place in the list. outs: a folder a run.
    together: False trains one after another; True refuses what can only be trained so; by default
        runs of fairlead's own methods are trained together where the engine is `vmap`. A method of
        your own can be too if its client programs index vectors by their last axis (x[..., part]) and
        use `lr` in `client.steps` alone: what is sent to clients then has an axis of clients.

    >>> import fairlead as fl
    >>> task = fl.problems.theorem2(gradient=10)
    >>> runs = [(fl.Scaffold(lr=lr), seed) for lr in (0.1, 0.05) for seed in (0, 1)]
    >>> [run.rounds for run in fl.train_many(task, runs, rounds=5, steps=10)]
    [5, 5, 5, 5]
    """
    if outs is not None and len(outs) != len(runs):
        raise FairleadError(f"{len(outs)} folders for {len(runs)} runs: give one a run")
    courses: list[Course] = []
    for place, (method, seed) in enumerate(runs):
        plan, local = planned(rounds=rounds, seed=seed, **settings)
        told = () if callbacks is None else callbacks(place)
        out = None if outs is None else outs[place]
        try:
            courses.append(set_out(task, method, plan, local, engine, None, told, out))
        except FairleadError as error:
            for course in courses:
                course.fail(error)
            raise
    done: dict[int, Run] = {}
    bar = Progress.of(progress, len(runs) * rounds, f"{len(runs)} runs")
    with bar, Stop(any(course.keeper is not None for course in courses)) as stop:
        for group in _alike(courses):
            _share_engine(group)
            for some in _that_fit(group, together):
                _run(some, stop, bar, sum(run.rounds for run in done.values()))
                done.update({id(course): finished(course) for course in some})
    return [done[id(course)] for course in courses]


def pays(task: Task, **settings: Any) -> bool:
    """Whether runs at once are likely to be faster than one after another: where single steps do not
    fill the machine, on a GPU and for small problems."""
    engine = settings.pop("engine", "auto")
    mode = engine.mode if isinstance(engine, Simulate) else engine
    if mode not in ("auto", "vmap") or type(engine) not in (str, Simulate):
        return False
    plan, local = planned(**settings)
    local.check(task.sizes)
    ids = plan.sampler.cohort(plan.seed, 0, task.clients)
    draw = local.draw(plan.seed, 0, ids, task.sizes[ids])
    return task.device.type == "cuda" or is_small(task, len(ids), draw)


def _alike(courses: Sequence[Course]) -> list[list[Course]]:
    """Runs that differ in seed and step size alone."""
    groups: dict[str, list[Course]] = {}
    for course in courses:
        method = course.algorithm
        plain = method.with_lr(1.0) if "lr" in method.rates() else method
        key = json.dumps([type(method).__qualname__, described(plain)], default=str)
        groups.setdefault(key, []).append(course)
    return list(groups.values())


def _share_engine(group: Sequence[Course]) -> None:
    """Execute all as the first one finds best."""
    first = group[0]
    ids = first.plan.sampler.cohort(first.plan.seed, 0, first.task.clients)
    first.session.prepare(ids)
    first.session.close()
    for course in group:
        course.session.take(first.session.how())


def _that_fit(group: Sequence[Course], together: bool | None) -> list[list[Course]]:
    """The group in parts that run at once."""
    session = group[0].session
    why = ""
    if not session.alone:
        why = "they are spread over several processes"
    elif session.mode != "vmap":
        why = f"the engine is {session.mode}"
    elif session.task.draws_masks:
        why = "dropout layers draw from one generator"
    if together and why:
        raise FairleadError(f"these runs cannot be trained together: {why}")
    if together is None and not _own(group[0].algorithm):
        why = "the method is not fairlead's"
    cohort = max(len(c.plan.sampler.cohort(c.plan.seed, 0, c.task.clients)) for c in group)
    fit = max(1, session.room // cohort)
    size = 1 if why or together is False else fit
    return [list(group[k : k + size]) for k in range(0, len(group), size)]


def _own(method: Algorithm[Any, Any]) -> bool:
    """Whether a method, and one it is wrapped around, come with fairlead."""
    inner = getattr(method, "method", None)
    own = type(method).__module__.startswith("fairlead.")
    return own and (not isinstance(inner, Algorithm) or _own(inner))


def _run(courses: Sequence[Course], stop: Stop, bar: Progress, before: int) -> None:
    """All rounds of some runs at once."""
    with contextlib.ExitStack() as stack:
        for course in courses:
            stack.enter_context(course.going(stop))
            course.begin()
        if len(courses) == 1:
            while courses[0].goes_on():
                courses[0].round()
                bar.update(before + courses[0].done, courses[0].history.rows[-1])
            return
        while live := [course for course in courses if course.goes_on()]:
            _round(live)
            bar.update(before + sum(c.done for c in courses), live[0].history.rows[-1])


def _round(live: Sequence[Course]) -> None:
    """One round of every run that goes on."""
    begin = time.perf_counter()
    seats: list[tuple[Course, Seat]] = []
    drawn: dict[int, SimulatedCohort] = {}
    for course in live:
        cohort = course.cohort()
        if cohort is None:
            continue
        like = drawn.setdefault(course.plan.seed, cohort)
        if like is not cohort:
            cohort.draw = like.draw  # the same seed: the same clients and batches
        seats.append((course, Seat(course.algorithm, course.state, cohort)))
    for first in (True, False):  # methods may treat a first round differently
        some = [seat for _, seat in seats if seat.cohort.first == first]
        if some:
            joined_rounds(some)
    for course, seat in seats:
        assert seat.after is not None
        course.state = seat.after
        course.session.counters.steps += seat.cohort.longest
    for course in live:
        course.spend(begin, 1 / len(live), wait=course.looks)
    _after(live)


def _after(live: Sequence[Course]) -> None:
    """What follows a round, with one evaluation for all runs."""
    first = live[0]
    if not first.looks:  # all are in the same round, and evaluated in the same ones
        for course in live:
            course.after()
        return
    x = torch.stack([course.state.x for course in live])
    buffers = torch.stack([course.session.buffers for course in live])
    plan = first.plan
    found = evaluate_many(first.task, x, buffers, plan.weighting, plan.objective)
    for course, values, total in zip(live, found, x.sum(1).tolist(), strict=True):
        course.after(values, total)
