"""How many processes a run gets on a CPU: as many as asked for, or as many as are fastest.

One process with all threads is timed against one process a core with one thread each, over a few local
steps and the sum that ends a round, on the task's own shapes; a tie goes to one process.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Algorithm, Client, Cohort, Memory, State, Upload
from fairlead.data.batches import Batches, Draw
from fairlead.engine.autotune import is_small, key_of, known, remembered
from fairlead.engine.processes.local import Crew, hindrance
from fairlead.engine.processes.distribute import DistributedSession
from fairlead.engine.simulate import Session, Simulate
from fairlead.errors import FairleadError
from fairlead.task.task import Task

if TYPE_CHECKING:
    from fairlead.run.loop import Plan

Workers: TypeAlias = int | Literal["auto"] | None
MARGIN = 0.95
FEW = 4
"""Local steps that are timed."""
ONE, MANY = "one process", "processes"


@dataclass
class Staff:
    """How many processes, and why; `measure` while that is open."""

    count: int = 1
    why: str = ""
    measure: Measurement | None = None
    optional: bool = False

    def crew(self) -> Crew:
        """The processes, for a block of a program."""
        return Crew(self.count, self.optional)

    def settle(self, crew: Crew) -> str:
        """In all processes: measure where that is open, and send workers home that are of no use.
        Returns why there are so many."""
        if crew.hindered:
            return f"{ONE}: {crew.hindered}"
        if self.measure is None or crew.size == 1:
            return self.why
        count, why = self.measure.settled(crew)
        if count == 1:
            crew.disband()
        return why


def staffed(
    workers: Workers,
    setting: Simulate,
    task: Task,
    local: Batches,
    plan: Plan,
    before: int | None,
) -> Staff:
    """The processes of a run; `before` is how many it had, where it goes on from an earlier part."""
    if workers is None:
        return Staff()
    if workers != "auto" and (
        not isinstance(workers, int) or isinstance(workers, bool) or workers < 1
    ):
        raise FairleadError(f'workers is {workers!r}: give a number of processes, "auto" or None')
    if workers == 1:
        return Staff()
    why = hindrance(task.device)
    if workers != "auto":
        if why:
            raise FairleadError(f"there cannot be {workers} workers: {why}")
        return Staff(workers, f"{workers} processes, as asked for")
    if why:
        return Staff(1, f"{ONE}: {why}")
    if before is not None:
        shown = ONE if before == 1 else f"{before} processes"
        return Staff(before, f"{shown}, as it was begun", optional=True)
    return _fastest(Measurement(setting, task, local, plan))


def _fastest(measure: Measurement) -> Staff:
    cores = min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
    count = min(cores, len(measure.ids))
    if count < 2:
        return Staff(1, f"{ONE}: {'a core' if cores < 2 else 'a client'} is all there is")
    if is_small(measure.task, len(measure.ids), measure.draw):
        return Staff(1, f"{ONE}: a small problem")
    measure.settle_on(count)
    found = known(measure.key)
    if found is None:
        return Staff(count, "", measure, optional=True)
    return Staff(*_verdict(found, count), optional=True)


def _verdict(seconds: dict[str, float], count: int) -> tuple[int, str]:
    pays = seconds[MANY] < MARGIN * seconds[ONE]
    shown = f"one {seconds[ONE] * 1e3:.3g} ms, {count} {seconds[MANY] * 1e3:.3g} ms"
    best = f"{count} processes" if pays else ONE
    return count if pays else 1, f"{best}: measured for a round: {shown}"


class _Moved(Upload):
    y: Tensor


def _walk(client: Client[Any], x: Tensor) -> _Moved:
    """What is timed: local steps of SGD."""
    y = x
    for step in client.steps(1e-3):
        y = y - step.lr * step.grad(y)
    return _Moved(y=y)


class _Plain(Algorithm[State, Memory]):
    """Stands for the run's method: clients keep nothing."""

    def init(self, x: Tensor) -> State:
        return State(x=x)

    def round(self, s: State, cohort: Cohort) -> State:
        return s


class Measurement:
    """A round by one process and by several, of a run's own task and local work."""

    def __init__(self, setting: Simulate, task: Task, local: Batches, plan: Plan) -> None:
        self.setting, self.task, self.seed, self.key = setting, task, plan.seed, ""
        self.run = (task, _Plain(), local, task.client_weights(plan.weighting), plan.seed)
        self.ids = plan.sampler.cohort(plan.seed, 0, task.clients)
        self.draw = local.draw(plan.seed, 0, self.ids, task.sizes[self.ids])

    def settle_on(self, count: int) -> None:
        """Compare one process, as it is now, with so many."""
        one = key_of(self.setting.open(*self.run), self.draw)
        self.key = f"{one}-{self.setting.mode}-{count}"

    def settled(self, crew: Crew) -> tuple[int, str]:
        """In all processes: how many are fastest, and the figures."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            found = crew.tell(self.seconds(crew))
        if crew.first:
            remembered(self.key, lambda: found)
        return _verdict(found, crew.size)

    def seconds(self, crew: Crew) -> dict[str, float]:
        """Seconds a round, by ways that take turns so that a busy moment hits none alone."""
        threads, one = crew.threads, None
        if crew.first:  # the others wait meanwhile
            torch.set_num_threads(threads)
            one = self.setting.open(*self.run)
            one.prepare(self.ids)
            torch.set_num_threads(1)
        many = crew.engine(self.setting).open(*self.run)
        many.prepare(self.ids)
        assert isinstance(many, DistributedSession)
        sizes = self.task.sizes[self.ids]
        share = many.share(self.ids, many.batches.cost(self.seed, 0, self.ids, sizes))
        mine = share == crew.rank
        vector = torch.zeros(self.task.dim, dtype=self.task.dtype)
        best = {"alone": math.inf, "together": math.inf, "sum": math.inf}
        begin = time.perf_counter()
        for turn in range(8):  # enough for recorded gradients to come into play
            took = {}
            if one is not None:
                torch.set_num_threads(threads)
                took["alone"] = self._walked(one, np.ones(len(self.ids), bool))
                torch.set_num_threads(1)
            crew.wait()
            start = time.perf_counter()
            self._walked(many, mine)
            crew.wait()
            took["together"] = time.perf_counter() - start
            crew.sum_(vector)
            took["sum"] = time.perf_counter() - start - took["together"]
            if turn:  # the first one warms up
                best = {name: min(best[name], took.get(name, math.inf)) for name in best}
            if crew.tell(turn > 1 and time.perf_counter() - begin > 3.0):
                break
        if one is not None:
            one.close()
        many.close()
        torch.set_num_threads(1)
        rounds = self.draw.index.shape[1] / min(FEW, self.draw.index.shape[1])
        return {ONE: rounds * best["alone"], MANY: rounds * best["together"] + best["sum"]}

    def _walked(self, session: Session, which: NDArray[np.bool_]) -> float:
        """Seconds for some local steps of some of the clients."""
        if not which.any():
            return 0.0
        ids, places = self.ids[which], torch.from_numpy(np.flatnonzero(which))
        few = Draw(self.draw.index[places, :FEW], self.draw.count[which, :FEW])
        x = self.task.start(self.seed)[0]
        execute = session.stacked if session.mode == "vmap" else session.one_by_one
        begin = time.perf_counter()
        for _ in execute(_walk, {"x": x}, 0, ids, few):
            pass
        return time.perf_counter() - begin
