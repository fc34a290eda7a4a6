"""Five methods to 66 % on CIFAR-10 with VGG-11: ten clients (Dirichlet 0.5), ten local epochs with batches of 256, on a GPU.

    FAIRLEAD_DATA=… PYTHONPATH=src:benchmarks python benchmarks/five_methods.py

Default settings but for bfloat16, one method after another in one process. Written to benchmarks/results/five_methods.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

import fairlead as fl
from bench.stored import keep
from fairlead.study.reproduce.experiments.pvr_tables import GOAL, STEPS, cifar

MODEL, ALPHA = "vgg11", 0.5
ROUNDS = 100


def methods() -> dict[str, fl.Algorithm[Any, Any]]:
    """With the authors' step sizes; a tenth of them with momentum, which moves as far."""
    lr = STEPS[MODEL, ALPHA]
    return {
        "FedAvg": fl.FedAvg(lr["FedAvg"]),
        "FedAvg-m": fl.FedAvg(lr["FedAvg"] / 10, momentum=0.9),
        "SCAFFOLD": fl.Scaffold(lr["SCAFFOLD"]),
        "FedPVR": fl.FedPVR(lr["FedPVR"], layers=-3),
        "FedProx": fl.FedProx(lr["FedAvg"], mu=0.1),
    }


def reached(task: fl.Task, method: fl.Algorithm[Any, Any], settings: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    """How a run gets to the target."""
    begin = time.perf_counter()
    run = fl.train(task, method, objective=False, progress=False, **settings)
    wall = time.perf_counter() - begin
    clock = run.history["seconds"]
    later = np.diff(clock)[1:].tolist() or [float("nan")]
    return {
        "rounds": run.rounds, "stopped": run.stopped, "accuracy": run.history.best("accuracy"), "wall": wall,
        "first_round": wall - float(clock[-1]) + float(clock[1]), "round": statistics.median(later),
        "engine": run.engine,
    }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--rounds", type=int, default=ROUNDS)
    given = asked.parse_args()
    settings: dict[str, Any] = {
        "rounds": given.rounds, "epochs": 10, "batch_size": 256, "target": {"accuracy": GOAL},
        "engine": fl.Simulate(precision="bfloat16" if given.device == "cuda" else "auto"),
    }  # fmt: skip
    task = cifar(MODEL, ALPHA, "dirichlet-balanced", None, given.device)
    rows: list[dict[str, Any]] = []
    for name, method in methods().items():
        rows.append({"method": name, **reached(task, method, settings)})
        row = rows[-1]
        print(f"{name}: {row['accuracy']:.1%} after {row['rounds']} rounds, {row['wall']:.0f} s; first round after "
              f"{row['first_round']:.1f} s, then {row['round']:.2f} s per round", flush=True)  # fmt: skip
        keep("five_methods", rows, given.device)


if __name__ == "__main__":
    main()
