"""The measured constants of a problem, as the theorems take them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fairlead.measure.bounds import dissimilarity_bounds
from fairlead.measure.functions import constants, curvature, dissimilarity, zeta_star
from fairlead.task.task import Task
from fairlead.theory import Constants


def known(
    task: Task,
    x: Tensor | None = None,
    points: Iterable[Tensor] = (),
    *,
    part: Any = None,
    **settings: Any,
) -> Constants:
    """The constants that `fl.theory` uses, measured at x (by default the starting point), at the optimum where it is known, and
    for ζ, G and B also at more points, such as those of a trajectory.

    μ is that of every client, min_i λ_min(∇²f_i), as the theorems have it; for a game that of f, and β its Lipschitz constant.
    σ is that of single samples; a batch has `batch_noise`. part: the coordinates that are variance-reduced. settings: clients,
    samples, steps, engine, weighting, seed.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=6, mu=0.5, beta=1.0, delta=0.1, gradient=2.0)
    >>> found = known(task)
    >>> round(fl.theory.best_local_steps(found), 1)  # β/δ
    10.3
    """
    start = task.start(settings.get("seed", 0))[0] if x is None else task.cast(x)
    found = constants(task, start, **settings)
    game = task.flip is not None
    names = ("mu", "beta", "delta", "sigma", "zeta_max", "zeta_pair", "D", "F")
    values = {name: found[name] for name in names if name in found}
    values["mu"] = max(0.0, found["mu"] if game else -found["weak_convexity"])
    values["beta"] = found["lipschitz"] if game else found["beta"]
    settings.pop("steps", None)
    at = [start, *([] if task.optimum is None else [task.optimum]), *map(task.cast, points)]
    seen = [dissimilarity(task, point, part=part, **settings) for point in at]
    for name in ("zeta_max", "zeta_pair"):
        values[name] = max(one[name] for one in seen)
    if not game:
        bounds = dissimilarity_bounds(task, at, values["beta"], **settings)
        values |= {"G": bounds.G, "B": bounds.B}
        with torch.no_grad():
            values["f0"] = float(task.objective(start, settings.get("weighting", "uniform")))
    if task.optimum is not None and not game:
        values["C0"] = found["zeta_star"] ** 2  # control variates start at zero
    if part is not None:
        values["zeta_hat_rest"] = max(one["zeta_hat_rest"] for one in seen)
        values["beta_p"] = curvature(task, start, part=part, delta=False, **settings)["beta_p"]
        if task.optimum is not None:
            values["zeta_rest"] = zeta_star(task, part=part, **settings)
    fine = {n: v for n, v in values.items() if math.isfinite(v) and v >= 0}
    return Constants(**fine)
