"""Mime and MimeLite, Karimireddy et al. 2020 ("Mime: Mimicking Centralized Stochastic Algorithms").

x: the server's model     y: a client's model     c: mean of ∇f_i(x) over the cohort, on all data or a batch
s: the server's momentum, frozen within a round     beta: β of SGDm     a: the rate of MVR

SGDm: y ← y − η((1 − β)g + βs), then s ← (1 − β)c + βs. MVR has the form of STORM: with c₋ the
mean of ∇f_i(x₋) at the last model over the same cohort, s ← a·c + (1 − a)(s + c − c₋) at the start of
the round (a = 1 in the first), and y ← y − η(g_i(y) − g_i(x) + s) with both gradients on one batch.
MimeLite omits the correction g_i(y) − g_i(x) + c and uses g_i(y); with MVR its direction is
a·g_i(y) + (1 − a)(s + g_i(y) − g_i(x)) with the s of the last round. Everything it needs is known before
the round, so its clients send gradients and step in one exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import Memory, State, Upload
from fairlead.errors import FairleadError, unknown
from fairlead.methods.fedglomo import check_batch
from fairlead.schedules import Rate


class Server(State):
    """The model, the last model and the momentum."""

    x: Tensor
    last: Tensor
    s: Tensor


class Gradient(Upload):
    """The gradient at the model."""

    c: Tensor


class Gradients(Upload):
    """Gradients at the model and at the last one, for MVR."""

    c: Tensor
    last: Tensor


class Drift(Upload):
    """How far a client moved."""

    dy: Tensor


class Lite(Upload):
    """The gradient at the model, and how far the client moved."""

    c: Tensor
    dy: Tensor


class LiteMVR(Upload):
    """`Lite` plus the gradient at the last model."""

    c: Tensor
    last: Tensor
    dy: Tensor


@dataclass(frozen=True)
class Mime(Algorithm[Server, Memory]):
    """Local steps that mimic centralized momentum SGD: two exchanges per round.

    optimizer: "sgdm" with `beta`, or "mvr" with the rate `a`. batch: samples for the gradients at the
    model (256 in FedGLOMO's experiments), the same ones for both gradients of MVR; None for all.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=6, gradient=5.0)
    >>> run = fl.train(task, Mime(lr=0.2, beta=0.5), rounds=20, steps=5)
    >>> run.counters.exchanges, bool(run.history.last("distance") < 0.1)
    (40, True)
    """

    paper: ClassVar[str] = "mime"
    refuses: ClassVar[Mapping[str, str]] = {
        "server": "the server's model is the mean of the clients'",
        "momentum": "its momentum is set by beta, and frozen within a round",
        "local": "the optimizer's state is the server's, and frozen within a round",
    }
    lr: Rate
    optimizer: Literal["sgdm", "mvr"] = "sgdm"
    beta: float = 0.9
    a: float = 0.1
    batch: int | None = None
    compressor: Compressor | None = None

    def __post_init__(self) -> None:
        check_batch("batch", self.batch)
        if self.optimizer not in ("sgdm", "mvr"):
            raise unknown("optimizer", str(self.optimizer), ["sgdm", "mvr"])
        if callable(self.beta) or not (0 <= self.beta < 1 and 0 < self.a <= 1):
            raise FairleadError(
                f"beta is {self.beta} and a is {self.a}: beta must be in [0, 1) and a in (0, 1]"
            )

    def init(self, x: Tensor) -> Server:
        return Server(x=x, last=x, s=torch.zeros_like(x))

    def next_momentum(self, s: Server, up: Any, cohort: Cohort) -> Tensor:
        """The next s, from the mean gradients of the round."""
        if self.optimizer == "sgdm":
            return (1 - self.beta) * up.c + self.beta * s.s
        a = 1.0 if cohort.first else self.a
        return a * up.c + (1 - a) * (s.s + up.c - up.last)

    def round(self, s: Server, cohort: Cohort) -> Server:
        if self.optimizer == "sgdm":
            up = cohort.run(self.gradient, x=s.x).mean
            new = self.next_momentum(s, up, cohort)
            dy = cohort.run(self.local, x=s.x, s=s.s, c=up.c).mean.dy
        else:
            up = cohort.run(self.gradients, x=s.x, last=s.last).mean
            new = self.next_momentum(s, up, cohort)
            dy = cohort.run(self.local_mvr, x=s.x, s=new).mean.dy
        return Server(x=s.x + dy, last=s.x, s=new)

    def gradient(self, client: Client[Any], x: Tensor) -> Gradient:
        return client.encode(Gradient(c=client.grad(x, self.batch)), self.compressor)

    def gradients(self, client: Client[Any], x: Tensor, last: Tensor) -> Gradients:
        sent = Gradients(c=client.grad(x, self.batch), last=client.grad(last, self.batch))
        return client.encode(sent, self.compressor)

    def local(self, client: Client[Any], x: Tensor, s: Tensor, c: Tensor) -> Drift:
        y = x
        for step in client.steps(self.lr):
            g = step.grad(y) - step.grad(x) + c
            y = step.at(y - step.lr * ((1 - self.beta) * g + self.beta * s))
        return client.encode(Drift(dy=y - x), self.compressor)

    def local_mvr(self, client: Client[Any], x: Tensor, s: Tensor) -> Drift:
        y = x
        for step in client.steps(self.lr):
            y = step.at(y - step.lr * (step.grad(y) - step.grad(x) + s))
        return client.encode(Drift(dy=y - x), self.compressor)


@dataclass(frozen=True)
class MimeLite(Mime):
    """Mime without the correction of local gradients, so that one exchange per round is enough.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=6, gradient=5.0)
    >>> runs = [fl.train(task, m(lr=0.2, beta=0.0), rounds=3, steps=5) for m in (Mime, MimeLite)]
    >>> [run.counters.exchanges for run in runs]
    [6, 3]
    >>> bool((runs[1].x - fl.train(task, fl.FedAvg(lr=0.2), rounds=3, steps=5).x).abs().max() < 1e-12)
    True
    """

    def round(self, s: Server, cohort: Cohort) -> Server:
        if self.optimizer == "sgdm":
            up = cohort.run(self.lite, x=s.x, s=s.s).mean
        else:
            a = 1.0 if cohort.first else self.a
            up = cohort.run(self.lite_mvr, x=s.x, last=s.last, s=s.s, a=a).mean
        return Server(x=s.x + up.dy, last=s.x, s=self.next_momentum(s, up, cohort))

    def lite(self, client: Client[Any], x: Tensor, s: Tensor) -> Lite:
        c, y = client.grad(x, self.batch), x
        for step in client.steps(self.lr):
            y = step.at(y - step.lr * ((1 - self.beta) * step.grad(y) + self.beta * s))
        return client.encode(Lite(c=c, dy=y - x), self.compressor)

    def lite_mvr(
        self, client: Client[Any], x: Tensor, last: Tensor, s: Tensor, a: float
    ) -> LiteMVR:
        c, before, y = client.grad(x, self.batch), client.grad(last, self.batch), x
        for step in client.steps(self.lr):
            g = step.grad(y)
            y = step.at(y - step.lr * (a * g + (1 - a) * (s + g - step.grad(x))))
        return client.encode(LiteMVR(c=c, last=before, dy=y - x), self.compressor)
