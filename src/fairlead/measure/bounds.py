"""(G, B)-bounded gradient dissimilarity (Karimireddy et al. 2020, A1) over several points.

mean_i‖∇f_i(x)‖² ≤ G² + B²‖∇f(x)‖² for all x; for convex functions G² + 2βB²(f(x) − f*), appendix D.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairlead.measure.functions import curvature, dissimilarity, zeta_star
from fairlead.task.task import Task
from fairlead.theory.dissimilarity import smallest_bounds


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
