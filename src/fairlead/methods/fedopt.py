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
from typing import ClassVar

import torch
from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import State
from fairlead.errors import FairleadError, positive
from fairlead.methods.fedavg import Drift, Kept
from fairlead.methods.local import LocalSteps
from fairlead.schedules import Rate


class Server(State):
    """The model and two moments."""

    x: Tensor
    m: Tensor
    v: Tensor


@dataclass(frozen=True)
class FedOpt(LocalSteps, Algorithm[Server, Kept]):
    """FedAvg with an adaptive server step. local: the clients' optimizer, as in `FedAvg`."""

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
        super().__post_init__()
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

    def memory(self, x: Tensor) -> Kept | None:
        optimizer = self.optimizer
        return Kept(slots=optimizer.start(x)) if optimizer.keep else None

    def round(self, s: Server, cohort: Cohort) -> Server:
        delta = cohort.run(self.local_steps, x=s.x).mean.dy
        m = self.beta1 * s.m + (1 - self.beta1) * delta
        v = self.second(s.v, delta**2)
        rate = cohort.rate(self.server_lr)
        return Server(x=s.x + rate * m / (v.sqrt() + self.tau), m=m, v=v)

    def local_steps(self, client: Client[Kept], x: Tensor) -> Drift | tuple[Drift, Kept]:
        y, optimizer = x, self.optimizer
        slots = optimizer.begin(client, x)
        for step in client.steps(self.lr):
            d, slots = optimizer.next(step, y, step.grad(y), slots)
            y = step.at(y - step.lr * d)
        sent = client.encode(Drift(dy=y - x), self.compressor)
        return (sent, Kept(slots=slots)) if optimizer.keep else sent


@dataclass(frozen=True)
class FedAdagrad(FedOpt):
    """FedAvg with Adagrad at the server.

    >>> FedAdagrad(lr=0.1).second(torch.tensor(1.0), torch.tensor(4.0))  # v and the squared mean step
    tensor(5.)
    """

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """FedAvg with Adam at the server.

    >>> FedAdam(lr=0.1, beta2=0.9).second(torch.tensor(1.0), torch.tensor(4.0))  # v and the squared mean step
    tensor(1.3000)
    """

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(FedOpt):
    """FedAvg with Yogi at the server.

    >>> FedYogi(lr=0.1, beta2=0.9).second(torch.tensor(1.0), torch.tensor(4.0))  # v and the squared mean step
    tensor(1.4000)
    """

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()
