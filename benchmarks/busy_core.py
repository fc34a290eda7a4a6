"""What a busy core costs two workers: fixed shares against taking turns, idle and beside a process that spins.

    PYTHONPATH=src:benchmarks python benchmarks/busy_core.py [W1 W2] [--repeats 5] [--seconds 2]

The four cases alternate, each as one `fl.train(workers=2)` of FedAvg. The spinning process is bound to one core.
Medians of seconds per round go to benchmarks/results/busy_core.json.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fairlead as fl
from bench.busy import last_core, spinning
from bench.stored import RESULTS, keep
from bench.workloads import Workload, chosen
from fairlead.engine.processes import turns
from fairlead.engine.processes.shares import balanced

WARM = 4
"""Rounds before the clock is read."""


def fixed(cost: NDArray[np.float64], processes: int, length: int) -> list[NDArray[np.int64]]:
    """One chunk for each process, which nobody else takes."""
    share = balanced(cost, np.arange(len(cost)) % processes, processes)
    return [np.flatnonzero(share == rank) for rank in range(processes)]


@contextlib.contextmanager
def sharing(rule: Callable[..., Any]) -> Iterator[None]:
    """Cut cohorts by this rule."""
    before, turns.chunks = turns.chunks, rule
    try:
        yield
    finally:
        turns.chunks = before


def seconds(work: Workload, task: fl.Task, rounds: int) -> float:
    """Seconds per round of a run with two workers."""
    run = fl.train(
        task, fl.FedAvg(lr=work.lr), rounds=WARM + rounds, steps=work.steps, batch_size=work.batch,
        eval_every=WARM, objective=False, engine="loop", workers=2, progress=False,
    )  # fmt: skip
    rows = {row["round"]: row["seconds"] for row in run.history.rows}
    return (rows[WARM + rounds] - rows[WARM]) / rounds


def measured(work: Workload, repeats: int, length: float, core: int) -> dict[str, Any]:
    """All turns of the four cases."""
    task = work.task()
    rules = {"fixed shares": fixed, "turns": turns.chunks}
    found: dict[str, dict[str, list[float]]] = {
        state: {name: [] for name in rules} for state in ("idle", "one core busy")
    }
    rounds = max(2 * WARM, round(length / seconds(work, task, WARM)) // WARM * WARM)
    for turn in range(repeats):
        for state, times in found.items():
            with spinning(core if state == "one core busy" else None):
                for name, rule in rules.items():
                    with sharing(rule):
                        times[name].append(seconds(work, task, rounds))
                    print(f"{work.name} {state}, {name}, turn {turn + 1}: {times[name][-1] * 1e3:.1f} ms", flush=True)  # fmt: skip
    medians = {s: {n: statistics.median(t) for n, t in times.items()} for s, times in found.items()}
    return {"name": work.name, "title": work.title, "rounds": rounds, "turns": found, "medians": medians}  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("workloads", nargs="*", default=["W1", "W2"])
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--seconds", type=float, default=2.0, help="about how long a turn is")
    given = asked.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("error: two workers need two cores")
    torch.set_num_threads(2)
    rows = [measured(w, given.repeats, given.seconds, last_core()) for w in chosen(given.workloads, "cpu")]  # fmt: skip
    for row in rows:
        for state, medians in row["medians"].items():
            print(row["name"], state, {name: f"{s * 1e3:.1f} ms" for name, s in medians.items()})
    print(f"written: {keep('busy_core', rows).relative_to(RESULTS.parents[1])}")


if __name__ == "__main__":
    main()
