"""Optimizers of clients: what becomes of a gradient in a local step.

g: the gradient of what a client minimizes     d: the direction, y ← y − η·d     η: the method's `lr`
m, v: the first and second moments of g     t: steps taken     λ: weight_decay

`FedAvg(lr=0.001, local=fl.local.Adam())` takes the steps of `torch.optim.Adam(lr=0.001)`, and the others
those of their namesakes there. The step size is the method's, so schedules, grids and `tune` work as ever.

>>> import fairlead as fl
>>> task = fl.problems.random_quadratics(clients=4)
>>> adam = fl.FedAvg(lr=0.05, local=fl.local.Adam(clip=1.0, keep=True))
>>> run = fl.train(task, adam, rounds=3, steps=5)
>>> sorted(run.client_states([0]).slots)  # what Adam keeps on a client
['m', 't', 'v']
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from fairlead.core.method import Client, Step
from fairlead.errors import FairleadError, positive
from fairlead.methods.server import ServerStep

Slots: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class LocalOptimizer(ABC):
    """What the optimizers of clients have in common.

    weight_decay: λ, added to the gradient as λy (AdamW: to the direction). clip: the largest norm of a
    step's gradient, before weight decay; longer ones are shortened to it. keep: whether a client keeps the
    optimizer's state until its next round, instead of starting anew in every round.
    """

    decoupled: ClassVar[bool] = False
    """Whether weight decay is added to the direction instead of the gradient."""
    weight_decay: float = 0.0
    clip: float | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.weight_decay < math.inf:
            raise FairleadError(f"weight_decay is {self.weight_decay}: must be at least 0")
        if self.clip is not None:
            positive("clip", self.clip)

    @abstractmethod
    def start(self, x: Tensor) -> Slots:
        """The state before the first step."""

    @abstractmethod
    def turn(self, g: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        """The direction d and the next state, from a gradient."""

    def begin(self, client: Client[Any], x: Tensor) -> Slots:
        """The state at the start of a client's round."""
        return client.memory.slots if self.keep else self.start(x)

    def kept(self, slots: Slots) -> Slots:
        """What a client keeps of the state between rounds."""
        return slots if self.keep else {}

    def next(self, step: Step, y: Tensor, g: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        """The direction of a step from y with gradient g, and the next state."""
        if self.clip is not None:
            norm = g.norm(dim=-1, keepdim=True)
            g = g * (self.clip / (norm + 1e-6)).clamp(max=1.0)  # as in torch
        if self.weight_decay and not self.decoupled:
            g = g + self.weight_decay * y
        d, new = self.turn(g, slots)
        if self.weight_decay and self.decoupled:
            d = d + self.weight_decay * y
        if self.keep and isinstance(step.lr, Tensor):  # clients without steps left stay as they are
            new = {name: torch.where(step.lr > 0, new[name], old) for name, old in slots.items()}
        return d, new


@dataclass(frozen=True)
class SGD(LocalOptimizer):
    """Stochastic gradient descent: buf ← momentum·buf + g, d = buf."""

    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _fraction("momentum", self.momentum)
        if self.keep and not self.momentum:
            raise FairleadError("SGD without momentum has no state to keep: omit keep")

    def start(self, x: Tensor) -> Slots:
        return {"buffer": torch.zeros_like(x)} if self.momentum else {}

    def turn(self, g: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        if not self.momentum:
            return g, slots
        buffer = self.momentum * slots["buffer"] + g
        return buffer, {"buffer": buffer}


@dataclass(frozen=True)
class Adam(LocalOptimizer):
    """Adam (Kingma and Ba 2015): d = m̂/(√v̂ + ε) with both moments corrected for their start at zero.

    >>> Adam(beta2=0.99, clip=1.0).beta2
    0.99
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        _fraction("beta1", self.beta1)
        _fraction("beta2", self.beta2)
        positive("eps", self.eps)

    def start(self, x: Tensor) -> Slots:
        return {
            "m": torch.zeros_like(x), "v": torch.zeros_like(x), "t": torch.zeros_like(x[..., :1]),
        }  # fmt: skip

    def turn(self, g: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        m = self.beta1 * slots["m"] + (1 - self.beta1) * g
        v = self.beta2 * slots["v"] + (1 - self.beta2) * g**2
        t = slots["t"] + 1
        m_hat, v_hat = m / _one_less_power(self.beta1, t), v / _one_less_power(self.beta2, t)
        return m_hat / (v_hat.sqrt() + self.eps), {"m": m, "v": v, "t": t}


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): d = m̂/(√v̂ + ε) + λy."""

    decoupled: ClassVar[bool] = True
    weight_decay: float = field(default=0.01, kw_only=True)


@dataclass(frozen=True)
class RMSprop(LocalOptimizer):
    """RMSprop (Tieleman and Hinton 2012): v ← αv + (1 − α)g², d = g/(√v + ε), with momentum if wanted."""

    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _fraction("alpha", self.alpha)
        _fraction("momentum", self.momentum)
        positive("eps", self.eps)

    def start(self, x: Tensor) -> Slots:
        return {"v": torch.zeros_like(x), **SGD(self.momentum).start(x)}

    def turn(self, g: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        v = self.alpha * slots["v"] + (1 - self.alpha) * g**2
        d, rest = SGD(self.momentum).turn(g / (v.sqrt() + self.eps), slots)
        return d, {**rest, "v": v}


OPTIMIZERS: dict[str, type[LocalOptimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop": RMSprop,
}


def _fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise FairleadError(f"{name} is {value}: must be in [0, 1)")


def _one_less_power(beta: float, t: Tensor) -> Tensor:
    """1 − β^t, without the cancellation of single precision when β is close to one."""
    return -torch.expm1(t * (math.log(beta) if beta else -math.inf))


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """The setting of methods whose local steps any optimizer can take; their client program is called
    `local_steps`.

    local: the clients' optimizer, such as `fl.local.Adam()`; plain SGD by default.
    """

    local: LocalOptimizer | None = None

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if callable(cls.__dict__.get("local")):
            raise FairleadError(
                f"{cls.__name__} defines `local`, which is the optimizer of its clients: call the client program "
                "`local_steps`"
            )

    def __post_init__(self) -> None:
        if self.local is not None and not isinstance(self.local, LocalOptimizer):
            raise FairleadError(
                f"local is {self.local!r}: pass an optimizer such as fl.local.Adam(beta2=0.99)"
            )

    @property
    def optimizer(self) -> LocalOptimizer:
        """The clients' optimizer."""
        return self.local or SGD()


@dataclass(frozen=True, kw_only=True)
class LocalMomentum(LocalSteps, ServerStep):
    """Settings of local steps with momentum, and of the server's step.

    momentum: of the local steps, in [0, 1), as in PyTorch: buf ← m·buf + g, y ← y − η·buf. momentum_reset:
    whether the buffer starts at zero every round; if not, a client keeps it until the next round in which it
    takes part. The papers leave open which.
    """

    momentum: float = 0.0
    momentum_reset: bool = True

    def __post_init__(self) -> None:
        LocalSteps.__post_init__(self)
        ServerStep.__post_init__(self)
        _fraction("momentum", self.momentum)
        if not self.momentum_reset and not self.momentum:
            raise FairleadError(
                "momentum_reset=False needs momentum, as there is no buffer to keep without it"
            )
        if self.local is not None and self.momentum:
            raise FairleadError(
                "momentum and local are both given: set the momentum of the local optimizer instead"
            )

    @property
    def optimizer(self) -> LocalOptimizer:
        return self.local or SGD(self.momentum, keep=not self.momentum_reset)
