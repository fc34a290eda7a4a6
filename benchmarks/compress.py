"""What compression costs beside the local work of the round it belongs to.

QSGD encodes and decodes the steps of a cohort of 25 clients with the MLP 784-300-300-10 (25 × 328,810
numbers); the local work is a FedAvg round of that model, 10 steps of batch 32, in the same process, in
turns.

    python benchmarks/compress.py [--repeats 15] [--device cpu]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import fairlead as fl
from bench import WORKLOADS, ours
from fairlead.compress import Noise

ROUNDS = 3  # a turn of the local work


def seconds(run: Callable[[], object], device: str) -> float:
    begin = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    workload = WORKLOADS["W2"]
    runner = ours.begin(workload.asked(device=given.device, method="FedAvg", engine="auto"))
    v = torch.randn(workload.clients, workload.dim, device=given.device)
    keys = torch.randint(2**32, (workload.clients, 2), device=given.device)
    noise = Noise(keys)
    coders = {f"QSGD, {bits} bit": fl.QSGD(bits) for bits in (1, 2, 4, 8)}
    turns: dict[str, list[float]] = {name: [] for name in ("work", *coders)}
    for turn in range(given.repeats + 2):
        times = {"work": statistics.fmean(runner.run(ROUNDS))}
        for name, q in coders.items():

            def both(q: fl.QSGD = q) -> torch.Tensor:
                return q.decode(q.encode(v, noise), workload.dim, v.dtype, noise)

            times[name] = seconds(both, given.device)
        if turn >= 2:  # the first ones warm up
            for name, value in times.items():
                turns[name].append(value)
    medians = {name: statistics.median(values) for name, values in turns.items()}
    print(
        f"torch {torch.__version__}, {given.device}, {torch.get_num_threads()} threads; local work: {runner.note()}\n"
    )
    print("| | ms | share of the local work |")
    print("|---|---|---|")
    for name, value in medians.items():
        print(f"| {name} | {value * 1e3:.2f} | {value / medians['work']:.3f} |")


if __name__ == "__main__":
    main()
