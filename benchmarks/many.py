"""Fifteen runs at once (3 seeds × 5 step sizes) against one: softmax 784→62, 20 clients × 5 steps × 240.

    python benchmarks/many.py [cpu|cuda]

The two take turns in one process; the ratio of the medians is printed, with evaluation in every round
and with one at the end, and the largest difference from single runs.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import torch

import fairlead as fl

RATES, SEEDS = (0.3, 0.1, 0.03, 0.01, 0.003), (0, 1, 2)


def workload(device: str) -> fl.Task:
    """Twenty clients with 1200 samples each."""
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(24_000, 784)), dtype=torch.float32)
    y = torch.tensor(rng.integers(0, 62, 24_000))
    parts = np.arange(24_000).reshape(20, 1200)
    test = (x[:2000], y[:2000])
    return fl.Task(fl.models.mlp(784, 62), "cross_entropy", (x, y), parts, test=test, device=device)


def main(device: str) -> None:
    task, rounds = workload(device), 30 if device == "cuda" else 5
    for name, kind in (("FedAvg", fl.FedAvg), ("SCAFFOLD", fl.Scaffold)):
        runs = [(kind(lr=lr), seed) for lr in RATES for seed in SEEDS]
        for every in (rounds, 1):
            work = {"rounds": rounds, "steps": 5, "batch_size": 240, "engine": "vmap",
                    "eval_every": every, "progress": False}  # fmt: skip
            one, many, apart = [], [], 0.0
            for turn in range(4):
                begin = time.perf_counter()
                single = fl.train(task, runs[4][0], seed=runs[4][1], **work)
                middle = time.perf_counter()
                found = fl.train_many(task, runs, together=True, **work)
                end = time.perf_counter()
                apart = max(apart, float((found[4].x - single.x).abs().max()))
                if turn:  # the first one warms up
                    one.append((middle - begin) / rounds)
                    many.append((end - middle) / rounds)
            a, b = statistics.median(one), statistics.median(many)
            print(f"{name}, evaluated every {every}: one run {1e3 * a:.2f} ms a round, "
                  f"{len(runs)} at once {1e3 * b:.2f} ms, ratio {b / a:.2f}, "
                  f"largest difference {apart:.1e}")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
