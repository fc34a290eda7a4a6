"""FedSGD and minibatch SGD: one server step along the mean gradient at x, no local drift.

x: the server's model     g: a client's gradient at x     lr: the server's step size
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import Memory, State, Upload
from fairlead.schedules import Rate


class Server(State):
    """The model."""

    x: Tensor


class Gradient(Upload):
    """A client's gradient at x."""

    g: Tensor


@dataclass(frozen=True)
class FedSGD(Algorithm[Server, Memory]):
    """Large-batch SGD: every client sends its full local gradient at x.

    >>> import fairlead as fl
    >>> task = fl.problems.theorem2(gradient=10.0)  # its mean is x²/2
    >>> float(fl.train(task, FedSGD(lr=0.5), rounds=3).x)  # halved three times, whatever the clients' gradients
    0.125
    """

    paper: ClassVar[str] = "scaffold"
    refuses: ClassVar[Mapping[str, str]] = {
        "server": "FedAvg with one step on all data is equivalent, and accepts one",
        "momentum": "it has no local steps",
        "local": "it has no local steps",
    }
    lr: Rate
    compressor: Compressor | None = None

    def init(self, x: Tensor) -> Server:
        return Server(x=x)

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.run(self.local, x=s.x).mean
        return Server(x=s.x - cohort.rate(self.lr) * up.g)

    def local(self, client: Client[Any], x: Tensor) -> Gradient:
        return client.encode(Gradient(g=self.gradient(client, x)), self.compressor)

    def gradient(self, client: Client[Any], x: Tensor) -> Tensor:
        """A client's gradient at x."""
        return client.grad(x)


@dataclass(frozen=True)
class MinibatchSGD(FedSGD):
    """Like FedSGD, with the mean of the round's K minibatch gradients, all at x.

    >>> import fairlead as fl
    >>> task = fl.problems.synthetic_logistic(clients=4, samples=20)
    >>> run = fl.train(task, MinibatchSGD(lr=0.5), rounds=3, steps=5, batch_size=4)
    >>> run.counters.gradients  # three rounds of four clients with five batches of four
    240
    """

    def gradient(self, client: Client[Any], x: Tensor) -> Tensor:
        g = torch.zeros_like(x)
        for step in client.steps(1.0):  # weight one per step, zero once a client is done
            g = g + step.lr * step.grad(x)
        return g / client.moved
