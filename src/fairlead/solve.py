"""Reference solutions of convex tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fairlead.errors import FairleadError
from fairlead.task import Task


def minimize(
    task: Task, weighting: str | Sequence[float] = "uniform", tolerance: float = 1e-10
) -> Tensor:
    """The minimizer of a convex task's objective in float64, to a gradient norm of `tolerance`:
    L-BFGS, then Newton steps, which see below the rounding of the objective's values.

    >>> import fairlead as fl
    >>> task = fl.problems.quadratics([[[1.0]], [[3.0]]], [[-1.0], [3.0]])
    >>> torch.allclose(minimize(task), task.optimum)
    True
    """
    exact = task if task.dtype == torch.float64 else task.to(dtype=torch.float64)
    x = exact.start()[0].requires_grad_()
    optimizer = torch.optim.LBFGS(
        [x], max_iter=2000, history_size=50, line_search_fn="strong_wolfe",
        tolerance_grad=tolerance / 10, tolerance_change=0.0,
    )  # fmt: skip

    def value_and_gradient() -> float:
        value = exact.objective(x, weighting)
        (x.grad,) = torch.autograd.grad(value, x)
        return float(value.detach())

    optimizer.step(value_and_gradient)
    size = float("inf")
    for _ in range(20):
        (g,) = torch.autograd.grad(exact.objective(x, weighting), x, create_graph=True)
        size = float(g.detach().norm())
        if size <= tolerance:
            return x.detach().to(task.dtype)
        if not size < float("inf"):
            break

        def curve(v: Tensor, g: Tensor = g, x: Tensor = x) -> Tensor:
            return torch.autograd.grad(g, x, v, retain_graph=True)[0]

        x = (x - _conjugate_gradients(curve, g.detach())).detach().requires_grad_()
    raise FairleadError(
        f"the solver stopped at a gradient norm of {size:.1e}: is the problem convex, and l2 positive?"
    )


def _conjugate_gradients(curve: Callable[[Tensor], Tensor], g: Tensor) -> Tensor:
    """Solve H p = g for a positive definite H given by its products."""
    p, r, d = torch.zeros_like(g), g, g
    for _ in range(2 * len(g)):
        if float(r.norm()) <= 1e-12 * float(g.norm()):
            break
        bend = curve(d)
        step = (r @ r) / (d @ bend)
        p, rest = p + step * d, r - step * bend
        d, r = rest + (rest @ rest) / (r @ r) * d, rest
    return p
