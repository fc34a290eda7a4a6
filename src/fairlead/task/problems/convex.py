"""Problems with known solutions, and toy problems from the papers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from fairlead.data.splits import Split, iid
from fairlead.errors import FairleadError, positive
from fairlead.task.solve import minimize
from fairlead.task.task import Task
from fairlead.theory.bound import Constants


def _quadratic(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return 0.5 * (a @ x) @ x - b @ x


def quadratics(a: ArrayLike, b: ArrayLike, start: ArrayLike | None = None, **settings: Any) -> Task:
    """f_i(x) = ½ x'A_i x − b_i'x with A of shape (N, d, d) and b of shape (N, d). The optimum is
    known if the mean of the A_i is positive definite.

    >>> quadratics([[[1.0]], [[3.0]]], [[-1.0], [3.0]]).optimum  # of the mean function
    tensor([0.5000], dtype=torch.float64)
    """
    hessians = torch.as_tensor(np.asarray(a, dtype=float))
    linear = torch.as_tensor(np.asarray(b, dtype=float))
    at = torch.zeros(linear.shape[1]) if start is None else torch.as_tensor(np.asarray(start))
    settings.setdefault("dtype", torch.float64)
    settings.setdefault("name", "quadratics")
    mean = hessians.mean(0)
    convex = bool(torch.linalg.eigvalsh(mean)[0] > 0)
    optimum = torch.linalg.solve(mean, linear.mean(0)) if convex else None
    task = Task.from_function(
        _quadratic,
        (hessians, linear),
        at.to(torch.float64),
        batched=True,
        optimum=optimum,
        record=True,
        **settings,
    )
    known = partial(_constants, hessians, linear, at.to(torch.float64), optimum)
    return task if task.l2 else task.replace(constants=known)


def _constants(
    hessians: Tensor, linear: Tensor, start: Tensor, optimum: Tensor | None
) -> Constants:
    """What theorems ask of quadratics; μ, G and B only if all clients are convex."""
    curvature, mean = torch.linalg.eigvalsh(hessians), hessians.mean(0)
    known = {"beta": curvature.abs().max()}
    known["delta"] = torch.linalg.eigvalsh(hessians - mean).abs().max()
    convex = bool(curvature.min() >= 0)
    if convex:
        known["mu"] = curvature.min()
    if optimum is not None:
        away, slopes = start - optimum, hessians @ optimum - linear
        known["D"], known["F"] = away.norm(), 0.5 * away @ mean @ away
        known["C0"] = slopes.square().sum(1).mean()
    if optimum is not None and convex:
        known["G"], known["B"] = (2 * known["C0"]).sqrt(), torch.tensor(2.0).sqrt()
    return Constants(**{name: float(value) for name, value in known.items()})


def theorem2(gradient: float = 10.0, mu: float = 1.0, start: float = 1.0, **settings: Any) -> Task:
    """The pair f_1 = μx² + Gx, f_2 = −Gx of SCAFFOLD's Theorem II: mean μx²/2, optimum 0,
    Hessian dissimilarity δ = μ, gradient dissimilarity G at the optimum."""
    positive("mu", mu)
    return quadratics(
        [[[2 * mu]], [[0.0]]], [[-gradient], [gradient]], [start], name="theorem2", **settings
    )


def random_quadratics(
    clients: int = 10,
    dim: int = 10,
    mu: float = 0.1,
    beta: float = 1.0,
    delta: float = 0.1,
    gradient: float = 1.0,
    seed: int = 0,
    **settings: Any,
) -> Task:
    """Random quadratics whose mean Hessian has eigenvalues from μ to β, with
    max_i‖∇²f_i − ∇²f‖ = δ and mean_i‖∇f_i(x*)‖² = G² (0 for a single client)."""
    positive("mu", mu)
    if beta < mu or delta < 0 or gradient < 0:
        raise FairleadError(
            f"mu is {mu}, beta {beta}, delta {delta} and gradient {gradient}: they need mu ≤ beta, "
            "delta ≥ 0 and gradient ≥ 0"
        )
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    spectrum = np.linspace(mu, beta, dim) if dim > 1 else np.array([beta])
    mean = basis @ np.diag(spectrum) @ basis.T
    spread = rng.normal(size=(clients, dim, dim))
    spread = spread + spread.transpose(0, 2, 1)
    spread -= spread.mean(0)
    largest = np.abs(np.linalg.eigvalsh(spread)).max()
    optimum = rng.normal(size=dim)
    slopes = rng.normal(size=(clients, dim))  # the clients' gradients at the optimum
    slopes -= slopes.mean(0)
    size = math.sqrt((slopes**2).sum(1).mean())
    if clients > 1:
        spread, slopes = spread * (delta / largest), slopes * (gradient / size)
    hessians = mean + spread
    linear = np.einsum("nij,j->ni", hessians, optimum) - slopes
    settings.setdefault("name", "random-quadratics")
    return quadratics(hessians, linear, **settings)


def logistic_regression(
    features: ArrayLike,
    labels: ArrayLike,
    clients: Split | list[list[int]],
    l2: float = 0.01,
    solve: bool = True,
    **settings: Any,
) -> Task:
    """Logistic regression with labels −1 and +1 and the ridge term l2/2·‖x‖², without intercept.
    With `solve`, the optimum of the uniform mean over clients is computed by L-BFGS."""
    x = torch.as_tensor(np.asarray(features, dtype=float))
    y = torch.as_tensor(np.asarray(labels, dtype=float))
    model = nn.Linear(x.shape[1], 1, bias=False)
    nn.init.zeros_(model.weight)
    settings = {"dtype": torch.float64, "name": "logistic-regression", **settings}
    task = Task(model, "logistic", (x, y), clients, l2=l2, **settings)
    return task.replace(optimum=minimize(task)) if solve else task


def synthetic_logistic(
    clients: int = 10,
    samples: int = 100,
    dim: int = 20,
    shift: float = 1.0,
    l2: float = 0.01,
    seed: int = 0,
    **settings: Any,
) -> Task:
    """Logistic regression on Gaussian features; their mean and the true weights shift between
    clients."""
    rng = np.random.default_rng(seed)
    centers = shift * rng.normal(size=(clients, 1, dim)) / math.sqrt(dim)
    x = (rng.normal(size=(clients, samples, dim)) + centers).reshape(-1, dim)
    w = rng.normal(size=(1, dim)) + shift * rng.normal(size=(clients, dim))
    score = np.einsum("nd,nd->n", x, np.repeat(w, samples, 0))
    y = np.where(rng.random(len(x)) < 1 / (1 + np.exp(-score)), 1.0, -1.0)
    owners = np.arange(len(x)).reshape(clients, samples).tolist()
    return logistic_regression(x, y, owners, l2, **settings)


class _Separator(nn.Module):
    """A line of fixed slope in the plane, a·(x1 + x2) + bias; only the bias is trained."""

    def __init__(self, slope: float, start: float) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.tensor([slope, slope]), requires_grad=False)
        self.bias = nn.Parameter(torch.tensor([start]))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.direction + self.bias


def two_gaussians(
    clients: int = 5,
    outlier: float = 4.0,
    slope: float = 1.0,
    iid_split: bool = False,
    seed: int = 0,
    std: float = 0.5,
    start: float = 0.0,
    **settings: Any,
) -> Task:
    """The toy problem of the FedAvg heterogeneity study, section 3.1: every client has 50 points
    around (0, 0) and 50 around (1, 1); the last client's second cloud is at (outlier, outlier). The model
    is a separator of fixed slope, its bias trained with the logistic loss from `start`. `iid_split`
    assigns the same points at random.

    std: the standard deviation of the clouds. ½ is the paper's printed variance of ¼, but its numbers
    L ≈ 0.190, ζ ≈ 0.407 and D ≈ 2 belong to a standard deviation of ¼, 20 clients and a bias that starts
    at one: `two_gaussians(clients=20, std=0.25, start=1.0)` has L = 0.189, ζ = 0.407 where the outlier's
    local steps end, and D = 2.04, in the mean over seeds; with std=0.5 L is 0.182 and ζ is 0.398."""
    positive("std", std)
    rng = np.random.default_rng(seed)

    def draw(per_class: int) -> tuple[np.ndarray, np.ndarray]:
        far = np.r_[np.ones(clients - 1), outlier][:, None, None]
        zeros = rng.normal(0, std, (clients, per_class, 2))
        ones = far + rng.normal(0, std, (clients, per_class, 2))
        x = np.concatenate([zeros, ones], 1).reshape(-1, 2)
        return x, np.tile(np.repeat([-1.0, 1.0], per_class), clients)

    (x, y), (x_test, y_test) = draw(50), draw(10)
    owners = Split.of(np.arange(len(x)).reshape(clients, -1))
    settings = {"dtype": torch.float64, "name": "two-gaussians", **settings}
    task = Task(
        _Separator(slope, float(start)), "logistic", (torch.tensor(x), torch.tensor(y)),
        iid(y, clients, seed) if iid_split else owners,
        test=(torch.tensor(x_test), torch.tensor(y_test)), **settings,
    )  # fmt: skip
    return task.replace(optimum=minimize(task))
