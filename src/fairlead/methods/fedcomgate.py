"""FedCOMGATE, Haddadpour, Kamani, Mokhtari and Mahdavi 2021: compressed gradient tracking.

w: the server's model     y: a client's model     δ_i: its tracking term     Q: the compressor
lr: η     gamma: γ, the server's step size over η·τ     τ: local steps

The paper sends Q((w − y)/η), τ times the mean of the round's directions. Here a client sends
D_i = Q((w − y)/Σ_k η_k), that mean itself, and its Σ_k η_k; then δ_i ← δ_i + D_i − D, and the server
steps by γ·mean(Ση)·D. For equal clients this is the same (Q scales with its argument); for clients with
different numbers of steps, δ_i remains a difference of mean gradients and mean δ_i remains 0.

A client's own D_i in its tracking term is the quantized one, which the server also has; `own="exact"` is
the other reading, with (w − y)/Σ_k η_k before quantization. Then mean δ_i drifts by the quantization errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import Memory, State, Upload
from fairlead.errors import FairleadError, positive, unknown
from fairlead.schedules import Rate


class Server(State):
    """The model."""

    x: Tensor


class Kept(Memory):
    """The tracking term, and the client's own D_i of this round."""

    delta: Tensor
    d: Tensor


class Mean(Upload):
    """A client's mean direction, and the sum of its step sizes."""

    d: Tensor
    moved: Tensor

    def drift(self) -> Tensor:
        return self.d * self.moved


class Nothing(Upload):
    """An acknowledgement."""


@dataclass(frozen=True)
class FedCOMGATE(Algorithm[Server, Kept]):
    """Local SGD with gradient tracking and compressed messages; two exchanges per round.

    own: the client's own direction in its tracking term, "quantized" as it was sent, or "exact".

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=6, gradient=5.0)
    >>> run = fl.train(task, FedCOMGATE(lr=0.2, compressor=fl.QSGD(4)), rounds=20, steps=5)
    >>> bool(run.client_states().delta.mean(0).abs().max() < 1e-12)  # tracking terms sum to zero
    True
    """

    paper: ClassVar[str] = "fedcomgate"
    refuses: ClassVar[Mapping[str, str]] = {
        "server": "the server's step is part of the method",
        "momentum": "its local steps are corrected; a momentum buffer would undo that",
        "local": "(w − y)/(K·lr) would not be the mean gradient",
    }
    lr: Rate
    gamma: float = 1.0
    own: Literal["quantized", "exact"] = "quantized"
    compressor: Compressor | None = None

    def __post_init__(self) -> None:
        positive("gamma", self.gamma)
        if self.own not in ("quantized", "exact"):
            raise unknown("own direction", str(self.own), ["quantized", "exact"])
        if self.compressor is not None and not self.compressor.unbiased:
            raise FairleadError(
                f"FedCOMGATE needs an unbiased compressor, but {self.compressor} is biased: use QSGD or RandK"
            )

    def init(self, x: Tensor) -> Server:
        return Server(x=x)

    def memory(self, x: Tensor) -> Kept:
        return Kept(delta=torch.zeros_like(x), d=torch.zeros_like(x))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.run(self.local, w=s.x).mean
        cohort.run(self.track, d=up.d)
        return Server(x=s.x - self.gamma * up.moved * up.d)

    def local(self, client: Client[Kept], w: Tensor) -> tuple[Mean, Kept]:
        y, delta = w, client.memory.delta
        for step in client.steps(self.lr):
            y = step.at(y - step.lr * (step.grad(y) - delta))
        mean = Mean(d=(w - y) / client.moved, moved=client.moved)
        sent = client.encode(mean, self.compressor)
        return sent, Kept(delta=delta, d=sent.d if self.own == "quantized" else mean.d)

    def track(self, client: Client[Kept], d: Tensor) -> tuple[Nothing, Kept]:
        kept = client.memory
        return Nothing(), Kept(delta=kept.delta + kept.d - d, d=kept.d)
