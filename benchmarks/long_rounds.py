"""Rounds of many local steps on a GPU: the time per step and the start-up, which must not grow with the steps.

PYTHONPATH=src:benchmarks python benchmarks/long_rounds.py                 # the toy problem and the FEMNIST CNN over K
PYTHONPATH=src:benchmarks python benchmarks/long_rounds.py --vgg 190 100   # VGG-11, 10 clients × batch 256: K, rounds
PYTHONPATH=src:benchmarks python benchmarks/long_rounds.py --vgg 190 100 --stop 10   # ten of these rounds

The first writes benchmarks/results/long_rounds.json, the second long_rounds-vgg11.json.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

import fairlead as fl
from bench.stored import keep

CASES = {"toy": (1, 10, 100, 1000, 3000), "cnn": (1, 5, 20, 100, 500)}


def images(clients: int, each: int, shape: tuple[int, ...], classes: int, model: Any) -> fl.Task:
    """A task of random images."""
    torch.manual_seed(0)
    n = clients * each
    data = torch.randn(n, *shape), torch.randint(classes, (n,))
    split = [np.arange(k, n, clients) for k in range(clients)]
    return fl.Task(model, "cross_entropy", data, split, device="cuda")


class Watch(fl.Callback):
    """The time at which each round ends; ends the run after some."""

    def __init__(self, stop: int | None) -> None:
        self.begun, self.ends, self.stop = time.perf_counter(), [], stop

    def round(self, view: Any) -> bool:
        torch.cuda.synchronize()
        self.ends.append(time.perf_counter() - self.begun)
        return len(self.ends) == self.stop


def timed(
    task: fl.Task, method: Any, steps: int, rounds: int, batch: int, engine: fl.Simulate, stop: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Seconds until the first round is done, and per step of the later ones."""
    watch = Watch(stop)
    run = fl.train(
        task, method, rounds=rounds, steps=steps, batch_size=batch, eval_every=rounds, objective=False,
        progress=False, engine=engine, callbacks=[watch],
    )  # fmt: skip
    later = np.diff(watch.ends)[1:]  # the second round is captured
    return {
        "steps": steps, "first_round": watch.ends[0],
        "step": float(np.median(later)) / steps, "engine": run.engine,
    }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--vgg", nargs=2, type=int, metavar=("K", "ROUNDS"))
    asked.add_argument("--stop", type=int, help="end the run after so many of its rounds")
    given = asked.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    if given.vgg:
        task = images(10, 256 * 19, (3, 32, 32), 10, fl.models.vgg11(10))
        engine = fl.Simulate(precision="bfloat16")
        found["vgg11"] = [timed(task, fl.Scaffold(lr=0.001), *given.vgg, 256, engine, given.stop)]
    else:
        tasks = {
            "toy": (fl.problems.two_gaussians().to("cuda"), fl.Simulate(compile=True)),
            "cnn": (
                images(10, 400, (1, 28, 28), 62, fl.models.femnist_cnn(62)),
                fl.Simulate(precision="bfloat16", compile=True),
            ),
        }
        for name, (task, engine) in tasks.items():
            found[name] = []
            for steps in CASES[name]:
                rounds = max(6, 600 // steps)
                row = timed(task, fl.FedAvg(lr=0.01), steps, rounds, 20, engine)
                found[name].append(row)
                print(name, steps, f"{row['step'] * 1e6:.0f} µs per step", flush=True)
    keep("long_rounds-vgg11" if given.vgg else "long_rounds", found, "cuda")


if __name__ == "__main__":
    main()
