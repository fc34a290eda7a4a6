"""FedAvg rounds of fairlead beside a hand-written PyTorch loop that computes the same gradients.

Both run in this process, in turns, on the same data, batches and threads; their results are
compared before they are timed. Also printed: the floor, which is the time that the matrix products
of the round take at the matmul rate measured here.

    python benchmarks/rounds.py [--repeats 15] [--device cpu]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import fairlead as fl


@dataclass
class Workload:
    """S clients × K steps × batch B of a fully connected model."""

    name: str
    widths: tuple[int, ...]
    clients: int
    steps: int
    batch: int

    @property
    def flops(self) -> float:
        """Multiplications and additions of forward and backward passes; the first layer needs no
        gradient of its input."""
        products = [2.0 * n * m for n, m in zip(self.widths, self.widths[1:], strict=False)]
        passes = 3 * sum(products) - products[0]
        return passes * self.clients * self.steps * self.batch


WORKLOADS = [
    Workload("softmax 784→62, 20 × 5 × 240", (784, 62), 20, 5, 240),
    Workload("MLP 784-300-300-10, 25 × 10 × 32", (784, 300, 300, 10), 25, 10, 32),
]


def make_task(w: Workload, device: str) -> fl.Task:
    """Random data, as much for every client as its steps use."""
    each = w.steps * w.batch
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(w.clients * each, w.widths[0], generator=generator)
    y = torch.randint(w.widths[-1], (len(x),), generator=generator)
    owners = list(np.arange(len(x)).reshape(w.clients, each))
    return fl.Task(fl.models.mlp(*w.widths), "cross_entropy", (x, y), owners, device=device)


def bare_loop(task: fl.Task, plan: fl.Batches, round: int, lr: float) -> Callable[[], torch.Tensor]:
    """What people write by hand: one client after another, one optimizer step after another."""
    model = task.twin().model
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    ids = np.arange(task.clients)
    x, y = task.data

    def run() -> torch.Tensor:
        draw = plan.draw(0, round, ids, task.sizes)
        total = {n: torch.zeros_like(p) for n, p in start.items()}
        for i in range(task.clients):
            mine = torch.from_numpy(task.split[i]).to(task.device)
            with torch.no_grad():
                for n, p in model.named_parameters():
                    p.copy_(start[n])
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            for k in range(draw.index.shape[1]):
                rows = mine[draw.index[i, k].to(task.device)]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
            with torch.no_grad():
                for n, p in model.named_parameters():
                    total[n] += p / task.clients
        return torch.cat([t.flatten() for t in total.values()])

    return run


def fairlead_round(
    task: fl.Task, plan: fl.Batches, round: int, lr: float, mode: str
) -> tuple[Callable[[], torch.Tensor], str]:
    """One round through the engine, set up once."""
    method = fl.FedAvg(lr=lr)
    session = fl.Simulate(mode).open(task, method, plan, task.client_weights(), 0)
    ids = np.arange(task.clients)
    session.prepare(ids)
    state = method.init(task.start(0)[0])

    def run() -> torch.Tensor:
        with torch.no_grad():
            return method.round(state, session.cohort(round, ids)).x

    return run, session.report


def seconds(run: Callable[[], object], device: str) -> float:
    begin = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def matmul_rate(device: str) -> float:
    """Floating-point operations a second of a large product."""
    n = 2048 if device == "cpu" else 8192
    a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
    return 2 * n**3 / min(seconds(lambda: a @ b, device) for _ in range(8))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    device = given.device
    rate = matmul_rate(device)
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, "
          f"matmul {rate / 1e9:.0f} GFLOP/s, medians of {given.repeats} turns\n")  # fmt: skip
    print(
        "| workload | floor ms | bare loop ms | fairlead ms | bare/fairlead | fairlead/floor | engine |"
    )
    print("|---|---|---|---|---|---|---|")
    for w in WORKLOADS:
        task = make_task(w, device)
        plan = fl.Batches(batch_size=w.batch, steps=w.steps)
        bare = bare_loop(task, plan, 0, 0.1)
        ours, report = fairlead_round(task, plan, 0, 0.1, "auto")
        torch.testing.assert_close(ours(), bare(), rtol=1e-4, atol=1e-5)
        turns: dict[str, list[float]] = {"bare": [], "ours": []}
        for _ in range(given.repeats):
            turns["bare"].append(seconds(bare, device))
            turns["ours"].append(seconds(ours, device))
        slow, fast = (statistics.median(turns[n]) for n in ("bare", "ours"))
        floor = w.flops / rate
        print(f"| {w.name} | {floor * 1e3:.1f} | {slow * 1e3:.1f} | {fast * 1e3:.1f} | {slow / fast:.2f} | "
              f"{fast / floor:.2f} | {report} |")  # fmt: skip


if __name__ == "__main__":
    main()
