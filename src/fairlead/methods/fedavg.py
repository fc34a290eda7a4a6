"""FedAvg (McMahan et al. 2017; Algorithm 2 of Karimireddy et al. 2020), FedProx (Li et al. 2018) and
FedPAQ (Reisizadeh et al. 2020), with local momentum as in Das et al. 2022 (FedAvg-m, FedPAQ-m).

x: the server's model     y: a client's model     dy = y − x: what it sends     Q: the compressor
lr: η_l     server_lr: η_g     mu: μ, the weight of the proximal term μ/2·‖y − x‖²
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fairlead.compress import QSGD, Compressor
from fairlead.core.method import Algorithm, Client, Cohort, Step
from fairlead.core.records import Memory, State, Upload
from fairlead.errors import FairleadError
from fairlead.methods.momentum import LocalMomentum
from fairlead.methods.server import Slots
from fairlead.schedules import Rate


class Server(State):
    """The model and the server optimizer's state."""

    x: Tensor
    slots: Slots


class Kept(Memory):
    """A client's momentum buffer, where it is kept between rounds."""

    buffer: Tensor


class Drift(Upload):
    """How far a client moved."""

    dy: Tensor


@dataclass(frozen=True)
class FedAvg(LocalMomentum, Algorithm[Server, Kept]):
    """Local SGD, then average.

    momentum: of the local steps, as in PyTorch. momentum_reset: start the buffer anew every round, or
    else let clients keep it. compressor: applied to what clients send.

    >>> FedAvg(lr=0.1, momentum=0.9).lr
    0.1
    """

    paper: ClassVar[str] = "fedavg"
    lr: Rate
    compressor: Compressor | None = field(default=None, kw_only=True)

    def init(self, x: Tensor) -> Server:
        return Server(x=x, slots={})

    def memory(self, x: Tensor) -> Kept | None:
        return None if self.momentum_reset else Kept(buffer=torch.zeros_like(x))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.run(self.local, x=s.x).mean
        x, slots = self.advance(s.x, up.dy, s.slots, cohort)  # x ← x + η_g·mean Q(y − x)
        return Server(x=x, slots=slots)

    def local(self, client: Client[Kept], x: Tensor) -> Drift | tuple[Drift, Kept]:
        y, buffer = x, torch.zeros_like(x) if self.momentum_reset else client.memory.buffer
        for step in client.steps(self.lr):
            buffer = self.pushed(step, buffer, self.direction(step, y, x))
            y = step.at(y - step.lr * buffer)
        sent = client.encode(Drift(dy=y - x), self.compressor)
        return sent if self.momentum_reset else (sent, Kept(buffer=buffer))

    def direction(self, step: Step, y: Tensor, x: Tensor) -> Tensor:
        """The gradient of what a client minimizes."""
        return step.grad(y)


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term that keeps clients near the server's model."""

    paper: ClassVar[str] = "fedprox"
    mu: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu < 0:
            raise FairleadError(f"mu is {self.mu}: must be at least 0")

    def direction(self, step: Step, y: Tensor, x: Tensor) -> Tensor:
        return step.grad(y) + self.mu * (y - x)


@dataclass(frozen=True)
class FedPAQ(FedAvg):
    """FedAvg whose clients send quantized steps."""

    paper: ClassVar[str] = "fedpaq"
    compressor: Compressor | None = field(default_factory=QSGD, kw_only=True)
