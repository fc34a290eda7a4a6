"""What the image pipeline costs: a FedAvg round on ResNet-8 with plain images kept as numbers, with bytes
normalised where they are used, with flips and crops, and with bytes that stay in the host's memory."""

from __future__ import annotations

import statistics
import sys

import torch

import fairlead as fl


def seconds(task: fl.Task, steps: int, batch: int, rounds: int) -> float:
    """The median time of a round, evaluation apart."""
    settings = {"steps": steps, "batch_size": batch, "objective": False, "engine": "vmap"}
    fl.train(task, fl.FedAvg(lr=0.01), rounds=3, eval_every=3, **settings)
    times = []
    for _ in range(3):
        run = fl.train(task, fl.FedAvg(lr=0.01), rounds=rounds, eval_every=rounds, **settings)
        times.append(run.seconds / rounds)
    return statistics.median(times)


def main(device: str) -> None:
    """Print seconds a round and ratios to plain numbers."""
    clients, steps, batch = (10, 5, 256) if device == "cuda" else (4, 2, 16)
    torch.manual_seed(0)
    n = clients * 1000
    x = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8)
    y = torch.randint(0, 10, (n,))
    split = fl.splits.iid(y, clients)
    plain, both = fl.Images.of(x), fl.Images.of(x, flip=True, crop=4)
    forms = {
        "numbers": ((plain(x, torch.float32), y), {}),
        "bytes": ((x, y), {"transform": plain}),
        "bytes, flip and crop": ((x, y), {"transform": both}),
        "bytes on the host, flip and crop": ((x, y), {"transform": both, "keep": "host"}),
    }
    base = None
    print(f"{clients} clients x {steps} steps x batch {batch}, ResNet-8, {device}")
    for label, (data, settings) in forms.items():
        task = fl.Task(fl.models.resnet8(), "cross_entropy", data, split, device=device, **settings)
        took = seconds(task, steps, batch, 10 if device == "cuda" else 3)
        base = base or took
        print(f"{label:36s} {1e3 * took:9.1f} ms  {took / base:5.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
