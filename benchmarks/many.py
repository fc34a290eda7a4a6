"""Several runs at once, such as seeds and step sizes, against one: the time of a round and the largest difference.

    PYTHONPATH=src:benchmarks python benchmarks/many.py [W1 W4] [--device cpu|cuda]

15 runs of W1 and W2 (3 seeds × 5 step sizes), 8 of W4. Single runs and runs at once take turns; rounds are timed in windows by
the runs' own clock. Written to benchmarks/results/many_runs-DEVICE.json.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from typing import Any

import numpy as np

import fairlead as fl
from bench.ours import METHODS
from bench.stored import keep
from bench.workloads import Workload, chosen

KINDS: dict[str, tuple[int, int, str]] = {"W1": (5, 3, "tf32"), "W2": (5, 3, "bfloat16"), "W4": (4, 2, "bfloat16")}  # fmt: skip
"""Step sizes, seeds and precision on a GPU."""
WINDOW = {"cuda": {"W1": 100, "W2": 50, "W4": 5}, "cpu": {"W1": 5, "W2": 3, "W4": 1}}
WINDOWS, TURNS = 6, 3


def timed(run: list[fl.Run], window: int) -> list[float]:
    """Seconds per round of runs that went on together, by window, without the first two."""
    clock = np.sum([[row["seconds"] for row in one.history.rows] for one in run], 0)
    return (np.diff(clock)[2:] / window).tolist()


def compared(work: Workload, method: str, device: str) -> dict[str, Any]:
    """One run, and several at once."""
    rates, seeds, precision = KINDS[work.name]
    window = WINDOW[device][work.name]
    engine: Any = fl.Simulate("vmap", precision=precision if device == "cuda" else "auto")  # pyright: ignore[reportArgumentType]
    settings: dict[str, Any] = {
        "rounds": WINDOWS * window, "steps": work.steps, "batch_size": work.batch, "engine": engine,
        "eval_every": window, "objective": False, "progress": False,
    }  # fmt: skip
    made = [METHODS[method](lr=work.lr / 2**k) for k in range(rates)]
    runs = list(itertools.product(made, range(seeds)))
    task, one, many, apart = work.task(device), [], [], 0.0
    for _ in range(TURNS):
        single = fl.train(task, runs[0][0], seed=runs[0][1], **settings)
        found = fl.train_many(task, runs, together=True, **settings)
        one += timed([single], window)
        many += timed(found, window)
        apart = max(apart, float((found[0].x - single.x).abs().max()))
    a, b = statistics.median(one), statistics.median(many)
    print(f"{work.name} {method}: one run {1e3 * a:.3g} ms per round, {len(runs)} at once {1e3 * b:.3g} ms "
          f"({b / a:.2f} ×), largest difference {apart:.1e}; {found[0].engine}", flush=True)  # fmt: skip
    return {
        "name": work.name, "title": work.title, "method": method, "precision": engine.precision, "runs": len(runs),
        "one": a, "many": b, "difference": apart, "engine": found[0].engine,
    }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("workloads", nargs="*", default=["W1", "W4"], help=", ".join(KINDS))
    asked.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = asked.parse_args()
    rows: list[dict[str, Any]] = []
    for work in chosen(given.workloads, given.device):
        if work.name not in KINDS:
            asked.error(f"{work.name} is none of {', '.join(KINDS)}")
        rows += [compared(work, method, given.device) for method in ("FedAvg", "SCAFFOLD")]
        keep(f"many_runs-{given.device}", rows, given.device)


if __name__ == "__main__":
    main()
