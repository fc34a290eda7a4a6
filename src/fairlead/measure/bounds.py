"""(G, B)-bounded gradient dissimilarity (Karimireddy et al. 2020, A1) over several points.

mean_i‖∇f_i(x)‖² ≤ G² + B²‖∇f(x)‖² for all x; for convex functions G² + 2βB²(f(x) − f*), appendix D.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fairlead.errors import FairleadError
from fairlead.measure.functions import curvature, dissimilarity, zeta_star
from fairlead.task.task import Task


@dataclass(frozen=True)
class Bounds:
    """G and B at the points that were looked at: no proof for others.

    convex: the pair (G, B) of the convex form. always: the pair G² = 2ζ_*², B² = 2, with which the convex form holds at
    every point if all f_i are convex and β-smooth. Both only if the optimum is known.
    """

    G: float
    B: float
    points: int
    convex: tuple[float, float] | None = None
    always: tuple[float, float] | None = None


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


def dissimilarity_bounds(
    task: Task, points: Iterable[Tensor], beta: float | None = None, **settings: Any
) -> Bounds:
    """G and B over the given points, such as those of a trajectory, and their convex form if the optimum is known.

    beta: the smoothness of the clients' functions; measured at the optimum by default.

    >>> import fairlead as fl
    >>> task = fl.problems.theorem2(gradient=2.0)
    >>> found = dissimilarity_bounds(task, [torch.full((1,), float(v)) for v in (-1, 0, 1)])
    >>> [round(v**2, 9) for v in found.always]
    [8.0, 2.0]
    """
    at = [task.cast(x) for x in points]
    found = [dissimilarity(task, x, pairs=False, **settings) for x in at]
    A = [one["A"] for one in found]
    G, B = smallest_bounds(A, [one["b"] for one in found])
    if task.optimum is None or task.flip is not None:
        return Bounds(G, B, len(at))
    weighting = settings.get("weighting", "uniform")
    if beta is None:
        beta = curvature(task, task.optimum, delta=False, **settings)["beta"]
    with torch.no_grad():
        least = float(task.objective(task.optimum, weighting))
        gaps = [float(task.objective(x, weighting)) - least for x in at]
    convex = smallest_bounds(A, [2 * beta * max(0.0, gap) for gap in gaps])
    star = zeta_star(task, **settings)
    return Bounds(G, B, len(at), convex, (math.sqrt(2) * star, math.sqrt(2)))
