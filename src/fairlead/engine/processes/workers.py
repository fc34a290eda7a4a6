"""How many processes a run uses on a CPU: by default one per core if a round is enough work for them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fairlead.engine.processes.local import LocalProcesses, hindrance
from fairlead.errors import FairleadError

Workers: TypeAlias = int | Literal["auto"] | None
AUTO = ("auto", None)
ENOUGH = 1 << 28
"""Parameters times samples of a round from which one process per core is the default: some 50 ms of work."""


@dataclass(frozen=True)
class Workforce:
    """How many processes, and why; `optional` if one will do where others cannot be started."""

    count: int = 1
    why: str = ""
    optional: bool = False

    def start(self) -> LocalProcesses:
        """The processes, for a `with` block."""
        return LocalProcesses(self.count, self.optional)


def workforce(
    workers: Workers, device: torch.device, work: NDArray[np.float64], before: int | None
) -> Workforce:
    """The processes of a run; `work` is that of the clients of a round, in parameters times samples, and
    `before` how many processes it had, if it is resumed."""
    why = hindrance(device)
    if workers in AUTO:
        return Workforce() if why else _by_work(work, before)
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise FairleadError(f'workers is {workers!r}: must be a number of processes, or "auto"')
    if workers == 1:
        return Workforce()
    if why:
        raise FairleadError(f"workers is {workers}, but there can be only one process: {why}")
    return Workforce(workers, f"{workers} processes, as asked for")


def _by_work(work: NDArray[np.float64], before: int | None) -> Workforce:
    """One process per core if every core has clients and enough to do, otherwise one. This does not depend
    on measurements or on the number of rounds, so equal runs are run equally."""
    if before is not None:
        why = f"{before} processes, as it was begun"
        return Workforce(before, why, optional=True) if before > 1 else Workforce()
    cores = min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
    if not 2 <= cores <= len(work) or work.sum() < ENOUGH:
        return Workforce()
    return Workforce(cores, f"{cores} processes, one per core", optional=True)
