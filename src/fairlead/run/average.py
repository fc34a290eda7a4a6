"""The average of a run's iterates, which theorems on convex problems speak about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fairlead.errors import FairleadError

Averaging = float | Literal["uniform"] | None


@dataclass(frozen=True)
class Average:
    """The mean of x⁰ … x^r with weights (1 − decay)^{−r}, which grow; decay 0 weighs all the same.

    >>> mean = Average.of(0.5, torch.tensor([0.0]))
    >>> mean.after(torch.tensor([3.0])).x  # weights 1 and 2
    tensor([2.])
    """

    decay: float
    x: Tensor
    total: Tensor
    """The sum of the weights over the newest one."""

    @classmethod
    def of(cls, setting: Averaging, x: Tensor) -> Average | None:
        """The average before the first round; None if none is kept."""
        if setting is None:
            return None
        decay = 0.0 if setting == "uniform" else setting
        if not isinstance(decay, int | float) or not 0 <= decay < 1:
            raise FairleadError(
                f'average is {setting!r}: give "uniform", or the decay of the weights (1 − decay)^−r in [0, 1), which '
                "is μη̃/2 in the theorems for FedAvg and SCAFFOLD"
            )
        return cls(float(decay), x, torch.ones((), dtype=torch.float64))

    def after(self, x: Tensor) -> Average:
        """The average with one more iterate."""
        total = 1 + (1 - self.decay) * self.total
        return replace(self, x=self.x + (x - self.x) / float(total), total=total)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        return {"x": self.x, "total": self.total}

    def filled(self, saved: dict[str, Tensor]) -> Average:
        """The average from what `tensors` gave."""
        return replace(
            self, x=saved["x"].to(self.x.device, copy=True), total=saved["total"].clone()
        )
