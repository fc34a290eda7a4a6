"""FedAdagrad, FedAdam and FedYogi, Algorithm 2 of Reddi et al. 2021.

x: the server's model     Δ: the mean client step     m, v: its first and second moments
server_lr: η     beta1, beta2: β_1, β_2     tau: τ, the degree of adaptivity (larger is less adaptive); v starts at τ²

As in the paper and unlike torch's Adam, there is no bias correction. `FedAvg(server=…)` accepts any torch
optimizer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import Memory, State
from fairlead.errors import FairleadError, positive
from fairlead.methods.fedavg import Drift
from fairlead.schedules import Rate


class Server(State):
    """The model and two moments."""

    x: Tensor
    m: Tensor
    v: Tensor


@dataclass(frozen=True)
class FedOpt(Algorithm[Server, Memory]):
    """FedAvg with an adaptive server step."""

    paper: ClassVar[str] = "fedopt"
    refuses: ClassVar[Mapping[str, str]] = {
        "server": "the server's step is part of the method",
    }
    lr: Rate
    server_lr: Rate = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    compressor: Compressor | None = None

    def __post_init__(self) -> None:
        positive("tau", self.tau)
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise FairleadError(
                f"beta1 is {self.beta1} and beta2 {self.beta2}: both must be in [0, 1)"
            )

    @abstractmethod
    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The next second moment."""

    def init(self, x: Tensor) -> Server:
        return Server(x=x, m=torch.zeros_like(x), v=torch.full_like(x, self.tau**2))

    def round(self, s: Server, cohort: Cohort) -> Server:
        delta = cohort.run(self.local, x=s.x).mean.dy
        m = self.beta1 * s.m + (1 - self.beta1) * delta
        v = self.second(s.v, delta**2)
        rate = cohort.rate(self.server_lr)
        return Server(x=s.x + rate * m / (v.sqrt() + self.tau), m=m, v=v)

    def local(self, client: Client[Any], x: Tensor) -> Drift:
        y = x
        for step in client.steps(self.lr):
            y = step.at(y - step.lr * step.grad(y))
        return client.encode(Drift(dy=y - x), self.compressor)


@dataclass(frozen=True)
class FedAdagrad(FedOpt):
    """FedAvg with Adagrad at the server."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """FedAvg with Adam at the server."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(FedOpt):
    """FedAvg with Yogi at the server."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()
