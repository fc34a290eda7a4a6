"""Many runs of one task, such as seeds and step sizes, as an extra axis of the matrices."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from fairlead.core.method import Algorithm, is_own
from fairlead.data.batches import Draw
from fairlead.describe import counted, described
from fairlead.engine.autotune import is_small
from fairlead.engine.captured_runs import runs_executor
from fairlead.engine.exchange import cohort_of
from fairlead.engine.many_runs import RunsExecutor, Seat, joinable, joined_rounds
from fairlead.engine.simulate import Mode, Simulate
from fairlead.errors import FairleadError
from fairlead.progress import Progress
from fairlead.rng import own_generators
from fairlead.run.alone import alone
from fairlead.run.callbacks import AnyCallback
from fairlead.run.folder import Recorder
from fairlead.run.interrupt import Stop
from fairlead.run.loop import Loop
from fairlead.run.resume import as_begun, restore_together
from fairlead.run.train import Run, finished, planned, prepared
from fairlead.task.evaluation import evaluate_many
from fairlead.task.task import Task


def train_many(
    task: Task,
    runs: Sequence[tuple[Algorithm[Any, Any], int]],
    *,
    rounds: int,
    engine: Mode | Simulate = "auto",
    progress: bool | Progress | None = None,
    callbacks: Callable[[int], Sequence[AnyCallback]] | None = None,
    outs: Sequence[str | Path | Recorder | None] | None = None,
    resume: Literal["auto"] | Sequence[Run | None] | None = None,
    together: bool | None = None,
    **settings: Any,
) -> list[Run]:
    """Train every (method, seed) with the same settings, those of `train`.

    Runs of one method that differ only in seed and local step size are trained together, as many as
    fit in memory, which on a GPU and for small models costs little more than a single run; results equal
    those of single runs up to rounding. A run's `seconds` are its share of the time.

    callbacks: returns the callbacks of a run, given its index. outs: one folder per run.
    resume: "auto" continues from the checkpoints in these folders, with the same final bytes; runs that are
        trained together continue from the newest round that all of them have, and ended runs stay as they are.
        Or one run, or None, per run: those with fewer rounds to go on from, in memory.
    together: False trains runs one after another; True raises an error if they must be; by default
        runs are trained together if the engine is `vmap`. What is broadcast to clients then has a
        client axis, so client programs must index vectors by their last axis (x[..., part]) and use
        `lr` only in `client.steps`; a custom method is checked in its first round, and its runs are
        trained one after another if it does not comply.

    >>> import fairlead as fl
    >>> task = fl.problems.theorem2(gradient=10)
    >>> runs = [(fl.Scaffold(lr=lr), seed) for lr in (0.1, 0.05) for seed in (0, 1)]
    >>> [run.rounds for run in fl.train_many(task, runs, rounds=5, steps=10)]
    [5, 5, 5, 5]
    """
    if outs is not None and len(outs) != len(runs):
        raise FairleadError(f"{len(outs)} folders for {len(runs)} runs: give one per run")
    earlier: Sequence[Run | None] = [None] * len(runs)
    if resume is not None and not isinstance(resume, str):
        earlier, resume = resume, None
        if len(earlier) != len(runs):
            raise FairleadError(
                f"{len(earlier)} runs to resume for {len(runs)} runs: give one, or None, per run"
            )
    if resume is not None and (resume != "auto" or outs is None or None in outs):
        raise FairleadError(f'resume is {resume!r}: give "auto", and a folder per run in outs')
    loops: list[Loop] = []
    known = None if outs is None else task.fingerprint()
    for place, (method, seed) in enumerate(runs):
        plan, local = planned(rounds=rounds, seed=seed, **settings)
        own = () if callbacks is None else callbacks(place)
        out = None if outs is None else outs[place]
        try:
            if resume is not None and isinstance(out, str | Path):
                out = Recorder(out, resume=True)
            loop = prepared(
                task, method, plan, local, engine, None, own, out, resume=earlier[place], fingerprint=known
            )  # fmt: skip
            loops.append(loop)
        except FairleadError as error:
            for loop in loops:
                loop.fail(error)
            raise
    done: dict[int, Run] = {}
    bar = Progress.of(progress, len(runs) * rounds, counted(len(runs), "run"))
    with alone(), bar, Stop(any(loop.keeper is not None for loop in loops)) as stop:
        for group in _alike(loops):
            if resume is not None:
                as_begun(group)
            with own_generators(), torch.no_grad():
                _share_engine(group)
            for some in _that_fit(group, together):
                parts = [some]
                if resume is not None:
                    with _failing([loop for loop in loops if id(loop) not in done]):
                        parts = restore_together(some)
                for part in parts:
                    waiting = [loop for loop in loops if id(loop) not in done]
                    with _failing([loop for loop in waiting if loop not in part]):
                        _run(part, stop, bar, sum(run.rounds for run in done.values()))
                    done.update({id(loop): finished(loop) for loop in part})
    return [done[id(loop)] for loop in loops]


@contextlib.contextmanager
def _failing(loops: Sequence[Loop]) -> Iterator[None]:
    """Inform runs of an error."""
    try:
        yield
    except BaseException as error:
        for loop in loops:
            loop.fail(error)
        raise


def pays(task: Task, **settings: Any) -> bool:
    """Whether training runs together is likely to be faster than one after another: on a GPU and for
    small problems, where single steps do not saturate the machine."""
    engine = settings.pop("engine", "auto")
    mode = engine.mode if isinstance(engine, Simulate) else engine
    if mode not in ("auto", "vmap") or type(engine) not in (str, Simulate):
        return False
    plan, local = planned(**settings)
    local.check(task.sizes)
    ids = plan.sampler.cohort(plan.seed, 0, task.clients)
    draw = local.draw(plan.seed, 0, ids, task.sizes[ids])
    return task.device.type == "cuda" or is_small(task, len(ids), draw)


def _alike(loops: Sequence[Loop]) -> list[list[Loop]]:
    """The runs in groups that differ only in seed and step size, and are in the same round."""
    groups: dict[str, list[Loop]] = {}
    for loop in loops:
        method = loop.algorithm
        plain = method.with_lr(1.0) if "lr" in method.rates() else method
        key = json.dumps([type(method).__qualname__, described(plain), loop.done], default=str)
        groups.setdefault(key, []).append(loop)
    return list(groups.values())


def _share_engine(group: Sequence[Loop]) -> None:
    """Execute all runs as measured for the first."""
    first = group[0]
    ids = first.plan.sampler.cohort(first.plan.seed, 0, first.task.clients)
    first.engine.prepare(first.session, ids, len(group) * first.plan.rounds)
    first.session.close()
    for loop in group:
        if first.session.execution is not None:
            loop.session.use(first.session.execution)
            loop.session.gradients = first.session.gradients  # share captured gradients


def _that_fit(group: Sequence[Loop], together: bool | None) -> list[list[Loop]]:
    """The group in parts that fit in memory together."""
    session = group[0].session
    why = ""
    if session.group.several:
        why = "they are spread over several processes"
    elif session.mode != "vmap":
        why = f"the engine is {session.mode}"
    if together and why:
        raise FairleadError(f"these runs cannot be trained together: {why}")
    cohort = max(len(c.plan.sampler.cohort(c.plan.seed, 0, c.task.clients)) for c in group)
    room = cohort if session.execution is None else session.execution.room
    fit = max(1, room // cohort)
    size = 1 if why or together is False else fit
    return [list(group[k : k + size]) for k in range(0, len(group), size)]


def _run(loops: Sequence[Loop], stop: Stop, bar: Progress, before: int) -> None:
    """All rounds of runs that are trained together."""
    with contextlib.ExitStack() as stack:
        for loop in loops:
            stack.enter_context(loop.going(stop))
        for loop in loops:
            loop.begin()
        executor = runs_executor(loops[0].session)
        if not _joined(loops, executor):
            for place, loop in enumerate(loops):
                while loop.goes_on():
                    loop.round()
                    done = before + sum(other.done for other in loops[: place + 1])
                    bar.update(done, loop.history.rows[-1])
            return
        while live := [loop for loop in loops if loop.goes_on()]:
            _round(live, executor)
            bar.update(before + sum(c.done for c in loops), live[0].history.rows[-1])
        said = "; ".join(filter(None, (f"{len(loops)} runs at once", executor.remark)))
        for loop in loops:
            loop.session.remark = said


def _joined(loops: Sequence[Loop], executor: RunsExecutor) -> bool:
    """Whether the rounds of runs are executed as one, as they were if they are resumed."""
    keepers = [loop.keeper for loop in loops if loop.keeper is not None]
    found = len(loops) > 1 and (any(k.together > 1 for k in keepers) or _joinable(loops, executor))
    for keeper in keepers:
        keeper.together = len(loops) if found else 1
    return found


def _joinable(loops: Sequence[Loop], executor: RunsExecutor) -> bool:
    """Whether a custom method gives the same results for joined runs, tried on the first two."""
    if is_own(loops[0].algorithm):
        return True
    seats = []
    for loop in loops[:2]:
        ids = loop.plan.sampler.cohort(loop.plan.seed, 0, loop.task.clients)
        seats.append(Seat(loop.state, cohort_of(loop.session, 0, ids), loop.algorithm))
    return joinable(seats, executor)


def _round(live: Sequence[Loop], executor: RunsExecutor) -> None:
    """One round of every unfinished run."""
    begin = time.perf_counter()
    seats: list[tuple[Loop, Seat]] = []
    drawn: dict[int, Draw] = {}  # equal seeds have equal clients and batches
    for loop in live:
        cohort = loop.cohort(drawn.get(loop.plan.seed))
        if cohort is not None:
            drawn.setdefault(loop.plan.seed, cohort.draw)
            seats.append((loop, Seat(loop.state, cohort, loop.algorithm)))
    for first in (True, False):  # methods may treat the first round differently
        some = [seat for _, seat in seats if seat.cohort.first == first]
        if some:
            joined_rounds(some, executor)
    for loop, seat in seats:
        assert seat.after is not None
        loop.state = seat.after
        loop.session.accounts.counters.steps += seat.cohort.longest
    for loop in live:
        loop.spend(begin, 1 / len(live), wait=loop.looks)
    _after(live)


def _after(live: Sequence[Loop]) -> None:
    """What follows a round, with one evaluation for all runs."""
    first = live[0]
    asked_for = first.stop.asked, any(loop.due(loop.done + 1) for loop in live)
    if not first.looks:  # all runs are in the same round, with the same evaluations
        for loop in live:
            loop.after(asked_for=asked_for)
        return
    x = torch.stack([loop.state.x for loop in live])
    buffers = torch.stack([loop.session.buffers for loop in live])
    plan = first.plan
    found = evaluate_many(first.task, x, buffers, plan.weighting, plan.objective)
    for loop, values, total in zip(live, found, x.sum(1).tolist(), strict=True):
        loop.after(values, total, asked_for)
