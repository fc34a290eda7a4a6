"""FedNova, Wang, Liu, Liang, Joshi and Poor 2020: normalized averaging for unequal local work.

x: the server's model     y: a client's model     d: its mean direction     moved: its Σ_k η_k
lr: η_l     server_lr: a factor on the effective step
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import Memory, State, Upload
from fairlead.schedules import Rate


class Server(State):
    """The model."""

    x: Tensor


class Normalized(Upload):
    """A client's mean direction, and the sum of its step sizes."""

    d: Tensor
    moved: Tensor

    def drift(self) -> Tensor:
        return self.d * self.moved


@dataclass(frozen=True)
class FedNova(Algorithm[Server, Memory]):
    """FedAvg over clients' mean directions, so that more local steps do not mean more weight.

    >>> import fairlead as fl
    >>> task = fl.problems.quadratics([[[1.0]], [[1.0]]], [[-1.0], [1.0]])  # optima −1 and 1, x* = 0
    >>> runs = [fl.train(task, m(lr=0.02), rounds=30, steps=[1, 9]) for m in (fl.FedAvg, FedNova)]
    >>> [bool(run.x.abs() < 0.05) for run in runs]  # nine steps count nine times, or once
    [False, True]
    """

    paper: ClassVar[str] = "fednova"
    refuses: ClassVar[Mapping[str, str]] = {
        "server": "the server's step is part of the method",
        "local": "its normalization assumes steps that are sums of gradients",
    }
    lr: Rate
    server_lr: Rate = 1.0
    compressor: Compressor | None = None

    def init(self, x: Tensor) -> Server:
        return Server(x=x)

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.run(self.local, x=s.x).mean
        rate = cohort.rate(self.server_lr)
        return Server(x=s.x - rate * up.moved * up.d)  # τ_eff·η = mean of Σ_k η_k

    def local(self, client: Client[Any], x: Tensor) -> Normalized:
        y = x
        for step in client.steps(self.lr):
            y = step.at(y - step.lr * step.grad(y))
        sent = Normalized(d=(x - y) / client.moved, moved=client.moved)
        return client.encode(sent, self.compressor)
