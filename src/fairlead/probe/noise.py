"""The noise of stochastic gradients, and the lag of control variates behind the gradients that they estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fairlead.core.records import Upload
from fairlead.errors import FairleadError
from fairlead.probe.place import Found, Place, Probe, ProbedClient, coordinates, sampled, used


class Variance(Upload):
    """The variance of one client's gradients on single samples, on all coordinates and on the part."""

    each: ClassVar[tuple[str, ...]] = ("squares",)
    squares: Tensor


@dataclass(frozen=True)
class GradientNoise(Probe):
    """σ² = max_i E‖g_i − ∇f_i‖² for a gradient on one sample (Karimireddy et al. 2020, A4), also its mean over
    clients and σ_p² on the part (Li et al. 2023, A.15). A batch has `batch_noise(σ², b, n)`.

    clients, samples, part: as in `Dissimilarity`.
    """

    name: ClassVar[str] = "noise"
    leaves: ClassVar[str] = "one number: the variance of its gradients (two with a part)"
    clients: int | None = None
    samples: int | None = None
    part: Any = None

    def variance(self, client: ProbedClient, x: Tensor, reduced: Tensor) -> Variance:
        part = reduced.nonzero()[:, 0] if len(reduced) == x.shape[-1] else None
        found = [client.variance(x, self.samples)]
        found += [] if part is None else [client.variance(x, self.samples, part)]
        return Variance(squares=torch.cat(found, -1))

    def take(self, at: Place) -> Found:
        ids = at.some(self.clients)
        part = coordinates(at.part if self.part is None else self.part, at.layers)
        reduced = torch.zeros_like(at.x) if part is not None else at.x[:0]
        if part is not None:
            reduced[part] = 1
        rows = at.run(self.variance, ids, x=at.x, reduced=reduced).squares
        most = float(rows[:, 0].max())
        values = {"sigma2": most, "sigma": math.sqrt(most), "sigma2_mean": float(rows[:, 0].mean())}
        if part is not None:
            values["sigma2_p"] = float(rows[:, 1].max())
        some = len(ids) < at.clients
        ranges = {name: (values[name], math.inf) for name in ("sigma2", "sigma") if some}
        notes = sampled(at, ids, self.samples)[: int(some)]
        count, vectors = used(at, ids, self.samples), {"sigma2": rows[:, 0].tolist()}
        return Found(values, ranges, notes, len(ids), count, vectors)


def batch_noise(sigma2: float, batch: int, size: int) -> float:
    """E‖g − ∇f_i‖² for a batch drawn without replacement from `size` samples: σ²/b·(n − b)/(n − 1).

    >>> batch_noise(4.0, 1, 10), batch_noise(4.0, 10, 10)
    (4.0, 0.0)
    """
    if not 1 <= batch <= size:
        raise FairleadError(f"the batch is {batch}: must be between 1 and the {size} samples")
    return 0.0 if size == 1 else sigma2 / batch * (size - batch) / (size - 1)


class Lag(Upload):
    """The squares of one client's distances ‖c_i − ∇f_i‖ at x and at the optimum."""

    now: Tensor
    best: Tensor


@dataclass(frozen=True)
class ControlLag(Probe):
    """How far the control variates are behind: mean_i‖c_i − ∇f_i(x)‖² (Θ_r on FedPVR's part; Li et al. 2023, B.37), and
    C_r = mean_i‖c_i − ∇f_i(x*)‖² (Karimireddy et al. 2020, (24)) where the optimum is known. With a β-smooth f_i,
    Ξ_r of (27) is at least the first divided by β²; `LocalPoints` measures Ξ_r itself.
    """

    name: ClassVar[str] = "control_lag"
    leaves: ClassVar[str] = "two numbers, summed with those of others"
    clients: int | None = None

    def lag(self, client: ProbedClient, x: Tensor, best: Tensor) -> Lag:
        c = getattr(client.memory, "c", None)
        if c is None:
            raise FairleadError(
                "the method keeps no control variates: ControlLag is for Scaffold, FedPVR and others with c_i"
            )
        inside = slice(None) if client.part is None else client.part
        now, then = client.grad(x), client.grad(best)
        outside = _square(then) - _square(then[..., inside])  # zero unless only a part is kept
        return Lag(now=_square(c - now[..., inside]), best=_square(c - then[..., inside]) + outside)

    def take(self, at: Place) -> Found:
        ids, known = at.some(self.clients), at.optimum is not None
        up = at.run(self.lag, ids, x=at.x, best=at.optimum if at.optimum is not None else at.x)
        values = {"": float(up.now), **({"C": float(up.best)} if known else {})}
        return Found(values, {}, sampled(at, ids, None)[:1], len(ids), used(at, ids, None))


def _square(v: Tensor) -> Tensor:
    return (v * v).sum(-1, keepdim=True)
