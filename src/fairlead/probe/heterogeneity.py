"""How different the clients' gradients are: gradient dissimilarity and the things that papers call ζ.

g_i = ∇f_i(x) (for a saddle task the gradient mapping G_i), g = Σ p_i g_i, means are Σ p_i:
A = mean‖g_i‖²     b = ‖g‖²     A − b = mean‖g_i − g‖²
ζ_max = max‖g_i − g‖     ζ_pair = max‖g_i − g_j‖     ζ̂ = √A     ζ̂_{1−p}: ζ̂ on the coordinates outside a part
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fairlead.core.records import Upload
from fairlead.probe.place import Found, Place, Probe, ProbedClient, coordinates, sampled, used

ROOM = 1 << 30
"""Bytes of gradients that the server keeps side by side."""


class Gradient(Upload):
    """A client's gradient."""

    each: ClassVar[tuple[str, ...]] = ("g",)
    g: Tensor


class Halves(Upload):
    """A client's gradient on some of its samples, and half the difference of those on their halves."""

    each: ClassVar[tuple[str, ...]] = ("g", "h")
    g: Tensor
    h: Tensor


class Summed(Upload):
    """A client's gradient, its halves, and the squares of its norm on all coordinates and outside the part."""

    g: Tensor
    h: Tensor
    square: Tensor
    rest: Tensor


class Deviation(Upload):
    """The square of a client's distance to the mean gradient."""

    each: ClassVar[tuple[str, ...]] = ("square",)
    square: Tensor


@dataclass(frozen=True)
class Dissimilarity(Probe):
    """A, b, A − b (Karimireddy et al. 2020, A1; Das et al. 2022, (2)), ζ_max (the FedAvg study, (3)), ζ_pair (Hou et al.
    2021, Definition 6), ζ̂ and ζ̂_{1−p} (Li et al. 2023, (11), (14)) at a point; at the optimum ζ̂ is ζ_*.

    clients, samples: how many clients, and how many samples of each (an even number), to use; all by default. Squared norms of
        sampled gradients are too large by about σ²/samples: this is estimated from the two halves of the samples, and
        subtracted, so that A, b and A − b have no bias; the maxima are estimates, neither upper nor lower bounds.
    part: the coordinates that are variance-reduced, as names of layers, a mask or a slice; FedPVR's own by default.
    pairs: whether to compute ζ_pair. The server then sees every client's gradient, and otherwise only their
        sum and one number of each client, at the cost of a second pass.
    """

    name: ClassVar[str] = "dissimilarity"
    leaves: ClassVar[str] = (
        "its gradient at x (with samples=… two: of each half of them); with pairs=False only the sum over clients, and one "
        "number of each client"
    )
    clients: int | None = None
    samples: int | None = None
    part: Any = None
    pairs: bool = True

    def gradient(self, client: ProbedClient, x: Tensor) -> Gradient | Halves:
        if self.samples is None:
            return Gradient(g=client.grad(x))
        g, h = client.halves(x, self.samples)
        return Halves(g=g, h=h)

    def summed(self, client: ProbedClient, x: Tensor, reduced: Tensor) -> Summed:
        g, h = client.halves(x, self.samples)
        outside = 1 - reduced
        return Summed(
            g=g, h=h, square=_square(g) - _square(h), rest=_square(g * outside) - _square(h * outside)
        )  # fmt: skip

    def deviation(self, client: ProbedClient, x: Tensor, mean: Tensor, half: Tensor) -> Deviation:
        g, h = client.halves(x, self.samples)
        return Deviation(square=_square(g - mean) - _square(h - half))

    def take(self, at: Place) -> Found:
        ids = at.some(self.clients)
        part = coordinates(at.part if self.part is None else self.part, at.layers)
        p = at.weights[ids] / at.weights[ids].sum()
        weights = torch.from_numpy(p).to(at.x)
        fits = int(ROOM // (at.x.numel() * at.x.element_size()))
        notes = sampled(at, ids, self.samples)
        pair = None
        if self.pairs and len(ids) <= fits:
            up = at.run(self.gradient, ids, x=at.x)
            g, h = up.g, getattr(up, "h", up.g[:, :0])
            mean, half = weights @ g, weights @ h
            squares = (g * g).sum(1) - (h * h).sum(1)
            apart = ((g - mean) ** 2).sum(1) - ((h - half) ** 2).sum(1)
            rest = squares if part is None else squares - (g[:, part] ** 2).sum(1)
            if part is not None and h.numel():
                rest = rest + (h[:, part] ** 2).sum(1)
            A, rest_A = float(weights @ squares), float(weights @ rest)
            pair = farthest(g, h)
        else:
            reduced = torch.zeros_like(at.x)
            if part is not None:
                reduced[part] = 1
            up = at.run(self.summed, ids, x=at.x, reduced=reduced)
            mean, half, A, rest_A = up.g, up.h, float(up.square), float(up.rest)
            apart = at.run(self.deviation, ids, x=at.x, mean=mean, half=half).square[:, 0]
        spread, b = float(weights @ apart), float(mean @ mean - half @ half)
        most = math.sqrt(max(0.0, float(apart.max())))
        if len(ids) < at.clients and len(ids) > 1 and np.allclose(p, p[0]):
            m, n = len(ids), at.clients
            spread *= m / (m - 1) * (n - 1) / n  # without bias: the mean is the sample's own
            b = A - spread
        values = {"": spread, "A": A, "b": b, "zeta_max": most, "zeta_hat": math.sqrt(max(0.0, A))}
        ranges: dict[str, tuple[float, float]] = {}
        if len(ids) < at.clients:
            ranges["zeta_max"] = (most, math.inf)
        if pair is not None:
            values["zeta_pair"] = pair
            if len(ids) < at.clients:
                ranges["zeta_pair"] = (pair, math.inf)
        elif self.pairs:
            some = ids[:: -(-len(ids) // max(2, fits))]
            up = at.run(self.gradient, some, x=at.x)
            values["zeta_pair"] = farthest(up.g, getattr(up, "h", up.g[:, :0]))
            ranges["zeta_pair"] = (max(most, values["zeta_pair"]), 2 * most)
            notes.append(
                f"ζ_pair is from {len(some)} of {len(ids)} clients, whose gradients fit side by side: a lower bound"
            )
        if part is not None:
            values["zeta_hat_rest"] = math.sqrt(max(0.0, rest_A))
        return Found(values, ranges, notes, len(ids), used(at, ids, self.samples), {"mean": mean})


def farthest(g: Tensor, h: Tensor) -> float:
    """The largest of √(‖g_i − g_j‖² − ‖h_i − h_j‖²) over pairs of rows.

    >>> farthest(torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]), torch.zeros(3, 0))
    5.0
    """
    if len(g) < 2:
        return 0.0
    square = _distances(g) - _distances(h)
    i, j = divmod(int(square.argmax()), len(g))
    exact = ((g[i] - g[j]) ** 2).sum() - ((h[i] - h[j]) ** 2).sum()
    return math.sqrt(max(0.0, float(exact)))


def _distances(v: Tensor) -> Tensor:
    """The squares of the distances between all rows."""
    centred = (v - v.mean(0)).to(torch.float64)
    gram = centred @ centred.T
    return gram.diagonal()[:, None] + gram.diagonal()[None] - 2 * gram


def _square(v: Tensor) -> Tensor:
    return (v * v).sum(-1, keepdim=True)
