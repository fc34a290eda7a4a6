"""Methods on clients whose gradient is affine, G_i(z) = M_i z + v_i, computed exactly: quadratics and quadratic games.

A round with all clients is then one matrix, which makes thousands of rounds with dozens of step sizes a matter of
seconds. `from_training` says how far the same rounds of `fl.train` are from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairlead.core.method import Algorithm
from fairlead.run.train import train
from fairlead.study.reproduce.case import Results
from fairlead.study.reproduce.outcome import Claim, judged
from fairlead.task.task import Task

EXACT = "computed exactly, as a recursion on quadratics; `fl.train` gives the same points"
Array: TypeAlias = NDArray[np.float64]
Round: TypeAlias = Callable[[Array, float, int], Array]
"""The matrix of a round on (z, 1), from the clients' matrices, a step size and the number of local steps."""


@dataclass(frozen=True)
class Clients:
    """Clients with affine gradients. maps: (N, d + 1, d + 1), so that maps[i] @ (z, 1) is (G_i(z), 0)."""

    maps: Array
    start: Array
    optimum: Array

    @classmethod
    def of(cls, task: Task, sign: int = 1) -> Clients:
        """Those of quadratics (sign −1: their linear term is subtracted) or of a quadratic game."""
        m, v = (part.numpy() for part in task.data)
        maps = np.zeros((len(m), m.shape[1] + 1, m.shape[1] + 1))
        maps[:, :-1, :-1], maps[:, :-1, -1] = m, sign * v
        assert task.optimum is not None
        return cls(maps, task.start()[0].numpy(), task.optimum.numpy())

    def error(self, z: Array) -> Array:
        """f − f* on the mean of quadratics."""
        away = z - self.optimum
        return 0.5 * np.einsum("...i,ij,...j", away, self.maps.mean(0)[:-1, :-1], away)

    def distance(self, z: NDArray[Any]) -> Array:
        """‖z − z*‖."""
        return np.linalg.norm(z - self.optimum, axis=-1)


def gradient_descent(maps: Array, lr: float, steps: int) -> Array:
    """One step along the mean gradient; minibatch mirror descent without noise."""
    return np.eye(maps.shape[1]) - lr * maps.mean(0)


def mirror_prox(maps: Array, lr: float, steps: int) -> Array:
    """An extragradient step along the mean gradient."""
    return np.eye(maps.shape[1]) - lr * maps.mean(0) @ gradient_descent(maps, lr, steps)


def fedavg(maps: Array, lr: float, steps: int) -> Array:
    """The mean of K gradient steps of every client."""
    once = np.eye(maps.shape[1]) - lr * maps
    return np.linalg.matrix_power(once, steps).mean(0)


def extra_step(maps: Array, lr: float, steps: int) -> Array:
    """The mean of K extragradient steps of every client."""
    eye = np.eye(maps.shape[1])
    return np.linalg.matrix_power(eye - lr * maps @ (eye - lr * maps), steps).mean(0)


def scaffold_s(maps: Array, lr: float, steps: int, theta: float = 0.0) -> Array:
    """The update (28) of SCAFFOLD's paper, SCAFFOLD-S: y ← y − η(G_i(y) − G_i(z) + G(z)). With theta: on
    G_i(y) + θ(y − centre), a matrix on (z, 1, centre, 1)."""
    size = maps.shape[1]
    z = np.eye(size, 2 * size)
    centre = np.eye(size, 2 * size, size)
    y = np.broadcast_to(z, (len(maps), size, 2 * size))
    for _ in range(steps):
        y = y - lr * (maps @ (y - z) + maps.mean(0) @ z + theta * (y - centre))
    return y.mean(0)[:, :size] if not theta else np.concatenate([y.mean(0), centre])


def first_rounds(
    rounds: Array,
    clients: Clients,
    error: Callable[[Array], Array],
    goal: float,
    most: int,
    inner: int = 0,
) -> list[float]:
    """The first round whose error is at most the goal, for a stack of matrices of rounds; infinite where it
    takes more than `most`. inner: rounds after which Catalyst's centre moves."""
    d = len(clients.start)
    z = np.tile(np.r_[clients.start, 1.0], (len(rounds), rounds.shape[-1] // (d + 1)))
    found = np.full(len(rounds), math.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(1, most + 1):
            z = (rounds @ z[:, :, None])[:, :, 0]
            if inner and k % inner == 0:
                z[:, d + 1 :] = z[:, : d + 1]
            reached = (error(z[:, :d]) <= goal) & np.isinf(found)
            found[reached] = k
            if np.isfinite(found).all():
                break
    return found.tolist()


def fixed_point(matrix: Array) -> NDArray[Any]:
    """Where rounds end: z = Pz + q."""
    return np.linalg.solve(np.eye(len(matrix) - 1) - matrix[:-1, :-1], matrix[:-1, -1])


def from_training(
    task: Task, ours: Sequence[float] | Array, method: Algorithm[Any, Any], **settings: Any
) -> float:
    """The largest difference between a point and where `fl.train` ends."""
    run = train(task, method, progress=False, **settings)
    return float(np.abs(run.x.numpy() - np.asarray(ours)).max())


def sampled(
    clients: Clients, method: str, lr: Array, steps: int, cohorts: Sequence[Any]
) -> list[Array]:
    """The points of every round for a stack of step sizes, with these clients per round: "SGD" takes a step along
    their mean gradient, "FedAvg" and "SCAFFOLD I" and "II" K local steps, from c_i = 0."""
    a, v = clients.maps[:, :-1, :-1], clients.maps[:, :-1, -1]
    n, d = v.shape
    x = np.tile(clients.start, (len(lr), 1))
    c, points, rate = np.zeros((len(lr), n, d)), [x], lr[:, None, None]
    with np.errstate(over="ignore", invalid="ignore"):
        for ids in cohorts:
            own_a, own_v, own_c = a[ids], v[ids], c[:, ids]
            y = np.repeat(x[:, None], len(ids), 1)
            mean = c.mean(1, keepdims=True)
            for _ in range(1 if method == "SGD" else steps):
                g = np.einsum("nij,lnj->lni", own_a, y) + own_v
                y = y - rate * (g - own_c + mean)
            if method == "SCAFFOLD I":
                c[:, ids] = np.einsum("nij,lj->lni", own_a, x) + own_v
            elif method == "SCAFFOLD II":
                c[:, ids] = own_c - mean + (x[:, None] - y) / (steps * rate)
            x = y.mean(1)
            points.append(x)
    return points


def best_of(grid: Sequence[float], costs: Sequence[float]) -> tuple[int, bool]:
    """The place of the lowest cost in a grid, and whether it is the grid's smallest or largest value.

    >>> best_of((0.1, 0.3, 1.0), (7, 5, math.inf))
    (1, False)
    """
    at = int(np.argmin(costs))
    return at, grid[at] in (min(grid), max(grid))


def said(value: float) -> str:
    """A number of rounds.

    >>> said(math.inf)
    'never'
    """
    return f"{value:.4g}" if value < math.inf else "never"


def agreement(done: Results) -> Claim:
    """That the recursion is what training computes."""
    gaps = [v for r in done.where(what="check") for v in r.numbers.values()]
    return judged(
        "the recursion is what `fl.train` computes",
        [v < 1e-9 for v in gaps],
        f"largest difference of a coordinate {max(gaps, default=math.nan):.0e}",
    )
