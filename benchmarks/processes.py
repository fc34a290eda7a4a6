"""Two processes on two cores against one: seconds a round of FedAvg, each in processes of their own, in turns.

    python benchmarks/processes.py [--repeats 3] [--rounds 8]

Four ways: one process with one thread, one process with two, two ranks (fl.Distributed over gloo) and two
workers (train(workers=2)) with one thread each. Medians, and the ratios that matter.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys

WORK = """
import json, sys
import numpy as np, torch, fairlead as fl
name, rounds, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
made = {
    "softmax 784→62, 20 × 5 × 240": (fl.models.mlp(784, 62), (784,), 62, 20, 5, 240),
    "MLP 784-300-300-10, 25 × 10 × 32": (fl.models.mlp(784, 300, 300, 10), (784,), 10, 25, 10, 32),
    "FEMNIST CNN, 10 × 5 × 20": (fl.models.femnist_cnn(), (1, 28, 28), 62, 10, 5, 20),
}
model, shape, classes, clients, steps, batch = made[name]
torch.manual_seed(0)
x = torch.randn(clients * steps * batch, *shape)
y = torch.randint(classes, (len(x),))
task = fl.Task(model, "cross_entropy", (x, y), np.arange(len(x)).reshape(clients, -1))
def train(rounds):
    return fl.train(task, fl.FedAvg(lr=0.01), rounds=rounds, steps=steps, batch_size=batch,
                    engine=fl.Distributed(), workers=workers, eval_every=rounds, objective=False)
train(6)
run = train(rounds)
if run.session.group.first:
    print(json.dumps([run.seconds / rounds, run.engine]))
"""
NAMES = (
    "softmax 784→62, 20 × 5 × 240",
    "MLP 784-300-300-10, 25 × 10 × 32",
    "FEMNIST CNN, 10 × 5 × 20",
)


def seconds(name: str, processes: int, threads: int, workers: int, rounds: int) -> float:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if processes > 1:
        env |= {
            "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORK, name, str(rounds), str(workers)], env={**env, "RANK": str(k)},
            stdout=subprocess.PIPE, text=True,
        )
        for k in range(processes)
    ]  # fmt: skip
    outputs = [p.communicate()[0] for p in started]
    return json.loads(outputs[0].strip().splitlines()[-1])[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    print(
        "| | 1 process, 1 thread | 1 process, 2 threads | 2 ranks | 2 workers | workers over 1 thread | "
        "over 2 threads |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in NAMES:
        # processes that are launched, threads of each, workers that it starts itself
        ways = ((1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2))
        found: dict[tuple[int, int, int], list[float]] = {way: [] for way in ways}
        for _ in range(given.repeats):
            for way, times in found.items():
                times.append(seconds(name, *way, given.rounds))
        one, threads, ranks, own = (statistics.median(times) for times in found.values())
        print(f"| {name} | {one:.3f} s | {threads:.3f} s | {ranks:.3f} s | {own:.3f} s | "
              f"{one / own:.2f} × | {threads / own:.2f} × |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
