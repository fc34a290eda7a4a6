"""Saddle problems: the paper's test problem, random games, robust regression, AUC, worst-case weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fairlead.data.checks import check_signs
from fairlead.data.splits import Split
from fairlead.errors import FairleadError, positive
from fairlead.task.evaluation import Spread
from fairlead.task.losses import auc
from fairlead.task.metrics import Whole
from fairlead.task.saddle import SaddleTask, Vector
from fairlead.task.samples import losses_of
from fairlead.task.solve import saddle_point
from fairlead.task.task import Task
from fairlead.theory.bound import Constants


def _regression_game(x: Tensor, y: Tensor, a: Tensor, b: Tensor, half: float, lam: float) -> Tensor:
    own = lam / 2 * x.square().sum() - 0.5 * y.square().sum()
    return half * ((b - a * x) * y).sum(1) + own


def saddle_regression(
    s: float = 5.0,
    clients: int = 10,
    dim: int = 10,
    lam: float = 1e-5,
    scaling: Literal["printed", "regression"] = "regression",
    seed: int = 0,
    start: float = 1.0,
    **settings: Any,
) -> SaddleTask:
    """The test problem (17)-(18) of the saddle-point paper: f_i = −½[‖y‖² − b_i'y + y'A_i x] + λ/2·‖x‖² with
    A_i = diag(a_i), a_i ~ N(1, s²) clipped below at 1, and b_i ~ N(0, s²) with mean zero; the saddle point
    is 0. scaling: "printed" as in the paper; "regression" drops the ½ of the b and A terms, so that the
    maximum over y is the regression (19)."""
    if s < 0:
        raise FairleadError(f"s is {s}: it must not be negative")
    rng = np.random.default_rng(seed)
    b = rng.normal(0, s, (clients, dim))
    a = np.maximum(rng.normal(1, s, (clients, dim)), 1.0)
    halves = {"printed": 0.5, "regression": 1.0}
    if scaling not in halves:
        raise FairleadError(f"scaling is '{scaling}': it must be 'printed' or 'regression'")
    f = partial(_regression_game, half=halves[scaling], lam=lam)
    at = torch.full((dim,), start, dtype=torch.float64)
    data = [torch.tensor(a), torch.tensor(b - b.mean(0))]
    settings = {"name": "saddle", "optimum": torch.zeros(2 * dim), "record": True, **settings}
    task = SaddleTask.of(f, data, at, at, batched=True, **settings)
    cross = halves[scaling] * a[:, :, None] * np.eye(dim)
    own = np.broadcast_to(np.eye(dim), cross.shape)
    m = np.concatenate([np.concatenate([lam * own, -cross], 2), np.concatenate([cross, own], 2)], 1)
    return (
        task if task.l2 else task.replace(constants=partial(_constants, m, np.full(2 * dim, start)))
    )


def _quadratic_game(x: Tensor, y: Tensor, m: Tensor, v: Tensor) -> Tensor:
    n = len(x)
    own = 0.5 * (m[:, :n, :n] @ x) @ x - 0.5 * (m[:, n:, n:] @ y) @ y
    return own + (m[:, :n, n:] @ y + v[:, :n]) @ x - v[:, n:] @ y


def quadratic_game(
    clients: int = 8,
    dim: int = 5,
    mu: float = 0.2,
    beta: float = 1.0,
    zeta: float = 1.0,
    delta: float = 0.1,
    seed: int = 0,
    pairwise: bool = False,
    **settings: Any,
) -> SaddleTask:
    """A random game f_i = ½x'A_i x + x'B_i y − ½y'C_i y + p_i'x − q_i'y: the mean A and C have eigenvalues
    from μ to β, the mean B has norm β, clients differ in A, B and C by at most δ in norm, and
    max_i‖G_i(z*)‖ = ζ. This is not the ζ of the saddle-point paper, which bounds ‖G_i(z) − G_j(z)‖ for all
    pairs of clients (Definition 6): with `pairwise`, max_ij‖G_i(z*) − G_j(z*)‖ = ζ, which for δ = 0 is so
    at every z."""
    positive("mu", mu)
    if beta < mu:
        raise FairleadError(f"beta is {beta} and mu is {mu}: beta must be at least mu")
    rng = np.random.default_rng(seed)

    def own() -> NDArray[Any]:
        basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
        return basis @ np.diag(np.linspace(mu, beta, dim)) @ basis.T

    first, second = own(), own()
    own_x, own_y = (
        first + _deviations(rng, clients, dim, delta),
        second + _deviations(rng, clients, dim, delta),
    )
    cross = rng.normal(size=(dim, dim))
    cross *= beta / np.linalg.norm(cross, 2)
    cross = cross + _deviations(rng, clients, dim, delta, symmetric=False)
    settings = {"name": "quadratic-game", **settings}
    return _game(rng, own_x, own_y, cross, zeta, pairwise, settings)


def bilinear_game(
    clients: int = 8,
    dim: int = 5,
    mu: float = 0.0,
    beta: float = 1.0,
    smallest: float = 0.5,
    zeta: float = 1.0,
    delta: float = 0.1,
    seed: int = 0,
    pairwise: bool = False,
    **settings: Any,
) -> SaddleTask:
    """A random bilinear game f_i = x'B_i y + p_i'x − q_i'y + μ/2·(‖x‖² − ‖y‖²): the mean B has singular values
    from `smallest` to β, clients differ in B by at most δ in norm, and max_i‖G_i(z*)‖ = ζ (`pairwise`: see `quadratic_game`). With μ = 0
    gradient descent-ascent moves away from the saddle point and mirror-prox towards it; the gap
    f(x, y*) − f(x*, y) is then zero everywhere, so use `distance` and `residual_norm`."""
    positive("smallest", smallest)
    if beta < smallest or mu < 0:
        raise FairleadError(
            f"smallest is {smallest}, beta {beta} and mu {mu}: they need smallest ≤ beta and mu ≥ 0"
        )
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(dim, dim)))[0] for _ in range(2))
    cross = left @ np.diag(np.linspace(smallest, beta, dim)) @ right
    cross = cross + _deviations(rng, clients, dim, delta, symmetric=False)
    own = np.broadcast_to(mu * np.eye(dim), cross.shape)
    settings = {"name": "bilinear-game", **settings}
    return _game(rng, own, own, cross, zeta, pairwise, settings)


def _deviations(
    rng: np.random.Generator, clients: int, dim: int, delta: float, symmetric: bool = True
) -> NDArray[Any]:
    """Matrices with mean zero and largest norm δ."""
    if delta < 0:
        raise FairleadError(f"delta is {delta}: it must not be negative")
    parts = rng.normal(size=(clients, dim, dim))
    parts = parts + parts.transpose(0, 2, 1) if symmetric else parts
    parts -= parts.mean(0)
    largest = np.linalg.norm(parts, 2, axis=(1, 2)).max()
    return parts * (delta / largest if clients > 1 else 0)


def _game(
    rng: np.random.Generator,
    own_x: NDArray[Any],
    own_y: NDArray[Any],
    cross: NDArray[Any],
    zeta: float,
    pairwise: bool,
    settings: dict[str, Any],
) -> SaddleTask:
    """The game with these matrices per client, a random saddle point, and mappings there of norm at most ζ, or
    at most ζ apart."""
    if zeta < 0:
        raise FairleadError(f"zeta is {zeta}: it must not be negative")
    clients, n, _ = cross.shape
    m = np.zeros((clients, 2 * n, 2 * n))
    m[:, :n, :n], m[:, n:, n:], m[:, :n, n:] = own_x, own_y, cross
    m[:, n:, :n] = -cross.transpose(0, 2, 1)  # so that G_i(z) = M_i z + v_i
    z = rng.normal(size=2 * n)
    mappings = rng.normal(size=(clients, 2 * n))
    mappings -= mappings.mean(0)
    compared = mappings[:, None] - mappings if pairwise else mappings
    mappings *= zeta / np.linalg.norm(compared, axis=-1).max() if clients > 1 else 0
    settings = {"optimum": torch.tensor(z), "record": True, **settings}
    at = torch.zeros(n, dtype=torch.float64)
    data = [torch.tensor(m), torch.tensor(mappings - m @ z)]
    task = SaddleTask.of(_quadratic_game, data, at, at, batched=True, **settings)
    return task if task.l2 else task.replace(constants=partial(_constants, m, -z))


def _constants(m: NDArray[Any], away: NDArray[Any]) -> Constants:
    """What theorems ask of games G_i(z) = M_i(z − z*) + G_i(z*) that start `away` from z*."""
    n = len(away) // 2
    blocks = np.concatenate([m[:, :n, :n], m[:, n:, n:]])
    low, first = np.linalg.eigvalsh(blocks).min(), m @ away
    return Constants(
        mu=float(low) if low >= 0 else None, beta=float(np.linalg.norm(m, 2, axis=(1, 2)).max()),
        D=float(np.linalg.norm(away)), sigma0=float((first**2).sum(1).mean()),
    )  # fmt: skip


def robust_regression(
    features: ArrayLike,
    targets: ArrayLike,
    clients: Split | Sequence[ArrayLike],
    l2: float = 0.1,
    penalty: float = 10.0,
    solve: bool = True,
    **settings: Any,
) -> SaddleTask:
    """Linear regression against an adversary that shifts all features by one vector r: f = ½(w'(a + r) − b)²
    + l2/2·‖w‖² − penalty/2·‖r‖². It is concave in r where ‖w‖² < penalty: choose the penalty large enough
    for the iterates to stay there. With `solve` the saddle point is computed."""
    a = torch.as_tensor(np.asarray(features, dtype=float))
    b = torch.as_tensor(np.asarray(targets, dtype=float))
    positive("l2", l2)
    positive("penalty", penalty)
    f = partial(_robust, l2=l2, penalty=penalty)
    zero = torch.zeros(a.shape[1], dtype=torch.float64)
    settings = {"name": "robust-regression", "record": True, **settings}
    task = SaddleTask.of(f, [a, b], zero, zero, clients, batched=True, **settings)
    if solve:
        optimum = saddle_point(task)
        task = task.replace(optimum=optimum)
        size = float(optimum[task.players[0]].square().sum())
        if size >= penalty:
            raise FairleadError(
                f"at the solution ‖w‖² is {size:.3g}, where the adversary has no best response with a "
                f"penalty of {penalty:.3g}: raise it"
            )
    return task


def _robust(w: Tensor, r: Tensor, a: Tensor, b: Tensor, l2: float, penalty: float) -> Tensor:
    own = l2 / 2 * w.square().sum() - penalty / 2 * r.square().sum()
    return 0.5 * (a @ w + r @ w - b).square() + own


class _Scored(nn.Module):
    """A model and the class means a and b of its scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.means = model, Vector(torch.zeros(2))


def auc_maximization(
    task: Task,
    weighting: str | Sequence[float] = "uniform",
    solve: bool = False,
) -> SaddleTask:
    """The area under the ROC curve as a saddle problem (Ying, Wen and Lyu 2016), for any task with a model
    of one output and labels −1 and +1: min over the model and two numbers a, b, max over α of
    E[(s − a)² | +] + E[(s − b)² | −] + 2(1 + α)(E[s | −] − E[s | +]) − α² with the scores s. At the saddle point
    this is the pairwise loss E(1 − s + s')² of a positive and a negative sample, minus one. (The authors'
    objective divided by p(1 − p), where p is the weighted share of positives.)

    The task's own l2 applies to the model, and runs record the AUC on its test data. With `solve` the
    saddle point is computed, which needs a linear model and l2 > 0."""
    _plain_task(task)
    labels = task.data[-1]
    if labels.dim() != 1:
        raise FairleadError(
            f"the labels have shape {tuple(labels.shape)}: give one number per sample, −1 or +1"
        )
    check_signs(labels)
    weights = task.client_weights(weighting) / task.sizes
    share = torch.from_numpy(np.repeat(weights, task.sizes))
    p = float((share * (labels.cpu()[task.order.cpu()] > 0)).sum())
    if not 0 < p < 1:
        raise FairleadError("all labels are equal: AUC needs positive and negative samples")
    judge = _twin(task, {"auc": Whole(auc)})

    def play(x: _Scored, y: Vector, *batch: Tensor) -> Tensor:
        label, (arguments, named) = batch[-1], task.arrangement.arguments(batch)
        score, (a, b), alpha = x.model(*arguments, **named), x.means.v, y.v[0]
        if score.numel() != label.numel():
            raise FairleadError("AUC needs a model with one output, the score")
        score = score.reshape(label.shape)
        plus = ((score - a).square() - 2 * (1 + alpha) * score) / p
        minus = ((score - b).square() + 2 * (1 + alpha) * score) / (1 - p)
        return torch.where(label > 0, plus, minus) - alpha**2 + _ridge(x.model, task)

    saddle = SaddleTask(
        _wrapped(task, _Scored), Vector(torch.zeros(1)), play, task.data, task.split,
        judge=judge, weighting=weighting, record=task.capturable, noise=task.noise,
        transform=task.transform, keep="host" if task.mapped else task.keep, dtype=task.dtype, device=task.device, name=f"auc of {task.name}",
    )  # fmt: skip
    return saddle.replace(optimum=saddle_point(saddle, weighting)) if solve else saddle


class AgnosticTask(SaddleTask):
    """A task whose clients are weighted by an adversary; runs record the largest client loss."""

    def evaluate(
        self,
        x: Tensor,
        buffers: Tensor | None = None,
        weighting: str | Sequence[float] = "uniform",
        objective: bool = True,
        spread: Spread | None = None,
    ) -> dict[str, float]:
        found = super().evaluate(x, buffers, weighting, objective, spread)
        if objective and self.judge is not None:
            model = x[self.players[0]]
            found["worst_loss"] = float(self.judge.client_losses(model, buffers).max())
        return found

    def _with_own_measures(self, names: list[str], objective: bool) -> list[str]:
        return [*super()._with_own_measures(names, objective), *["worst_loss"] * objective]


def agnostic(task: Task, penalty: float = 0.0, solve: bool = False) -> AgnosticTask:
    """Agnostic federated learning (Mohri, Sivek and Suresh 2019) over any task: min over the model, max over
    weights λ on the simplex of Σ λ_i f_i(x) − penalty·N/2·‖λ − 1/N‖². Without a penalty the worst client
    counts; with a large one the mean does. Runs record `worst_loss`, max_i f_i(x), and the task's test
    metrics. With `solve` the saddle point is computed, for convex losses with l2 > 0."""
    if penalty < 0:
        raise FairleadError(f"penalty is {penalty}: it must not be negative")
    _plain_task(task)
    n = task.clients
    data, split = list(task.data), task.split
    if len(np.unique(split.order)) < len(split.order):  # duplicate samples shared by clients
        data = [t.index_select(0, task.order.to(t.device)) for t in data]
        split = Split(np.arange(len(split.order)), split.offsets)
    owner = torch.zeros(len(data[0]), dtype=torch.int64)
    owner[torch.from_numpy(split.order)] = torch.from_numpy(split.owners)

    def play(x: nn.Module, y: Vector, *batch: Tensor) -> Tensor:
        *sample, client = batch
        arguments, named = task.arrangement.arguments(sample)
        losses = losses_of(task, x(*arguments, **named), tuple(sample))
        even = penalty * n / 2 * (y.v - 1 / n).square().sum()
        return n * y.v[client] * losses - even + _ridge(x, task)

    weights = Vector(torch.full((n,), 1 / n, dtype=task.dtype))
    saddle = AgnosticTask(
        _wrapped(task, lambda model: model), weights, play, [*data, owner], split,
        judge=_twin(task, task.metrics), simplex=True, weighting="uniform",
        record=task.capturable, noise=task.noise, transform=task.transform, keep="host" if task.mapped else task.keep,
        dtype=task.dtype, device=task.device, name=f"agnostic {task.name}",
    )  # fmt: skip
    return saddle.replace(optimum=saddle_point(saddle)) if solve else saddle


def _wrapped(
    task: Task, wrap: Callable[[nn.Module], nn.Module]
) -> nn.Module | Callable[[], nn.Module]:
    """The task's model, or its factory if weights come from the run's seed, wrapped."""
    make = task.make
    return wrap(copy.deepcopy(task.model)) if make is None else lambda: wrap(make())


def _twin(task: Task, metrics: Any) -> Task:
    return task.replace(metrics=dict(metrics))


def _plain_task(task: Task) -> None:
    if isinstance(task, SaddleTask):
        raise FairleadError("the task is already a saddle problem: give a minimization task")


def _ridge(model: nn.Module, task: Task) -> Tensor | float:
    """The task's l2 term over its trained parameters."""
    if not task.l2:
        return 0.0
    trained = {part.name for part in task.layout.parameters}
    sizes = [p.square().sum() for name, p in model.named_parameters() if name in trained]
    return task.l2 / 2 * torch.stack(sizes).sum()
