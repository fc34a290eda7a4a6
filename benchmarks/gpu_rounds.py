"""Rounds on a GPU: seconds per round and start-up of each workload, and the whole run W6run.

    PYTHONPATH=src:benchmarks python benchmarks/gpu_rounds.py [W1 W2 W3 W6 W6run]
    PYTHONPATH=src:benchmarks python benchmarks/gpu_rounds.py W1 W5 --method FedAvg --precision tf32 --compile false --name tf32

Each is one `fl.train`. Rounds are timed in windows by the run's own clock, which is read when the device is
done; the first two windows, in which rounds are prepared and captured, count as start-up. What is known after each workload
is written to benchmarks/results/gpu_rounds[-NAME].json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch

import fairlead as fl
from bench.ours import METHODS
from bench.stored import RESULTS, keep
from bench.workloads import WORKLOADS, Workload, chosen

DEFAULT = ("W1", "W2", "W3", "W6", "W6run")
BY_DEFAULT = {"W1": ("SCAFFOLD", "tf32"), "W6": ("FedAvg", "bfloat16"), "W6run": ("FedAvg", "bfloat16")}  # fmt: skip
"""Method and precision, where they are not SCAFFOLD and bfloat16."""
WINDOW = {"W1": 200, "W2": 100, "W3": 50, "W4": 10, "W5": 4, "W6": 50}
"""Rounds per window: some 0.1 s on an H200."""
WINDOWS = 12
COMPILE: dict[str, Any] = {"auto": "auto", "true": True, "false": False, "tuned": "tuned"}


def settings(work: Workload, window: int) -> dict[str, Any]:
    """Those of `fl.train` but for the engine."""
    everyone = work.population == work.clients
    return {
        "steps": work.steps, "batch_size": work.batch, "cohort": None if everyone else work.clients,
        "eval_every": work.eval_every or window, "objective": False, "progress": False,
    }  # fmt: skip


def rounds_of(work: Workload, task: fl.Task, method: Any, engine: fl.Simulate, window: int, windows: int) -> dict[str, Any]:  # fmt: skip
    """The time of a round, and of what comes before."""
    begin = time.perf_counter()
    run = fl.train(task, method, rounds=windows * window, engine=engine, **settings(work, window))
    wall = time.perf_counter() - begin
    clock = np.array([row["seconds"] for row in run.history.rows])
    each = np.diff(clock)[2:] / window
    middle = statistics.median(each.tolist())
    return {
        "round": middle, "windows": each.tolist(), "rounds": windows * window,
        "start_up": wall - middle * windows * window, "engine": run.engine,
    }  # fmt: skip


def whole(work: Workload, task: fl.Task, method: Any, engine: fl.Simulate) -> dict[str, Any]:
    """A run with its evaluations, from the call to its return."""
    begin = time.perf_counter()
    run = fl.train(task, method, rounds=work.rounds, engine=engine, **settings(work, 0))
    wall = time.perf_counter() - begin
    first = next(row["seconds"] for row in run.history.rows if row["round"] >= work.eval_every)
    return {
        "wall": wall, "rounds": work.rounds, "eval_every": work.eval_every, "test": work.test,
        "in_rounds": run.seconds, "first_rounds": first, "engine": run.engine,
    }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("workloads", nargs="*", default=DEFAULT, help=", ".join(WORKLOADS))
    asked.add_argument("--method", choices=sorted(METHODS))
    asked.add_argument("--precision", choices=["float32", "tf32", "bfloat16"])
    asked.add_argument("--compile", choices=COMPILE, default="true")
    asked.add_argument("--windows", type=int, default=WINDOWS, help="at least 3")
    asked.add_argument("--window", type=int, help="rounds per window")
    asked.add_argument("--rounds", type=int, help="of a whole run")
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--name", default="", help="what to add to the name of the file")
    given = asked.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: torch sees no CUDA device here")
    if given.windows < 3:
        sys.exit(f"error: windows is {given.windows}: take at least 3")
    rows: list[dict[str, Any]] = []
    begin = time.perf_counter()
    for work in chosen(given.workloads, given.device, given.rounds):
        precision: Any
        method, precision = BY_DEFAULT.get(work.name, ("SCAFFOLD", "bfloat16"))
        method, precision = given.method or method, given.precision or precision
        known = {"name": work.name, "title": work.title, "method": method, "precision": precision, "compile": given.compile}  # fmt: skip
        print(f"{work.name}: {method}, {precision}, compile {given.compile}", flush=True)
        engine = fl.Simulate(precision=precision, compile=COMPILE[given.compile])
        task, made = work.task(given.device), METHODS[method](lr=work.lr)
        if work.rounds:
            found = whole(work, task, made, engine)
            said = f"{found['wall']:.1f} s for {work.rounds} rounds"
        else:
            window = given.window or WINDOW[work.name]
            found = rounds_of(work, task, made, engine, window, given.windows)
            said = f"{found['round'] * 1e3:.3g} ms per round, start-up {found['start_up']:.1f} s"
        rows.append({**known, **found})
        print(
            f"  {said}; {found['engine']}; {time.perf_counter() - begin:.0f} s in all", flush=True
        )
        path = keep("-".join(filter(None, ["gpu_rounds", given.name])), rows, given.device)
        print(f"  written: {path.relative_to(RESULTS.parents[1])}", flush=True)
        del task


if __name__ == "__main__":
    main()
