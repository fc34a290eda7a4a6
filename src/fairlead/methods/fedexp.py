"""FedExP, Jhunjhunwala, Wang and Joshi 2023: the server's step size from how much clients disagree.

w: the server's iterate     Δ_i = y_i − w: a client's step     Δ: their mean     eps: ε
η_g = max(1, Σ_i w_i‖Δ_i‖² / (2(‖Δ‖² + ε))) with w_i the weights of the mean, 1/M in the paper
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from fairlead.core.method import Cohort
from fairlead.errors import FairleadError
from fairlead.methods.fedavg import FedAvg, Server
from fairlead.schedules import Rate


class Iterates(Server):
    """The model to use, and the iterate from which the next round starts."""

    w: Tensor


@dataclass(frozen=True)
class FedExP(FedAvg):
    """FedAvg with an extrapolated server step: the more clients disagree, the longer it is.

    eps: ε, a number or a schedule. average: use the mean of the last two iterates, as the paper's experiments do.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=6, gradient=5.0)
    >>> runs = [fl.train(task, m(lr=0.01), rounds=3, steps=5) for m in (fl.FedAvg, FedExP)]
    >>> bool(runs[1].history.last("distance") < runs[0].history.last("distance"))  # a longer server step
    True
    """

    paper: ClassVar[str] = "fedexp"
    refuses: ClassVar[Mapping[str, str]] = {
        "server": "the server's step is part of the method",
        "server_lr": "the server's step is part of the method",
        "aggregate": "its step size belongs to the mean of the clients' steps",
    }
    eps: Rate = field(default=1e-3, kw_only=True)
    average: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.eps) and self.eps < 0:
            raise FairleadError(f"eps is {self.eps}: must be at least 0")

    def sees_each(self) -> bool:
        return True

    def init(self, x: Tensor) -> Iterates:
        return Iterates(x=x, w=x, slots={})

    def round(self, s: Any, cohort: Cohort) -> Iterates:
        replies = cohort.run(self.local_steps, x=s.w)
        delta, eps = replies.mean.dy, cohort.rate(self.eps)
        spread = replies.weights @ replies.each.dy.square().sum(-1)  # Σ_i w_i‖Δ_i‖²
        w = s.w + (spread / (2 * (delta.square().sum() + eps))).clamp(min=1.0) * delta
        return Iterates(x=(s.w + w) / 2 if self.average and not cohort.first else w, w=w, slots={})
