"""FedLOMO and FedGLOMO, Das, Acharya, Hashemi, Sanghavi, Dhillon and Topcu 2022 (Algorithms 1, 2, 4, 5).

w: the server's model     v: a client's variance-reduced direction     u: the server's direction
a = w_k − w_{k,E}, b = w_{k−1} − ŵ_{k−1,E}: a client's steps from the current and the last point
lr: η_k     beta: β_k, a number or a schedule     damping: of the local momentum, 1 in the algorithm, 0.8 for heterogeneous clients
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
from fairlead.errors import FairleadError
from fairlead.schedules import Rate


class Server(State):
    """The model."""

    x: Tensor


class Steps(Upload):
    """A client's step a."""

    a: Tensor

    def drift(self) -> Tensor | None:
        return self.a


class Mixed(Steps):
    """A client's step a with its step at the last point mixed in."""

    def drift(self) -> None:
        return None


class Pair(Upload):
    """A client's step, and how it differs from its step at the last point."""

    a: Tensor
    difference: Tensor

    def drift(self) -> Tensor:
        return self.a


@dataclass(frozen=True)
class FedLOMO(Algorithm[Server, Memory]):
    """FedAvg with local variance-reducing momentum, started from a full gradient.

    first_batch: samples for the first gradient (256 in the paper's experiments); None for all.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=4)
    >>> runs = [fl.train(task, m(lr=0.1), rounds=5, steps=5) for m in (fl.FedAvg, FedLOMO)]
    >>> bool((runs[0].x - runs[1].x).abs().max() < 1e-12)  # on whole batches it is FedAvg
    True
    """

    paper: ClassVar[str] = "fedglomo"
    refuses: ClassVar[Mapping[str, str]] = {
        "server": "the server's step is part of the method",
        "momentum": "its local momentum is the variance-reducing one, with damping",
        "local": "its local steps are those of variance-reducing momentum",
    }
    lr: Rate
    damping: float = 1.0
    first_batch: int | None = None
    compressor: Compressor | None = None

    def __post_init__(self) -> None:
        check_batch("first_batch", self.first_batch)

    def init(self, x: Tensor) -> Server:
        return Server(x=x)

    def round(self, s: Server, cohort: Cohort) -> Server:
        return Server(x=s.x - cohort.run(self.local, w=s.x).mean.a)  # Algorithm 4, line 7

    def local(self, client: Client[Any], w: Tensor) -> Steps:
        (end,) = self.walk(client, w)
        return client.encode(Steps(a=w - end), self.compressor)  # Algorithm 5, line 10

    def walk(self, client: Client[Any], *starts: Tensor) -> list[Tensor]:
        """The local steps from every starting point, on the same batches (Algorithm 2)."""
        w, before, v = list(starts), list(starts), [torch.zeros_like(s) for s in starts]
        for k, step in enumerate(client.steps(self.lr)):
            for path, at in enumerate(w):
                if k == 0:
                    v[path] = client.grad(at, self.first_batch)  # line 3
                else:
                    kept = v[path] - step.grad(before[path])
                    v[path] = step.grad(at) + self.damping * kept  # line 6
            before, w = w, [at - step.lr * d for at, d in zip(w, v, strict=True)]  # line 8
            step.at(w[0])
        return w


def check_batch(name: str, size: int | None) -> None:
    """Raise unless it is a number of samples, or None for all."""
    if size is not None and (not isinstance(size, int) or size < 1):
        raise FairleadError(f"{name} is {size}: must be at least 1, or None for all samples")


class GlobalServer(State):
    """The model, the last model and the direction."""

    x: Tensor
    last: Tensor
    u: Tensor


@dataclass(frozen=True)
class FedGLOMO(Algorithm[GlobalServer, Memory]):
    """FedLOMO with momentum at the server too, computed from steps at the last two points.

    With a compressor clients send Q(a) and Q(a − b), without one a − (1 − β)b (appendix B). The
    theory assumes all clients in the first round: `cohort=fl.AllFirst(25)`. On the "equal budget" of the
    paper's experiments see `QSGD`. beta: a number, or a schedule over rounds.

    >>> FedGLOMO(lr=0.1, beta=lambda k: 0.2 * 0.98**k).beta(0)
    0.2
    """

    paper: ClassVar[str] = "fedglomo"
    refuses: ClassVar[Mapping[str, str]] = {
        "server": "the server's step is part of the method",
        "momentum": "its local momentum is the variance-reducing one, with damping",
        "local": "its local steps are those of variance-reducing momentum",
    }
    lr: Rate
    beta: Rate = 0.2
    damping: float = 1.0
    first_batch: int | None = None
    compressor: Compressor | None = None

    def __post_init__(self) -> None:
        check_batch("first_batch", self.first_batch)
        if getattr(self.beta, "per", "round") != "round":
            raise FairleadError("beta changes with the rounds: use a schedule with per='round'")
        if not callable(self.beta):
            _check_beta(self.beta)
        if self.compressor is not None and not self.compressor.unbiased:
            raise FairleadError(
                f"FedGLOMO needs an unbiased compressor, but {self.compressor} is biased: use QSGD or RandK"
            )

    def init(self, x: Tensor) -> GlobalServer:
        return GlobalServer(x=x, last=x, u=torch.zeros_like(x))

    def round(self, s: GlobalServer, cohort: Cohort) -> GlobalServer:
        beta = 1.0 if cohort.first else _check_beta(cohort.rate(self.beta))
        # line 8 is line 10 with β = 1
        if self.compressor is None:
            up = cohort.run(self.combined, w=s.x, last=s.last, beta=beta).mean
            u = (1 - beta) * s.u + up.a
        else:
            up = cohort.run(self.pair, w=s.x, last=s.last).mean
            u = beta * up.a + (1 - beta) * (s.u + up.difference)  # line 10
        return GlobalServer(x=s.x - u, last=s.x, u=u)  # line 12

    @property
    def _walk(self) -> Any:
        return FedLOMO(self.lr, self.damping, self.first_batch).walk

    def pair(self, client: Client[Any], w: Tensor, last: Tensor) -> Pair:
        end, end_last = self._walk(client, w, last)
        a, b = w - end, last - end_last
        # separate noise for both
        return client.encode(Pair(a=a, difference=a - b), self.compressor)  # line 10

    def combined(self, client: Client[Any], w: Tensor, last: Tensor, beta: float) -> Mixed:
        end, end_last = self._walk(client, w, last)
        return Mixed(a=(w - end) - (1 - beta) * (last - end_last))


def _check_beta(beta: float) -> float:
    if not 0 <= beta <= 1:
        raise FairleadError(f"beta is {beta}: must be in [0, 1]")
    return beta
