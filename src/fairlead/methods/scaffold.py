"""SCAFFOLD, Algorithm 1 of Karimireddy et al. 2020.

x: the server's model     y: a client's model     c, c_i: control variates of server and client
lr: η_l     server_lr: η_g     client.moved: the sum of the step sizes applied, K·η_l when constant
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import Memory, State, Upload
from fairlead.errors import FairleadError, unknown
from fairlead.methods.local import LocalSteps
from fairlead.methods.server import ServerStep, Slots
from fairlead.schedules import Rate


class Server(State):
    """The model, the mean of all clients' control variates, the server optimizer's state."""

    x: Tensor
    c: Tensor
    slots: Slots


class Kept(Memory):
    """A client's control variate, and the state of its optimizer where that is kept."""

    c: Tensor
    slots: Slots


class Start(Upload):
    """A client's gradient at the starting point."""

    c: Tensor


class Deltas(Upload):
    """A client's step and the change of its control variate."""

    dy: Tensor
    dc: Tensor


@dataclass(frozen=True)
class Scaffold(LocalSteps, ServerStep, Algorithm[Server, Kept]):
    """Local SGD with control variates against client drift.

    option: "II" uses the mean gradient of the round's steps as the new control variate, "I" the
    full local gradient at x (one more pass). warm_start: start from c_i = ∇f_i(x⁰) instead of zero.
    local: the clients' optimizer, with option I only.

    >>> Scaffold(lr=0.1, momentum=0.9)
    Traceback (most recent call last):
    ...
    fairlead.errors.FairleadError: Scaffold does not support momentum: (x − y)/(K·lr) ...
    """

    paper: ClassVar[str] = "scaffold"
    lr: Rate
    option: Literal["I", "II"] = "II"
    warm_start: bool = False
    compressor: Compressor | None = None
    momentum: float = field(default=0.0, kw_only=True)
    refuses: ClassVar[Mapping[str, str]] = {
        "momentum": "(x − y)/(K·lr) would not be the mean gradient; use ScaffoldM, or a server optimizer "
        "with momentum",
        "aggregate": "c is the mean of the clients' control variates only if means are taken",
    }

    def __post_init__(self) -> None:
        LocalSteps.__post_init__(self)
        ServerStep.__post_init__(self)
        if self.option not in ("I", "II"):
            raise unknown("option", str(self.option), ["I", "II"])
        if self.local is not None and self.option == "II":
            raise FairleadError(
                "Scaffold does not support local with option II: (x − y)/(K·lr) would not be the mean gradient; "
                "use option I"
            )

    def init(self, x: Tensor) -> Server:
        return Server(x=x, c=torch.zeros_like(x), slots={})

    def memory(self, x: Tensor) -> Kept:
        return self._begun(torch.zeros_like(x), x)

    def _begun(self, c: Tensor, x: Tensor) -> Kept:
        """What a client keeps before its first step."""
        return Kept(c=c, slots=self.optimizer.kept(self.optimizer.start(x)))

    def start(self, s: Server, everyone: Cohort) -> Server:
        if not self.warm_start:
            return s
        return Server(x=s.x, c=everyone.run(self.warm, x=s.x).mean.c, slots=s.slots)

    def warm(self, client: Client[Kept], x: Tensor) -> tuple[Start, Kept]:
        c_i = client.grad(x)
        return Start(c=c_i), self._begun(c_i, x)

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.run(self.local_steps, x=s.x, c=s.c)
        x, slots = self.advance(s.x, up.mean.dy, s.slots, cohort)  # lines 16-17
        return Server(x=x, c=s.c + up.share * up.mean.dc, slots=slots)

    def local_steps(self, client: Client[Kept], x: Tensor, c: Tensor) -> tuple[Deltas, Kept]:
        y, c_i, optimizer = x, client.memory.c, self.optimizer
        slots = optimizer.begin(client, x)
        correction = c - c_i  # the same in every step
        for step in client.steps(self.lr):
            d, slots = optimizer.next(step, y, step.grad(y) + correction, slots)
            y = step.at(y - step.lr * d)  # line 10
        if self.option == "I":
            c_new = client.grad(x)  # line 12 (i)
        else:
            c_new = c_i - c + (x - y) / client.moved  # line 12 (ii)
        sent = client.encode(Deltas(dy=y - x, dc=c_new - c_i), self.compressor)  # line 13
        # with a compressor a client keeps what the server received, so that c stays the mean of c_i
        c_i = c_new if self.compressor is None else c_i + sent.dc  # line 14
        return sent, Kept(c=c_i, slots=optimizer.kept(slots))
