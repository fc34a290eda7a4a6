"""SCAFFOLD with momentum (SCAFFOLD-M), Cheng, Huang, Wu and Yuan 2023.

x, y, c, c_i as in SCAFFOLD     m: the server's momentum, the last round's mean(x − y) over mean(Ση)
lr: η_l     server_lr: η_g     beta: β, the weight of the new gradient; 1 is SCAFFOLD II
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import Memory, State, Upload
from fairlead.errors import FairleadError
from fairlead.schedules import Rate


class Server(State):
    """The model, the mean control variate and the momentum."""

    x: Tensor
    c: Tensor
    m: Tensor


class Kept(Memory):
    """A client's control variate."""

    c: Tensor


class Deltas(Upload):
    """A client's step, the change of its control variate, and the sum of its step sizes."""

    dy: Tensor
    dc: Tensor
    moved: Tensor


@dataclass(frozen=True)
class ScaffoldM(Algorithm[Server, Kept]):
    """SCAFFOLD whose local steps mix in the last round's mean step.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=6, gradient=5.0)
    >>> runs = [fl.train(task, m, rounds=5, steps=5) for m in (fl.Scaffold(0.1), ScaffoldM(0.1, beta=1.0))]
    >>> bool((runs[0].x - runs[1].x).abs().max() < 1e-12)  # without momentum it is SCAFFOLD
    True
    """

    paper: ClassVar[str] = "scaffold-m"
    refuses: ClassVar[Mapping[str, str]] = {
        "server": "its momentum is the mean step, which another server step would not follow",
        "momentum": "its own momentum is set by beta",
        "aggregate": "c is the mean of the clients' control variates only if means are taken",
        "local": "(x − y)/(K·lr) would not be the mean gradient",
    }
    lr: Rate
    beta: float = 0.2
    server_lr: Rate = 1.0
    compressor: Compressor | None = None

    def __post_init__(self) -> None:
        if callable(self.beta) or not 0 < self.beta <= 1:
            raise FairleadError(f"beta is {self.beta}: must be in (0, 1]")

    def init(self, x: Tensor) -> Server:
        return Server(x=x, c=torch.zeros_like(x), m=torch.zeros_like(x))

    def memory(self, x: Tensor) -> Kept:
        return Kept(c=torch.zeros_like(x))

    def round(self, s: Server, cohort: Cohort) -> Server:
        replies = cohort.run(self.local, x=s.x, c=s.c, m=s.m)
        up = replies.mean
        x = s.x + cohort.rate(self.server_lr) * up.dy
        return Server(x=x, c=s.c + replies.share * up.dc, m=-up.dy / up.moved)

    def local(self, client: Client[Kept], x: Tensor, c: Tensor, m: Tensor) -> tuple[Deltas, Kept]:
        y, c_i, b = x, client.memory.c, self.beta
        for step in client.steps(self.lr):
            y = step.at(y - step.lr * (b * (step.grad(y) - c_i + c) + (1 - b) * m))
        c_new = c_i - c + ((x - y) / client.moved - (1 - b) * m) / b  # the mean gradient
        sent = Deltas(dy=y - x, dc=c_new - c_i, moved=client.moved)
        sent = client.encode(sent, self.compressor)
        return sent, Kept(c=c_new if self.compressor is None else c_i + sent.dc)
