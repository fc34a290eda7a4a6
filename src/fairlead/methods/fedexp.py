"""FedExP, Jhunjhunwala, Wang and Joshi 2023: the server's step size from how much clients disagree.

x: the server's model     Δ_i = y_i − x: a client's step     Δ: their mean     eps: ε
η_g = max(1, Σ_i w_i‖Δ_i‖² / (2(‖Δ‖² + ε))) with w_i the weights of the mean, 1/M in the paper
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from fairlead.core.method import Cohort
from fairlead.errors import FairleadError
from fairlead.methods.fedavg import FedAvg, Server


@dataclass(frozen=True)
class FedExP(FedAvg):
    """FedAvg with an extrapolated server step: the more clients disagree, the longer it is.

    eps: ε, in units of a squared step; the paper tunes it.
    """

    paper: ClassVar[str] = "fedexp"
    refuses: ClassVar[Mapping[str, str]] = {
        "server": "the server's step is part of the method",
        "server_lr": "the server's step is part of the method",
        "aggregate": "its step size belongs to the mean of the clients' steps",
    }
    eps: float = field(default=1e-3, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.eps < float("inf"):
            raise FairleadError(f"eps is {self.eps}: must be at least 0")

    def sees_each(self) -> bool:
        return True

    def round(self, s: Server, cohort: Cohort) -> Server:
        replies = cohort.run(self.local_steps, x=s.x)
        delta = replies.mean.dy
        spread = replies.weights @ replies.each.dy.square().sum(-1)  # Σ_i w_i‖Δ_i‖²
        rate = (spread / (2 * (delta.square().sum() + self.eps))).clamp(min=1.0)
        return Server(x=s.x + rate * delta, slots=s.slots)
