"""Methods for saddle points, Hou, Thekumparampil, Fanti and Oh 2021 ("Efficient Algorithms for Federated
Saddle Point Optimization"), on tasks whose gradient is the mapping G = (∇x f, −∇y f).

z: the point (x, y)     G_i: a client's mapping     lr: γ     τ: local steps, `steps` in `train`
FedAvg-S is `FedAvg` on such a task; its step in the experiments is γ/(√k + 1), k over all steps.
With `steps=fl.Geometric(1/τ)` synchronization is random instead of every τ steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, get_args

import torch
from torch import Tensor

from fairlead.core.domain import Geometry, Simplex
from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import Memory, State, Upload
from fairlead.errors import FairleadError, positive, unknown
from fairlead.methods.fedavg import Drift, FedAvg
from fairlead.schedules import Rate


class Server(State):
    """The point."""

    x: Tensor


class Mapped(Upload):
    """A client's mappings over its batches, each times its step size: their mean or their sum."""

    g: Tensor


class Anchor(Upload):
    """A client's exact mapping at the anchor."""

    g: Tensor


@dataclass(frozen=True)
class MirrorDescent(Algorithm[Server, Memory]):
    """Minibatch mirror descent: z ← z − γ·mean G_i(z), over the round's batches at z.

    total: sum a round's τ mappings instead of averaging them: the paper's framework (8), also that of
        SCAFFOLD-S, with γ_l = 0 (Theorem 5) and lr as γ_g.
    geometry: if y is on a simplex, "euclidean" (steps are projected) or "entropy" (weights are
        multiplied by exp(−γ·g) and normalized); ratio: the step size there relative to the rest.

    >>> import fairlead as fl
    >>> task = fl.problems.agnostic(fl.tasks.digits(clients=4))  # client weights on a simplex
    >>> run = fl.train(task, fl.MirrorDescent(lr=0.5, geometry="entropy"), rounds=3, steps=1)
    >>> round(float(run.x[-4:].sum()), 5)
    1.0
    """

    paper: ClassVar[str] = "saddle"
    refuses: ClassVar[Mapping[str, str]] = {
        "momentum": "it has no local steps",
        "local": "it has no local steps",
    }
    lr: Rate
    total: bool = False
    geometry: Geometry = "euclidean"
    ratio: float = 1.0
    domain: Simplex | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.geometry not in get_args(Geometry):
            raise unknown("geometry", self.geometry, get_args(Geometry))
        positive("ratio", self.ratio)

    def bind(self, layers: Mapping[str, slice], domain: Simplex | None = None) -> Self:
        if domain is None and (self.geometry, self.ratio) != ("euclidean", 1.0):
            raise FairleadError(
                "no part of this task is constrained to a simplex: omit geometry and ratio"
            )
        return replace(self, domain=domain)

    def init(self, x: Tensor) -> Server:
        return Server(x=x)

    def round(self, s: Server, cohort: Cohort) -> Server:
        return Server(x=self.step(s.x, s.x, cohort))

    def step(self, z: Tensor, at: Tensor, cohort: Cohort) -> Tensor:
        """A step from z along the mean mapping at another point: one exchange."""
        g = cohort.run(self.mapped, z=at).mean.g
        return z - g if self.domain is None else self.domain.step(z, g, self.geometry, self.ratio)

    def mapped(self, client: Client[Any], z: Tensor) -> Mapped:
        g, count = torch.zeros_like(z), 0
        for step in client.steps(self.lr):
            g = g + step.lr * step.grad(z)
            count = count + (step.lr > 0)  # lr is zero once a client has no steps left
        return Mapped(g=g if self.total else g / count)


@dataclass(frozen=True)
class MirrorProx(MirrorDescent):
    """Minibatch mirror-prox (extragradient): a step to z_½, then from z along the mapping there. Two
    exchanges per round, which the paper counts as two communications.

    >>> import fairlead as fl
    >>> game = fl.problems.bilinear_game(clients=4)
    >>> runs = [fl.train(game, m(lr=0.3), rounds=15, steps=1) for m in (fl.MirrorDescent, fl.MirrorProx)]
    >>> bool(runs[1].history.last("distance") < runs[0].history.last("distance"))
    True
    """

    def round(self, s: Server, cohort: Cohort) -> Server:
        half = self.step(s.x, s.x, cohort)
        return Server(x=self.step(s.x, half, cohort))

    def communications(self) -> int:
        return 2


@dataclass(frozen=True)
class ExtraStep(FedAvg):
    """Extra Step Local SGD: FedAvg-S whose local steps look ahead, on the same batch.

    >>> import fairlead as fl
    >>> game = fl.problems.bilinear_game(clients=4)
    >>> runs = [fl.train(game, m(lr=0.1), rounds=3, steps=5) for m in (fl.FedAvg, fl.ExtraStep)]
    >>> runs[1].counters.gradients // runs[0].counters.gradients  # it looks ahead in every step
    2
    """

    paper: ClassVar[str] = "saddle"
    refuses: ClassVar[Mapping[str, str]] = {
        "momentum": "its steps look ahead instead",
        "local": "its steps look ahead along plain gradients",
    }

    def local_steps(self, client: Client[Any], x: Tensor) -> Drift:
        y = x
        for step in client.steps(self.lr):
            half = y - step.lr * step.grad(y)
            y = step.at(y - step.lr * step.grad(half))
        return client.encode(Drift(dy=y - x), self.compressor)


@dataclass(frozen=True)
class ScaffoldS(Algorithm[Server, Memory]):
    """SCAFFOLD-S, Algorithm 2: local steps corrected by the exact mapping at the last synchronized
    point. Two exchanges per round; server_lr is γ_g/γ_l.

    On a minimization task with whole batches it is y ← y − η(∇f_i(y) − ∇f_i(x) + ∇f(x)), the update (28) of
    Karimireddy et al. 2020 that the theorems IV and VIII on SCAFFOLD for quadratics are about.

    >>> import fairlead as fl
    >>> game = fl.problems.quadratic_game(clients=4, zeta=5.0)
    >>> runs = [fl.train(game, m(lr=0.1), rounds=30, steps=5) for m in (fl.FedAvg, fl.ScaffoldS)]
    >>> [bool(run.history.last("distance") < 0.03) for run in runs]
    [False, True]
    """

    paper: ClassVar[str] = "saddle"
    refuses: ClassVar[Mapping[str, str]] = {
        "local": "server_lr is the ratio of its two step sizes along the same mapping",
    }
    lr: Rate
    server_lr: Rate = 1.0

    def init(self, x: Tensor) -> Server:
        return Server(x=x)

    def round(self, s: Server, cohort: Cohort) -> Server:
        g = cohort.run(self.anchor, z=s.x).mean.g  # Algorithm 2: G(z̃)
        dz = cohort.run(self.local, z=s.x, g=g).mean.dy
        return Server(x=s.x + cohort.rate(self.server_lr) * dz)  # Algorithm 2: z̃

    def anchor(self, client: Client[Any], z: Tensor) -> Anchor:
        return Anchor(g=client.grad(z))

    def local(self, client: Client[Any], z: Tensor, g: Tensor) -> Drift:
        y = z
        for step in client.steps(self.lr):
            y = step.at(y - step.lr * (step.grad(y) - step.grad(z) + g))  # Algorithm 2: z_i
        return Drift(dy=y - z)
