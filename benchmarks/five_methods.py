"""Five methods to 66 % on CIFAR-10 with VGG-11: ten clients (Dirichlet 0.5), ten local epochs with batches of 256, on a GPU.

    FAIRLEAD_DATA=… PYTHONPATH=src:benchmarks python benchmarks/five_methods.py [--results results/pvr-table2.full.jsonl]

They are cases of `fairlead reproduce pvr-table2`, with its settings: the engine's defaults but for bfloat16. One method after another
in one process. Written to benchmarks/results/five_methods.json, and as finished cases to the file of results, if one is given.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.stored import keep
from fairlead.run.train import Run, train
from fairlead.study.reproduce.case import Case, Form, Result, Results
from fairlead.study.reproduce.experiments.pvr_tables import STEPS, PvrTable2
from fairlead.study.reproduce.runner import append, stored

MODEL, ALPHA = "vgg11", 0.5
CHOSEN = {  # label and momentum; with momentum a tenth of the step size, which moves as far
    "FedAvg": ("FedAvg", 0.0),
    "FedAvg-m": ("FedAvg", 0.9),
    "SCAFFOLD": ("SCAFFOLD", 0.0),
    "FedPVR": ("FedPVR", 0.0),
    "FedProx": ("FedProx μ=0.1", 0.0),
}


def cases(device: str) -> dict[str, Case]:
    """The five, with seed 0."""
    known = {
        (label["method"], label["momentum"], label["lr"]): case
        for case in PvrTable2().cases(Form(seeds=1, device=device), Results([]))
        if (label := case.labels)["model"] == MODEL and label["alpha"] == ALPHA
    }
    steps = STEPS[MODEL, ALPHA]
    found = {}
    for name, (method, momentum) in CHOSEN.items():
        lr = steps.get(method, steps["FedAvg"]) * (0.1 if momentum else 1.0)
        found[name] = known[method, momentum, lr]
    return found


def reached(run: Run, wall: float) -> dict[str, Any]:
    """How a run got to the target."""
    clock = run.history["seconds"]
    later = np.diff(clock)[1:].tolist() or [float("nan")]
    return {
        "rounds": run.rounds, "stopped": run.stopped, "accuracy": run.history.best("accuracy"), "wall": wall,
        "first_round": wall - float(clock[-1]) + float(clock[1]), "round": statistics.median(later),
        "engine": run.engine,
    }  # fmt: skip


def keep_case(case: Case, run: Run, file: Path) -> None:
    """Store a run as a finished case of its recipe."""
    kept = PvrTable2()
    result = Result.of(case, run, kept.targets, kept.columns)
    if result.digest not in stored(file):
        append(file, result)


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--rounds", type=int, help="at most, for a trial")
    asked.add_argument("--results", type=Path)
    given = asked.parse_args()
    rows: list[dict[str, Any]] = []
    task = None
    for name, case in cases(given.device).items():
        assert case.task is not None
        assert case.method is not None
        task = task or case.task(device=given.device)
        settings = {**case.settings, **({"rounds": given.rounds} if given.rounds else {})}
        begin = time.perf_counter()
        run = train(task, case.method, seed=0, progress=False, **settings)
        if run.stopped == "interrupted":
            raise KeyboardInterrupt
        rows.append({"method": name, **reached(run, time.perf_counter() - begin)})
        row = rows[-1]
        print(f"{name}: {row['accuracy']:.1%} after {row['rounds']} rounds, {row['wall']:.0f} s; first round after "
              f"{row['first_round']:.1f} s, then {row['round']:.2f} s per round; {row['engine']}", flush=True)  # fmt: skip
        keep("five_methods", rows, given.device)
        if given.results is not None and given.rounds is None:
            keep_case(case, run, given.results)


if __name__ == "__main__":
    main()
