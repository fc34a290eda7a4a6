"""A method of your own in forty lines: FedAvg whose clients remember where they ended.

Each client starts its local steps from a mixture of the server's model and its own last model.
The same code runs vectorised, one client at a time, and in the debug engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import fairlead as fl


class Server(fl.State):
    x: Tensor


class Last(fl.Memory):
    """Where the client ended its last round, relative to the server's model then."""

    d: Tensor


class Move(fl.Upload):
    dy: Tensor


@dataclass(frozen=True)
class StickyAvg(fl.Algorithm[Server, Last]):
    lr: float
    stick: float = 0.3

    def init(self, x: Tensor) -> Server:
        return Server(x=x)

    def memory(self, x: Tensor) -> Last:
        return Last(d=torch.zeros_like(x))

    def round(self, s: Server, cohort: fl.Cohort) -> Server:
        up = cohort.run(self.local, x=s.x).mean
        return Server(x=s.x + up.dy)

    def local(self, client: fl.Client[Last], x: Tensor) -> tuple[Move, Last]:
        y = x + self.stick * client.memory.d
        for step in client.steps(self.lr):
            y = y - step.lr * step.grad(y)
        return Move(dy=y - x), Last(d=y - x)


def main() -> None:
    task = fl.problems.random_quadratics(clients=20, gradient=10.0)
    methods = {"FedAvg": fl.FedAvg(lr=0.1), "StickyAvg": StickyAvg(lr=0.1)}
    result = fl.compare(task, methods, rounds=100, cohort=5, steps=5, seeds=3)
    print(result.to_markdown())
    result.plot("sticky.png")


if __name__ == "__main__":
    main()
