"""Curvature: how smooth and convex the clients' functions and their mean are, and how much their Hessians differ.

β = max_i λ_max(∇²f_i)     L = λ_max(∇²f)     μ = λ_min(∇²f)     κ = β/μ
weak = max_i −λ_min(∇²f_i)     δ = max_i‖∇²f_i − ∇²f‖     β_p = max_i‖p ⊙ ∇²f_i‖ on a part
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fairlead.core.records import Upload
from fairlead.errors import FairleadError
from fairlead.probe.lanczos import Spectrum, lanczos
from fairlead.probe.place import Found, Ids, Place, Probe, ProbedClient, coordinates, sampled, used

CHEAP = 20_000
"""Products up to which δ is computed for every client."""
TRIES = 4
"""Random vectors by which the clients with the largest ‖∇²f_i − ∇²f‖ are guessed."""


class Ends(Upload):
    """Numbers of one client: ends of spectra and their residuals."""

    each: ClassVar[tuple[str, ...]] = ("ends",)
    ends: Tensor


class Product(Upload):
    """Hessian-vector products of one client, of which the server sees the mean."""

    p: Tensor


class EndsAndProduct(Upload):
    """The ends of one client's spectrum, and a product with its Hessian, of which the server sees the mean."""

    each: ClassVar[tuple[str, ...]] = ("ends",)
    ends: Tensor
    p: Tensor


class OwnProduct(Upload):
    """A Hessian-vector product of one client, with a vector of its own."""

    each: ClassVar[tuple[str, ...]] = ("p",)
    p: Tensor


class _Spectral(Probe):
    """Programs for products with Hessians, on a sample of the clients and of their data."""

    samples: int | None
    steps: int

    def products(self, client: ProbedClient, x: Tensor, v: Tensor) -> Product:
        """The products with every row of v, side by side."""
        return Product(p=client.products(x, v, self.samples).flatten(-2))

    def distances(self, client: ProbedClient, x: Tensor, v: Tensor, mean: Tensor) -> Ends:
        """‖∇²f_i v − ∇²f v‖² for every row of v."""
        apart = client.products(x, v, self.samples) - mean
        return Ends(ends=(apart * apart).sum(-1))

    def own(self, client: ProbedClient, x: Tensor, v: Tensor, who: Tensor) -> OwnProduct:
        """The product with the row of v that belongs to the client."""
        mine = (client.ids == who).to(x.dtype) @ v
        return OwnProduct(p=client.product(x, mine, self.samples))

    def mean_of(self, at: Place, ids: Ids) -> Callable[[Tensor], Tensor]:
        """Products of rows with ∇²f."""

        def apply(v: Tensor) -> Tensor:
            rows = v if v.dim() == 2 else v[None]
            return at.run(self.products, ids, x=at.x, v=rows).p.reshape(v.shape)

        return apply

    def deviation(self, at: Place, ids: Ids, chosen: Ids) -> Spectrum:
        """The spectra of ∇²f_i − ∇²f of the chosen clients."""
        who, mean = torch.from_numpy(chosen).to(at.x), self.mean_of(at, ids)

        def apply(v: Tensor) -> Tensor:
            return at.run(self.own, chosen, x=at.x, v=v, who=who).p - mean(v)

        return lanczos(apply, at.noise(2, 1).expand(len(chosen), -1), self.steps)

    def most_different(self, at: Place, ids: Ids, count: int) -> Ids:
        """The clients whose ∇²f_i − ∇²f seems largest, by its products with random vectors."""
        v = at.noise(3, TRIES)
        mean = self.mean_of(at, ids)(v)
        sizes = at.run(self.distances, ids, x=at.x, v=v, mean=mean).ends.sum(1)
        return np.sort(ids[sizes.argsort(descending=True)[:count].cpu().numpy()])


@dataclass(frozen=True)
class Curvature(_Spectral):
    """β, L, μ, κ, δ and weak convexity at a point (Karimireddy et al. 2020, A2, A5), and β_p (Li et al. 2023, A.9), by
    Lanczos on Hessian-vector products.

    clients, samples, steps: the budget: clients, samples of each, and products per spectrum. δ of m clients costs
        m products of every client per step.
    deviants: for how many clients to compute ∇²f_i − ∇²f; by default all if that is cheap, else the three for which it
        seems largest.
    part: as in `Dissimilarity`; gives β_p.
    delta: whether to compute δ.
    """

    name: ClassVar[str] = "curvature"
    leaves: ClassVar[str] = (
        "four numbers: the ends of the spectrum of its Hessian and their residuals; products of its Hessian with "
        "vectors of the server, summed with those of others; for δ also one by one, from the clients examined"
    )
    clients: int | None = None
    samples: int | None = None
    steps: int = 30
    deviants: int | None = None
    part: Any = None
    delta: bool = True

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise FairleadError(f"steps is {self.steps}: a spectrum needs at least one product")

    def spectrum(self, client: ProbedClient, x: Tensor, start: Tensor) -> EndsAndProduct:
        """The ends of the client's own spectrum, and the first product for the one of the mean."""
        v = start.expand(*client.ids.shape[:-1], -1)
        first = client.product(x, v / v.norm(dim=-1, keepdim=True), self.samples)

        def apply(v: Tensor) -> Tensor:
            return client.product(x, v, self.samples)

        return EndsAndProduct(ends=_row(lanczos(apply, v, self.steps, first)), p=first)

    def part_norm(self, client: ProbedClient, x: Tensor, start: Tensor, reduced: Tensor) -> Ends:
        """‖p ⊙ ∇²f_i‖, by the spectrum of p ⊙ ∇²f_i ∇²f_i p."""

        def apply(v: Tensor) -> Tensor:
            once = client.product(x, reduced * v, self.samples)
            return reduced * client.product(x, once, self.samples)

        v = (reduced * start).expand(*client.ids.shape[:-1], -1)
        steps = min(self.steps, int(reduced.sum()))
        return Ends(ends=_row(lanczos(apply, v, steps)))

    def take(self, at: Place) -> Found:
        if at.flip is not None:
            raise FairleadError("the task is a saddle problem: use fl.measure.SaddleCurvature")
        ids = at.some(self.clients)
        start = at.noise(1)[0]
        own = at.run(self.spectrum, ids, x=at.x, start=start)
        rows = own.ends.to(torch.float64)
        beta, weak = float(rows[:, 1].max()), float(-rows[:, 0].min())
        whole = lanczos(self.mean_of(at, ids), start, self.steps, own.p)
        L, mu = float(whole.high), float(whole.low)
        beta, weak = max(beta, L), max(weak, -mu)  # the mean's spectrum lies inside the clients'
        values = {"beta": beta, "L": L, "mu": mu, "weak_convexity": weak}
        values |= {"kappa": beta / mu} if mu > 0 else {}
        some = len(ids) < at.clients
        ranges = {
            "beta": _above(beta, float(rows[:, 3].max()), some),
            "L": _above(L, float(whole.high_residual), some),
            "mu": (-math.inf if some else mu - float(whole.low_residual), mu),
            "weak_convexity": _above(weak, float(rows[:, 2].max()), some),
        }
        notes = sampled(at, ids, self.samples)
        if self.delta:
            values["delta"], ranges["delta"], more = self._delta(at, ids, values, some)
            notes += more
        part = coordinates(at.part if self.part is None else self.part, at.layers)
        if part is not None:
            reduced = torch.zeros_like(at.x)
            reduced[part] = 1
            squares = at.run(self.part_norm, ids, x=at.x, start=start, reduced=reduced).ends
            values["beta_p"] = math.sqrt(max(0.0, float(squares[:, 1].max())))
        residual = max(float(rows[:, 2:].max()), float(whole.residual))
        vectors = {"beta": rows[:, 1].tolist(), "residual": residual}
        count = used(at, ids, self.samples)
        return Found(values, ranges, notes, len(ids), count, vectors)

    def _delta(
        self, at: Place, ids: Ids, values: dict[str, float], some: bool
    ) -> tuple[float, tuple[float, float], list[str]]:
        n, steps = len(ids), min(self.steps, at.x.numel())
        count = self.deviants or (n if n * n * steps <= CHEAP else 3)
        chosen, notes = ids, []
        if count < n:
            chosen = self.most_different(at, ids, count)
            notes.append(
                f"δ is from the {count} of {n} clients whose Hessians seem to differ most: a lower bound"
            )
        found = self.deviation(at, ids, chosen)
        delta = float(found.norm.max())
        # Weyl's inequality: no eigenvalue of a difference exceeds the difference of the ends
        most = max(values["beta"] - values["mu"], values["L"] + values["weak_convexity"])
        if count == n:
            most = min(most, delta + float(found.residual.max()))
        return delta, (delta, math.inf if some else max(delta, most)), notes


@dataclass(frozen=True)
class SaddleCurvature(_Spectral):
    """The constants of a saddle problem at a point (Hou et al. 2021, Definitions 1 and 2): μ, the smaller of
    λ_min(∇²_xx f) and λ_min(−∇²_yy f), and β, the largest of the four block norms over all clients. `lipschitz` is
    max_i‖∇²f_i‖, which bounds how fast the gradient mappings G_i change; proofs use it, and it is at most 2β.

    clients, samples, steps: the budget, as in `Curvature`.
    """

    name: ClassVar[str] = "saddle_curvature"
    leaves: ClassVar[str] = (
        "six numbers: the norms of its Hessian and of its diagonal and off-diagonal blocks, and their residuals; products of its Hessian with "
        "vectors of the server, summed with those of others"
    )
    clients: int | None = None
    samples: int | None = None
    steps: int = 30

    def blocks(self, client: ProbedClient, x: Tensor, start: Tensor, flip: Tensor) -> Ends:
        """The norms of the diagonal blocks (the larger), of the off-diagonal ones, which are equal, and of all."""

        def part(sign: float) -> Callable[[Tensor], Tensor]:
            def apply(v: Tensor) -> Tensor:
                turned = flip * client.product(x, flip * v, self.samples)
                return (client.product(x, v, self.samples) + sign * turned) / 2

            return apply

        v = start.expand(*client.ids.shape[:-1], -1)
        ends = [lanczos(part(sign), v, self.steps) for sign in (1.0, -1.0)]
        ends.append(lanczos(lambda v: client.product(x, v, self.samples), v, self.steps))
        return Ends(ends=torch.stack([e for s in ends for e in (s.norm, s.residual)], -1))

    def take(self, at: Place) -> Found:
        if at.flip is None:
            raise FairleadError("the task is no saddle problem: use fl.measure.Curvature")
        ids, flip, start = at.some(self.clients), at.flip, at.noise(1)[0]
        rows = at.run(self.blocks, ids, x=at.x, start=start, flip=flip).ends.to(torch.float64)
        mean, mu, worst = self.mean_of(at, ids), math.inf, 0.0
        for player in (flip > 0, flip < 0):
            inside = player.to(at.x.dtype)

            def apply(v: Tensor, inside: Tensor = inside) -> Tensor:
                return flip * inside * mean(inside * v)  # −∇²_yy for the second player

            ends = lanczos(apply, inside * start, min(self.steps, int(inside.sum())))
            mu, worst = min(mu, float(ends.low)), max(worst, float(ends.low_residual))
        beta = float(rows[:, [0, 2]].max())
        some = len(ids) < at.clients
        whole = float(rows[:, 4].max())
        values = {"mu": mu, "beta": beta, "lipschitz": whole}
        values |= {"kappa": beta / mu} if mu > 0 else {}
        ranges = {
            "mu": (-math.inf if some else mu - worst, mu),
            "beta": _above(beta, float(rows[:, [1, 3]].max()), some),
            "lipschitz": _above(whole, float(rows[:, 5].max()), some),
        }
        notes = sampled(at, ids, self.samples)
        return Found(values, ranges, notes, len(ids), used(at, ids, self.samples))


def _row(ends: Spectrum) -> Tensor:
    return torch.stack([ends.low, ends.high, ends.low_residual, ends.high_residual], -1)


def _above(value: float, residual: float, some: bool) -> tuple[float, float]:
    """The range of a largest eigenvalue from its Ritz value, of some or of all clients."""
    return value, math.inf if some else value + residual
