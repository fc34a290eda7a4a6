"""The server's step: x ← x + η_g·Δ, or a `torch.optim` optimizer fed with −Δ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from fairlead.core.method import Cohort
from fairlead.errors import FairleadError
from fairlead.schedules import Rate

OptimizerFactory: TypeAlias = Callable[[list[Tensor]], torch.optim.Optimizer]
Slots: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class ServerStep:
    """Settings of the server's step, shared by the methods that have one.

    server_lr: η_g. server: builds a `torch.optim` optimizer over [x], which has its own step size, for
    example `partial(torch.optim.Adam, lr=0.01)`.
    """

    server_lr: Rate = 1.0
    server: OptimizerFactory | None = None

    def __post_init__(self) -> None:
        if self.server is not None and not callable(self.server):
            raise FairleadError(
                "server must build an optimizer: pass, for example, partial(torch.optim.Adam, lr=0.01)"
            )
        if self.server is not None and self.server_lr != 1.0:
            raise FairleadError(
                "server and server_lr are both given: set the server optimizer's lr instead"
            )

    def advance(
        self, x: Tensor, delta: Tensor, slots: Slots, cohort: Cohort
    ) -> tuple[Tensor, Slots]:
        """The next x and the optimizer's state, from the mean client step."""
        if self.server is None:
            return x + cohort.rate(self.server_lr) * delta, {}
        p = torch.nn.Parameter(x.clone())
        optimizer = self.server([p])
        if slots:
            optimizer.state[p] = {name: value.clone() for name, value in slots.items()}
        p.grad = -delta
        optimizer.step()
        kept = {n: torch.as_tensor(v) for n, v in optimizer.state[p].items() if v is not None}
        return p.detach(), kept
