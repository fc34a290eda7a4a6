"""FedAvg (McMahan et al. 2017; Algorithm 2 of Karimireddy et al. 2020) and FedProx (Li et al. 2018).

x: the server's model     y: a client's model     dy = y − x: what it sends
lr: η_l     server_lr: η_g     mu: μ, the weight of the proximal term μ/2·‖y − x‖²
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fairlead.algorithm import Algorithm, Client, Cohort, Memory, State, Upload
from fairlead.algorithms.server import ServerStep, Slots
from fairlead.errors import FairleadError
from fairlead.schedules import Rate


class Server(State):
    """x and the state of the server's optimizer."""

    x: Tensor
    slots: Slots


class Drift(Upload):
    """How far a client moved."""

    dy: Tensor


@dataclass(frozen=True)
class FedAvg(ServerStep, Algorithm[Server, Memory]):
    """Local SGD, then average.

    >>> FedAvg(lr=0.1).lr
    0.1
    """

    paper: ClassVar[str] = "fedavg"
    lr: Rate

    def init(self, x: Tensor) -> Server:
        return Server(x=x, slots={})

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.run(self.local, x=s.x).mean
        x, slots = self.advance(s.x, up.dy, s.slots, cohort.round)  # x ← x + η_g·mean(y − x)
        return Server(x=x, slots=slots)

    def local(self, client: Client[Any], x: Tensor) -> Drift:
        y = x
        for step in client.steps(self.lr):
            y = y - step.lr * step.grad(y)
        return Drift(dy=y - x)


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term that holds clients near the server's model."""

    paper: ClassVar[str] = "fedprox"
    mu: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu < 0:
            raise FairleadError(f"mu is {self.mu}: the proximal weight is zero or positive")

    def local(self, client: Client[Any], x: Tensor) -> Drift:
        y = x
        for step in client.steps(self.lr):
            y = y - step.lr * (step.grad(y) + self.mu * (y - x))
        return Drift(dy=y - x)
