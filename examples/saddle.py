"""A saddle problem: the area under the ROC curve, over clients of which most hold only one class.

    python examples/saddle.py            # or: python examples/saddle.py 5  for five rounds

AUC compares pairs of a positive and a negative sample. A client with one class has no such pair; as a saddle problem, min over the model
and two class means and max over one number, every client can still do its part.
"""

from __future__ import annotations

import sys

import torch

import fairlead as fl


def task() -> fl.SaddleTask:
    """The digit eight against the others, split by label across ten clients."""
    data = fl.sources.digits()
    y, y_test = (torch.where(labels == 8, 1, -1) for labels in (data.y, data.y_test))
    clients = fl.splits.similarity(y, clients=10, percent=0)
    score = torch.nn.Linear(64, 1, bias=False)
    torch.nn.init.zeros_(score.weight)
    plain = fl.Task(score, "logistic", (data.x, y), clients, test=(data.x_test, y_test), l2=1e-3)
    return fl.problems.auc_maximization(plain)


def main(rounds: int = 60) -> None:
    methods = {
        "mirror-prox": fl.MirrorProx(lr=0.01),
        "FedAvg-S": fl.FedAvg(lr=0.01),
        "SCAFFOLD-S": fl.ScaffoldS(lr=0.01),
        "SCAFFOLD-Catalyst-S": fl.Catalyst(fl.ScaffoldS(lr=0.01), theta=0.1),
    }
    print(f"{'method':20} {'AUC':>6} {'exchanges':>10} {'megabits':>9}")
    for name, method in methods.items():
        run = fl.train(task(), method, rounds=rounds, steps=5, batch_size=0.2, eval_every=rounds)
        bits = run.history.last("bits") / 1e6
        print(f"{name:20} {run.history.last('auc'):6.3f} {run.counters.exchanges:10} {bits:9.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
