"""The processes of a run on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.core.method import Algorithm
from fairlead.data.batches import Batches
from fairlead.engine.processes.local import LocalProcesses
from fairlead.engine.processes.workers import AUTO, Workers, workforce
from fairlead.engine.simulate import Simulate
from fairlead.errors import FairleadError
from fairlead.run.checks import check
from fairlead.run.folder import Recorder
from fairlead.run.loop import Plan
from fairlead.task.task import Task


@contextlib.contextmanager
def processes_of(
    workers: Workers,
    setting: Simulate,
    task: Task,
    algorithm: Algorithm[Any, Any],
    plan: Plan,
    local: Batches,
    before: int | None,
    out: str | Path | Recorder | None,
) -> Iterator[tuple[LocalProcesses, str]]:
    """The processes of a run, and why that many; workers live as long as the block."""

    with contextlib.ExitStack() as stack:
        try:
            if workers != 1:
                check(task, algorithm, plan, local)  # while one process can report errors
            work = np.zeros(0)
            free = type(setting) is Simulate and setting.mode != "debug" and not setting.threads
            if workers in AUTO and free:
                work = _work(task, plan, local)
            force = workforce(workers, task.device, work, before)
            processes = stack.enter_context(force.start())
        except FairleadError as error:
            if isinstance(out, Recorder):
                out.failed(error)
            raise
        yield processes, processes.hindered or force.why


def _work(task: Task, plan: Plan, local: Batches) -> NDArray[np.float64]:
    """What the clients of the first round do, in parameters times samples."""
    first = plan.sampler.cohort(plan.seed, 0, task.clients)
    return task.dim * local.cost(plan.seed, 0, first, task.sizes[first])
