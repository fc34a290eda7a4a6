"""FedAvg (McMahan et al. 2017; Algorithm 2 of Karimireddy et al. 2020), FedProx (Li et al. 2018) and
FedPAQ (Reisizadeh et al. 2020), with local momentum as in Das et al. 2022 (FedAvg-m, FedPAQ-m), any local
optimizer, and any aggregation.

x: the server's model     y: a client's model     dy = y − x: what it sends     Q: the compressor
lr: η_l     server_lr: η_g     mu: μ, the weight of the proximal term μ/2·‖y − x‖²
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from fairlead.compress import QSGD, Compressor
from fairlead.core.method import Algorithm, Client, Cohort, Step
from fairlead.core.records import Memory, State, Upload
from fairlead.errors import FairleadError
from fairlead.methods.aggregate import Aggregate
from fairlead.methods.local import LocalMomentum
from fairlead.methods.server import Slots
from fairlead.schedules import Rate


class Server(State):
    """The model and the server optimizer's state."""

    x: Tensor
    slots: Slots


class Kept(Memory):
    """The state of a client's optimizer, where it is kept between rounds."""

    slots: Slots


class Drift(Upload):
    """How far a client moved."""

    dy: Tensor


@dataclass(frozen=True)
class FedAvg(LocalMomentum, Algorithm[Server, Kept]):
    """Local SGD, then average.

    local: the clients' optimizer, such as `fl.local.Adam()`; SGD by default. momentum: of SGD, as in PyTorch.
    momentum_reset: start its buffer anew every round, or else let clients keep it. compressor: applied to
    what clients send. aggregate: what the server takes for the clients' step instead of their mean, such as
    `fl.aggregate.Median()`.

    >>> FedAvg(lr=0.1, momentum=0.9).lr
    0.1
    """

    paper: ClassVar[str] = "fedavg"
    lr: Rate
    compressor: Compressor | None = field(default=None, kw_only=True)
    aggregate: Aggregate | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregate is not None and not callable(self.aggregate):
            raise FairleadError(
                f"aggregate is {self.aggregate!r}: pass one such as fl.aggregate.Median()"
            )

    def init(self, x: Tensor) -> Server:
        return Server(x=x, slots={})

    def memory(self, x: Tensor) -> Kept | None:
        optimizer = self.optimizer
        return Kept(slots=optimizer.start(x)) if optimizer.keep else None

    def combine(self) -> Aggregate | None:
        """The aggregation, or None for the mean."""
        return self.aggregate

    def sees_each(self) -> bool:
        return self.combine() is not None

    def round(self, s: Server, cohort: Cohort) -> Server:
        replies, combine = cohort.run(self.local_steps, x=s.x), self.combine()
        up = replies.mean if combine is None else combine(replies)
        x, slots = self.advance(s.x, up.dy, s.slots, cohort)  # lines 14-15, of Q(y − x)
        return Server(x=x, slots=slots)

    def local_steps(self, client: Client[Kept], x: Tensor) -> Drift | tuple[Drift, Kept]:
        y, optimizer = x, self.optimizer
        slots = optimizer.begin(client, x)
        for step in client.steps(self.lr):
            d, slots = optimizer.next(step, y, self.direction(step, y, x), slots)
            y = step.at(y - step.lr * d)  # line 10
        sent = client.encode(Drift(dy=y - x), self.compressor)  # line 12
        return (sent, Kept(slots=slots)) if optimizer.keep else sent

    def direction(self, step: Step, y: Tensor, x: Tensor) -> Tensor:
        """The gradient of what a client minimizes."""
        return step.grad(y)


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term that keeps clients near the server's model.

    >>> import fairlead as fl
    >>> task = fl.problems.theorem2(gradient=10.0)
    >>> runs = [fl.train(task, FedProx(lr=0.1, mu=mu), rounds=20, steps=10) for mu in (0.0, 5.0)]
    >>> bool(runs[1].history.last("distance") < runs[0].history.last("distance"))  # less drift
    True
    """

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
    """FedAvg whose clients send quantized steps.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=4, dim=100)
    >>> runs = [fl.train(task, m(lr=0.1), rounds=1, steps=2) for m in (fl.FedAvg, FedPAQ)]
    >>> round(runs[0].ledger.up / runs[1].ledger.up)  # 64 bits per number against 3
    17
    """

    paper: ClassVar[str] = "fedpaq"
    compressor: Compressor | None = field(default_factory=QSGD, kw_only=True)
