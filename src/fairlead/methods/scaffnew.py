"""Scaffnew, the federated form of ProxSkip, Mishchenko, Malinovsky, Stich and Richtárik 2022.

x: the server's model     y: a client's model     h: a client's shift, its gradient at the solution
lr: γ     p: the probability of communicating after a step

In the paper the local steps end with probability p after each one: `steps=fl.Geometric(p)` and p=p. With a
fixed number K of steps, p is 1/K (of the mean K if clients differ); with all clients and equal K this is
SCAFFOLD II with h_i = c_i − c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import Memory, State, Upload
from fairlead.errors import FairleadError
from fairlead.schedules import Rate


class Server(State):
    """The model."""

    x: Tensor


class Kept(Memory):
    """A client's shift and its final local model."""

    h: Tensor
    y: Tensor


class Drift(Upload):
    """How far a client moved, and its γ/p."""

    dy: Tensor
    t: Tensor


class Nothing(Upload):
    """An acknowledgement."""


@dataclass(frozen=True)
class Scaffnew(Algorithm[Server, Kept]):
    """Local SGD with shifts that are updated once the new model is known. Two exchanges per round;
    the theory assumes that all clients take part.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=6, gradient=5.0)
    >>> run = fl.train(task, Scaffnew(lr=0.5, p=0.2), rounds=30, steps=fl.Geometric(0.2))
    >>> bool(run.history.last("distance") < 0.1)
    True
    """

    paper: ClassVar[str] = "scaffnew"
    refuses: ClassVar[Mapping[str, str]] = {
        "server": "the server's step is part of the method",
        "momentum": "its local steps are corrected; a momentum buffer would undo that",
        "local": "its shifts estimate gradients from plain gradient steps",
        "compressor": "its shifts sum to zero only if the new model is the exact mean of the clients' models",
    }
    lr: Rate
    p: float | None = None

    def __post_init__(self) -> None:
        if self.p is not None and not 0 < self.p <= 1:
            raise FairleadError(f"p is {self.p}: must be in (0, 1]")

    def init(self, x: Tensor) -> Server:
        return Server(x=x)

    def memory(self, x: Tensor) -> Kept:
        return Kept(h=torch.zeros_like(x), y=torch.zeros_like(x))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.run(self.local, x=s.x).mean
        x = s.x + up.dy
        cohort.run(self.settle, x=x, t=up.t)  # one γ/p for all, so that the shifts sum to zero
        return Server(x=x)

    def local(self, client: Client[Kept], x: Tensor) -> tuple[Drift, Kept]:
        y, h, gamma = x, client.memory.h, None
        for step in client.steps(self.lr):
            gamma = step.lr if gamma is None else gamma
            y = step.at(y - step.lr * (step.grad(y) - h))  # line 3
        t = client.moved if self.p is None or gamma is None else 0 * client.moved + gamma / self.p
        return Drift(dy=y - x, t=t), Kept(h=h, y=y)

    def settle(self, client: Client[Kept], x: Tensor, t: Tensor) -> tuple[Nothing, Kept]:
        kept = client.memory
        h = kept.h + (x - kept.y) / t  # line 9: h ← h + p/γ·(x⁺ − x̂)
        return Nothing(), Kept(h=h, y=kept.y)
