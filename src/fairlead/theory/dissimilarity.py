"""The smallest G and B of (G, B)-bounded gradient dissimilarity over some points (Karimireddy et al. 2020, A1)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fairlead.errors import FairleadError


def smallest_bounds(A: ArrayLike, b: ArrayLike) -> tuple[float, float]:
    """The G ≥ 0 and B ≥ 1 with G² + B²b_p ≥ A_p at all points that make G² + B²·mean(b) smallest: a linear program in
    two unknowns, solved by its vertices.

    >>> smallest_bounds([4.0, 9.0], [0.0, 5.0])  # G² = 4, B² = 1
    (2.0, 1.0)
    """
    tops, bases = np.asarray(A, float), np.asarray(b, float)
    if tops.ndim != 1 or tops.shape != bases.shape or not len(tops):
        raise FairleadError("A and b need one number for each of the same points")
    hull = _upper_hull(bases, tops)  # only these points can bind
    x, y = bases[hull], tops[hull]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        corners = np.r_[1.0, np.diff(y) / np.diff(x), y / x]
        squares = np.maximum(corners[np.isfinite(corners)], 1.0)
        floor = np.maximum(0.0, (y[None] - squares[:, None] * x[None]).max(1))
        best = int((floor + squares * bases.mean()).argmin())
    return math.sqrt(floor[best]), math.sqrt(squares[best])


def _upper_hull(x: np.ndarray, y: np.ndarray) -> list[int]:
    """The points of the upper convex hull, from left to right."""
    kept: list[int] = []
    for i in np.lexsort((-y, x)):
        if kept and x[kept[-1]] == x[i]:
            continue
        while len(kept) > 1:
            a, c = kept[-2], kept[-1]
            if (y[c] - y[a]) * (x[i] - x[a]) > (y[i] - y[a]) * (x[c] - x[a]):
                break
            kept.pop()
        kept.append(int(i))
    return kept
