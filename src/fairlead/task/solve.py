"""Centralized reference solutions of convex tasks and convex-concave saddle tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fairlead.errors import FairleadError
from fairlead.task.evaluation import turned
from fairlead.task.saddle import SaddleTask
from fairlead.task.task import Task


def minimize(
    task: Task, weighting: str | Sequence[float] = "uniform", tolerance: float = 1e-10
) -> Tensor:
    """The minimizer of a convex task's objective in float64, to a gradient norm of `tolerance`:
    L-BFGS, then Newton steps, which are not limited by rounding in the objective's values.

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
        f"the solver stopped at a gradient norm of {size:.1e}: check that the problem is convex and l2 positive"
    )


def saddle_point(
    task: SaddleTask, weighting: str | Sequence[float] = "uniform", tolerance: float = 1e-10
) -> Tensor:
    """The saddle point of a strongly convex-concave task in float64, to a residual of `tolerance`:
    extragradient steps with adaptive size, then Newton steps on the residual z − P(z − G(z)),
    with a dense Jacobian (for a few thousand coordinates at most).

    >>> import fairlead as fl
    >>> game = fl.problems.quadratic_game(dim=2)
    >>> torch.allclose(saddle_point(game), game.optimum)
    True
    """
    exact = task if task.dtype == torch.float64 else task.to(dtype=torch.float64)
    project = exact.domain.project if exact.domain is not None else lambda z: z

    def mapping(z: Tensor, graph: bool = False) -> Tensor:
        with torch.enable_grad():
            leaf = z if graph else z.detach().requires_grad_()
            (g,) = torch.autograd.grad(exact.objective(leaf, weighting), leaf, create_graph=graph)
        return turned(exact, g)

    def residual(z: Tensor) -> Tensor:
        g = mapping(z, graph=True)
        return g if exact.domain is None else z - project(z - g)

    z, step = exact.start()[0], 1.0
    for _ in range(100):
        g = mapping(z)
        half = project(z - step * g)
        ahead = mapping(half)
        if step * float((ahead - g).norm()) > 0.7 * float((half - z).norm()):
            step /= 2
        else:
            z, step = project(z - step * ahead), 1.1 * step
    size = float("inf")
    for _ in range(60):
        with torch.enable_grad():
            f = residual(z.requires_grad_()).detach()
            size = float(f.norm())
            if size <= tolerance:
                return z.detach().to(task.dtype)
            if not size < float("inf"):
                break
            jacobian = torch.autograd.functional.jacobian(residual, z)
        move = _solved(torch.as_tensor(jacobian), f)
        z, f = z.detach(), f.detach()
        shares = [0.5**k for k in range(30)]
        tried = (project(z - share * move).requires_grad_() for share in shares)
        z = next((t.detach() for t in tried if float(residual(t).detach().norm()) < size), z - move)
    raise FairleadError(
        f"the solver stopped at a residual of {size:.1e}: check that the problem is strongly convex-concave"
    )


def _solved(matrix: Tensor, right: Tensor) -> Tensor:
    """The solution of a linear system, of least squares if it is singular. A triangular factorization is tried
    first: its bits are the same in every process, those of least squares depend on where its memory lies."""
    found, wrong = torch.linalg.solve_ex(matrix, right)
    if not int(wrong) and bool(torch.isfinite(found).all()):
        return found
    return torch.linalg.lstsq(matrix, right[:, None]).solution[:, 0]


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
