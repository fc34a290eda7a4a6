"""How many processes a run uses on a CPU: by default one per core if a round is enough work for them.

With "auto" one process with all threads is timed against one process per core with one thread each, over a
few local steps and the sum that ends a round, on the task's own shapes; a tie goes to one process.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fairlead.data.batches import Draw
from fairlead.engine.api import Ids
from fairlead.engine.autotune import Trial, chosen, is_small
from fairlead.engine.measurements import key_of, known, remembered
from fairlead.engine.processes.local import LocalProcesses, hindrance
from fairlead.engine.processes.shares import balanced
from fairlead.engine.session import Session
from fairlead.engine.simulate import Preparation, Simulate
from fairlead.errors import FairleadError

Workers: TypeAlias = int | Literal["auto"] | None
MARGIN = 0.95
FEW = 4
"""Local steps to time."""
ENOUGH = 1 << 28
"""Parameters times samples of a round from which one process per core is the default: some 50 ms of work."""
ONE, MANY = "one process", "processes"


@dataclass
class Workforce:
    """How many processes, and why; `measure` if that is still undecided."""

    count: int = 1
    why: str = ""
    measure: Measurement | None = None
    optional: bool = False

    def start(self) -> LocalProcesses:
        """The processes, for a `with` block."""
        return LocalProcesses(self.count, self.optional)

    def settle(self, processes: LocalProcesses) -> str:
        """In all processes: measure if undecided, and end workers that do not help. Returns why this many
        are used."""
        if processes.hindered:
            return f"{ONE}: {processes.hindered}"
        if self.measure is None or processes.size == 1:
            return self.why
        count, why = self.measure.settled(processes)
        if count == 1:
            processes.disband()
        return why


def workforce(
    workers: Workers,
    device: torch.device,
    measurement: Callable[[], Measurement],
    work: NDArray[np.float64],
    before: int | None,
) -> Workforce:
    """The processes of a run; `work` is that of the clients of a round, in parameters times samples, and
    `before` how many processes it had, if it is resumed."""
    if workers is None:
        return _default(device, work, before)
    if workers != "auto" and (
        not isinstance(workers, int) or isinstance(workers, bool) or workers < 1
    ):
        raise FairleadError(
            f'workers is {workers!r}: must be a number of processes, "auto" or None'
        )
    if workers == 1:
        return Workforce()
    why = hindrance(device)
    if workers != "auto":
        if why:
            raise FairleadError(f"workers is {workers}, but there can be only one process: {why}")
        return Workforce(workers, f"{workers} processes, as asked for")
    if why:
        return Workforce(1, f"{ONE}: {why}")
    return _as_begun(before) if before is not None else _fastest(measurement())


def _as_begun(before: int) -> Workforce:
    shown = ONE if before == 1 else f"{before} processes"
    return Workforce(before, f"{shown}, as it was begun", optional=True)


def _default(device: torch.device, work: NDArray[np.float64], before: int | None) -> Workforce:
    """One process per core if every core has clients and enough to do, otherwise one. This does not depend
    on measurements or on the number of rounds, so equal runs are run equally."""
    if hindrance(device):
        return Workforce()
    if before is not None:
        return _as_begun(before) if before > 1 else Workforce()
    cores = _cores()
    if not 2 <= cores <= len(work) or work.sum() < ENOUGH:
        return Workforce()
    return Workforce(cores, f"{cores} processes, one per core", optional=True)


def _cores() -> int:
    return min(torch.get_num_threads(), len(os.sched_getaffinity(0)))


def _fastest(measure: Measurement) -> Workforce:
    cores = _cores()
    count = min(cores, len(measure.ids))
    if count < 2:
        return Workforce(1, f"{ONE}: {'a core' if cores < 2 else 'a client'} is all there is")
    if is_small(measure.session.task, len(measure.ids), measure.draw):
        return Workforce(1, f"{ONE}: a small problem")
    measure.settle_on(count)
    found = known(measure.key)
    if found is None:
        return Workforce(count, "", measure, optional=True)
    return Workforce(*_verdict(found, count), optional=True)


def _verdict(seconds: dict[str, float], count: int) -> tuple[int, str]:
    pays = seconds[MANY] < MARGIN * seconds[ONE]
    shown = f"one {seconds[ONE] * 1e3:.3g} ms, {count} {seconds[MANY] * 1e3:.3g} ms"
    best = f"{count} processes" if pays else ONE
    return count if pays else 1, f"{best}: measured for a round: {shown}"


class Measurement:
    """Times a round in one process and in several, with a run's own task and local work."""

    def __init__(self, setting: Simulate, like: Session, ids: Ids, rounds: int) -> None:
        self.setting, self.session, self.ids, self.rounds, self.key = setting, like, ids, rounds, ""
        self.draw = like.draw(0, ids)

    def settle_on(self, count: int) -> None:
        """Compare one process with `count` processes."""
        one = key_of(self.session, tuple(self.draw.index.shape), self.setting.mode)
        self.key = f"{one}-{count}"

    def settled(self, processes: LocalProcesses) -> tuple[int, str]:
        """In all processes: how many are fastest, and the timings."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            found = processes.tell(self.seconds(processes))
        if processes.first:
            remembered(self.key, lambda: found)
        return _verdict(found, processes.size)

    def _trial(self, ids: Ids) -> Trial:
        """A trial of these clients in one process, in its fastest form."""
        how = chosen(Preparation(self.setting, self.session, ids, self.rounds).problem)
        return Trial(self.session, how.form, how.mode, how.room)

    def seconds(self, processes: LocalProcesses) -> dict[str, float]:
        """Seconds per round, alternating so that a busy moment affects both."""
        threads, one, session = processes.threads, None, self.session
        if processes.first:  # while the others wait
            torch.set_num_threads(threads)
            one = self._trial(self.ids)
            torch.set_num_threads(1)
        sizes = session.task.sizes[self.ids]
        cost = session.batches.cost(session.seed, 0, self.ids, sizes)
        share = balanced(cost, np.arange(len(self.ids)) % processes.size, processes.size)
        places = np.flatnonzero(share == processes.rank)
        mine, draw = self.ids[places], self.draw
        part = Draw(draw.index[torch.from_numpy(places)], draw.count[places])
        processes.wait()
        many = self._trial(mine) if len(mine) else None
        vector = torch.zeros(session.task.dim, dtype=session.task.dtype)
        best = {"alone": math.inf, "together": math.inf, "sum": math.inf}
        begin = time.perf_counter()
        for turn in range(8):
            took = {}
            if one is not None:
                torch.set_num_threads(threads)
                took["alone"] = one.seconds(self.ids, draw, FEW)
                torch.set_num_threads(1)
            processes.wait()
            start = time.perf_counter()
            if many is not None:
                many.seconds(mine, part, FEW)
            processes.wait()
            took["together"] = time.perf_counter() - start
            processes.sum_(vector)
            took["sum"] = time.perf_counter() - start - took["together"]
            if turn:  # the first turn is a warm-up
                best = {name: min(best[name], took.get(name, math.inf)) for name in best}
            if processes.tell(turn > 1 and time.perf_counter() - begin > 3.0):
                break
        torch.set_num_threads(1)
        rounds = draw.index.shape[1] / min(FEW, draw.index.shape[1])
        return {ONE: rounds * best["alone"], MANY: rounds * best["together"] + best["sum"]}
