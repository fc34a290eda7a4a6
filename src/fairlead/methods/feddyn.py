"""FedDyn, Algorithm 1 of Acar et al. 2021: dynamic regularization.

x: the server's model     y: a client's model     g_i: its linear term, h: the server's mean of them
lr: step size of the local solver     alpha: α
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import Memory, State, Upload
from fairlead.errors import positive
from fairlead.methods.local import LocalSteps
from fairlead.methods.server import Slots
from fairlead.schedules import Rate


class Server(State):
    """The model and the mean of the clients' linear terms."""

    x: Tensor
    h: Tensor


class Kept(Memory):
    """A client's linear term, and the state of its optimizer where that is kept."""

    g: Tensor
    slots: Slots


class Drift(Upload):
    """How far a client moved."""

    dy: Tensor


@dataclass(frozen=True)
class FedDyn(LocalSteps, Algorithm[Server, Kept]):
    """Local SGD on f_i − ⟨g_i, y⟩ + α/2·‖y − x‖², whose stationary points are those of f.

    local: another optimizer for this local problem; the paper leaves open how it is solved.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=6, gradient=5.0)
    >>> runs = [fl.train(task, m, rounds=30, steps=10) for m in (fl.FedAvg(0.2), FedDyn(0.2, alpha=1.0))]
    >>> [bool(run.history.last("distance") < 0.1) for run in runs]
    [False, True]
    """

    paper: ClassVar[str] = "feddyn"
    refuses: ClassVar[Mapping[str, str]] = {
        "server": "the server's step is part of the method",
        "momentum": "give its local solver one, local=fl.local.SGD(momentum=0.9)",
    }
    lr: Rate
    alpha: float = 0.1
    compressor: Compressor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("alpha", self.alpha)

    def init(self, x: Tensor) -> Server:
        return Server(x=x, h=torch.zeros_like(x))

    def memory(self, x: Tensor) -> Kept:
        return Kept(g=torch.zeros_like(x), slots=self.optimizer.kept(self.optimizer.start(x)))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.run(self.local_steps, x=s.x)
        dy = up.mean.dy
        h = s.h - self.alpha * up.share * dy
        return Server(x=s.x + dy - h / self.alpha, h=h)

    def local_steps(self, client: Client[Kept], x: Tensor) -> tuple[Drift, Kept]:
        y, g_i, optimizer = x, client.memory.g, self.optimizer
        slots = optimizer.begin(client, x)
        for step in client.steps(self.lr):
            g = step.grad(y) - g_i + self.alpha * (y - x)
            d, slots = optimizer.next(step, y, g, slots)
            y = step.at(y - step.lr * d)
        sent = client.encode(Drift(dy=y - x), self.compressor)
        g_i = g_i - self.alpha * sent.dy  # as received, so h is their mean
        return sent, Kept(g=g_i, slots=optimizer.kept(slots))
