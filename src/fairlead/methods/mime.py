"""Mime and MimeLite, Karimireddy et al. 2020 ("Mime: Mimicking Centralized Stochastic Algorithms").

x: the server's model     y: a client's model     c: mean of ∇f_i(x) over the cohort
s: the server's momentum, frozen within a round     beta: β of SGDm     a: the rate of MVR

SGDm: y ← y − η((1 − β)g + βs), then s ← (1 − β)c + βs. MVR is read in the form of STORM: with c₋ the
mean of ∇f_i(x₋) at the last model over the same cohort, s ← a·c + (1 − a)(s + c − c₋) at the start of
the round (a = 1 in the first), and y ← y − η(g_i(y) − g_i(x) + s) with both gradients on one batch.
MimeLite leaves the correction g_i(y) − g_i(x) + c out and takes g_i(y); with MVR its direction is
a·g_i(y) + (1 − a)(s + g_i(y) − g_i(x)) with the s of the last round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fairlead.core.method import Algorithm, Client, Cohort, Memory, State, Upload
from fairlead.compress import Compressor
from fairlead.errors import FairleadError, unknown
from fairlead.schedules import Rate


class Server(State):
    """The model, the last model and the momentum."""

    x: Tensor
    last: Tensor
    s: Tensor


class Gradients(Upload):
    """Full gradients at the model and, for MVR, at the last one."""

    c: Tensor
    last: Tensor


class Gradient(Upload):
    """The full gradient at the model."""

    c: Tensor


class Drift(Upload):
    """How far a client moved."""

    dy: Tensor


@dataclass(frozen=True)
class Mime(Algorithm[Server, Memory]):
    """Local steps that mimic centralized momentum SGD: two exchanges a round.

    optimizer: "sgdm" with `beta`, or "mvr" with the rate `a`.
    """

    paper: ClassVar[str] = "mime"
    refuses: ClassVar[Mapping[str, str]] = {
        "server": "the server's model is the mean of the clients'",
        "momentum": "its momentum is beta, and frozen within a round",
    }
    lr: Rate
    optimizer: Literal["sgdm", "mvr"] = "sgdm"
    beta: float = 0.9
    a: float = 0.1
    compressor: Compressor | None = None
    lite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.optimizer not in ("sgdm", "mvr"):
            raise unknown("optimizer", str(self.optimizer), ["sgdm", "mvr"])
        if not 0 <= self.beta < 1 or not 0 < self.a <= 1:
            raise FairleadError(
                f"beta is {self.beta} and a is {self.a}: take 0 ≤ beta < 1 and 0 < a ≤ 1"
            )

    def init(self, x: Tensor) -> Server:
        return Server(x=x, last=x, s=torch.zeros_like(x))

    def round(self, s: Server, cohort: Cohort) -> Server:
        a = 1.0 if cohort.first else self.a
        if self.optimizer == "sgdm":
            c = cohort.run(self.gradient, x=s.x).mean.c
            new = (1 - self.beta) * c + self.beta * s.s
            down = {"s": s.s} if self.lite else {"s": s.s, "c": c}
        else:
            up = cohort.run(self.gradients, x=s.x, last=s.last).mean
            new = a * up.c + (1 - a) * (s.s + up.c - up.last)
            down = {"s": s.s if self.lite else new}
        dy = cohort.run(partial(self.local, a=a), x=s.x, **down).mean.dy
        return Server(x=s.x + dy, last=s.x, s=new)

    def gradient(self, client: Client[Any], x: Tensor) -> Gradient:
        return client.encode(Gradient(c=client.grad(x)), self.compressor)

    def gradients(self, client: Client[Any], x: Tensor, last: Tensor) -> Gradients:
        sent = Gradients(c=client.grad(x), last=client.grad(last))
        return client.encode(sent, self.compressor)

    def local(
        self, client: Client[Any], x: Tensor, s: Tensor, a: float, c: Tensor | None = None
    ) -> Drift:
        y = x
        for step in client.steps(self.lr):
            g = step.grad(y)
            if self.optimizer == "mvr":
                at_x = step.grad(x)
                d = a * g + (1 - a) * (s + g - at_x) if self.lite else g - at_x + s
            else:
                g = g if c is None else g - step.grad(x) + c
                d = (1 - self.beta) * g + self.beta * s
            y = y - step.lr * d
        return client.encode(Drift(dy=y - x), self.compressor)


@dataclass(frozen=True)
class MimeLite(Mime):
    """Mime without the correction of local gradients."""

    lite: ClassVar[bool] = True
