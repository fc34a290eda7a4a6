"""Reference solutions of convex tasks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fairlead.errors import FairleadError
from fairlead.task import Task


def minimize(
    task: Task, weighting: str | Sequence[float] = "uniform", tolerance: float = 1e-10
) -> Tensor:
    """The minimizer of a convex task's objective by L-BFGS in float64, to a gradient norm of
    `tolerance`.

    >>> import fairlead as fl
    >>> task = fl.problems.quadratics([[[1.0]], [[3.0]]], [[-1.0], [3.0]])
    >>> torch.allclose(minimize(task), task.optimum)
    True
    """
    exact = task if task.dtype == torch.float64 else task.to(dtype=torch.float64)
    x = exact.start()[0].requires_grad_()
    size = float("inf")
    for _ in range(50):
        optimizer = torch.optim.LBFGS(
            [x], max_iter=500, history_size=50, line_search_fn="strong_wolfe",
            tolerance_grad=tolerance / 10, tolerance_change=0.0,
        )  # fmt: skip

        def value_and_gradient() -> float:
            value = exact.objective(x, weighting)
            (x.grad,) = torch.autograd.grad(value, x)
            return float(value.detach())

        optimizer.step(value_and_gradient)
        value_and_gradient()
        size = float(x.grad.norm()) if x.grad is not None else 0.0
        if size <= tolerance:
            return x.detach().to(task.dtype)
    raise FairleadError(
        f"L-BFGS stopped at a gradient norm of {size:.1e}: is the problem convex, and l2 positive?"
    )
