"""DP-FedAvg, McMahan, Ramage, Talwar and Zhang 2018: differential privacy for clients.

Δ_i = y_i − x: a client's step     norm: C     noise: z, the noise multiplier     S: clients that answered
x ← x + η_g·(mean_i min(1, C/‖Δ_i‖)·Δ_i + zC/S·n) with n standard normal; every client counts once
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fairlead.methods.aggregate import Aggregate, ClippedMean
from fairlead.methods.fedavg import FedAvg
from fairlead.methods.privacy import Sampling, epsilon


@dataclass(frozen=True)
class DPFedAvg(FedAvg):
    """FedAvg whose clients' steps are clipped, and whose server adds noise.

    norm: C, the largest norm of a client's step. noise: z, the noise multiplier.

    >>> DPFedAvg(lr=0.1, norm=0.5, noise=1.1).combine()
    ClippedMean(norm=0.5, noise=1.1)
    """

    paper: ClassVar[str] = "dp-fedavg"
    refuses: ClassVar[Mapping[str, str]] = {
        "aggregate": "its privacy is that of the clipped mean with noise",
        "buffers": "the statistics of BatchNorm layers would leave the clients without noise",
    }
    norm: float = 1.0
    noise: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.combine()  # checks the norm and the noise

    def combine(self) -> Aggregate:
        return ClippedMean(self.norm, self.noise)

    def epsilon(
        self, delta: float, rounds: int, clients: int, cohort: int, sampling: Sampling = "fixed"
    ) -> float:
        """The ε of (ε, δ) differential privacy after so many rounds: see `fairlead.methods.privacy`. Needs
        `pip install dp-accounting`."""
        return epsilon(self.noise, delta, rounds, clients, cohort, sampling)
