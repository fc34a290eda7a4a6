"""Momentum of local steps, as in PyTorch: buf ← m·buf + g, y ← y − η·buf.

The papers leave open what becomes of a client's buffer between its rounds. By default it starts at zero every
round, as in code that makes a new optimizer per round; `momentum_reset=False` is the other reading, in
which the buffer is part of what a client keeps.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fairlead.core.method import Step
from fairlead.errors import FairleadError
from fairlead.methods.server import ServerStep


@dataclass(frozen=True, kw_only=True)
class LocalMomentum(ServerStep):
    """Settings of local momentum, and of the server's step.

    momentum: of the local steps, in [0, 1). momentum_reset: whether the buffer starts at zero every round; if
    not, a client keeps it until the next round in which it takes part.
    """

    momentum: float = 0.0
    momentum_reset: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise FairleadError(f"momentum is {self.momentum}: must be in [0, 1)")
        if not self.momentum_reset and not self.momentum:
            raise FairleadError(
                "momentum_reset=False needs momentum, as there is no buffer to keep without it"
            )

    def pushed(self, step: Step, buffer: Tensor, g: Tensor) -> Tensor:
        """The next buffer."""
        if not self.momentum:
            return g
        new = self.momentum * buffer + g
        if self.momentum_reset:
            return new
        return (step.lr > 0) * new + (step.lr <= 0) * buffer  # unchanged once no steps are left
