"""Where a point may lie. Most problems allow every vector; weights lie on the probability simplex."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Geometry: TypeAlias = Literal["euclidean", "entropy"]


@dataclass(frozen=True)
class Simplex:
    """Vectors with one part on the probability simplex, and free elsewhere.

    >>> simplex = Simplex(slice(1, 4))
    >>> simplex.project(torch.tensor([5.0, 1.0, 0.5, -2.0]))
    tensor([5.0000, 0.7500, 0.2500, 0.0000])
    """

    part: slice

    def project(self, z: Tensor) -> Tensor:
        """The nearest point of the set (Held, Wolfe and Crowder 1974: shift, and cut off at zero)."""
        y = z[self.part]
        y = y - y.max()  # the nearest point is the same, and large numbers lose no digits
        down = y.sort(descending=True).values
        count = torch.arange(1, len(y) + 1, device=z.device, dtype=z.dtype)
        shifts = (down.cumsum(0) - 1) / count
        kept = ((down > shifts).sum() - 1).clamp(
            min=0
        )  # how many coordinates stay positive, less one
        return self._with(z, (y - shifts.gather(0, kept[None])).clamp(min=0))

    def step(self, z: Tensor, g: Tensor, geometry: Geometry, ratio: float = 1.0) -> Tensor:
        """The point that minimizes ⟨g, u⟩ + D(u, z) over the set: D is half the squared distance, or
        on the simplex the relative entropy. `ratio` multiplies g on the simplex."""
        moved = z - g
        y, step = z[self.part], ratio * g[self.part]
        if geometry == "euclidean":
            return self.project(self._with(moved, y - step))
        return self._with(moved, torch.softmax(y.log() - step, 0))

    def _with(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.cat([z[: self.part.start], y, z[self.part.stop :]])
