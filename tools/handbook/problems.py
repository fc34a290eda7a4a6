"""Problems in the plane for the pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fairlead as fl
from fairlead.study.reproduce.experiments.drift_picture import HESSIANS, OPTIMA, START

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Plane:
    """A task, its solution, the clients' own solutions, and what its first two coordinates look like.

    ways: lines to draw, one per client, if a client's solutions are a line
    mean: the mean Hessian there, or for a game the matrix M of its mean mapping M(z − z*)
    """

    task: fl.Task
    optimum: Array
    own: Array
    mean: Array
    game: bool = False
    ways: Array | None = None


def _quadratic(hessians: Array, optima: Array, start: Array, **settings: Any) -> Plane:
    """Clients ½(x − o_i)'H_i(x − o_i)."""
    linear = np.einsum("nij,nj->ni", hessians, optima)
    task = fl.problems.quadratics(hessians, linear, start, **settings)
    assert task.optimum is not None
    return Plane(task, task.optimum.numpy()[:2], optima[:, :2], hessians.mean(0)[:2, :2])


def pair() -> Plane:
    """Two quadratics with optima far apart and different curvature."""
    return _quadratic(HESSIANS, OPTIMA, np.array(START))


def valley() -> Plane:
    """Two similar clients, steep across and flat along."""
    hessians = np.array([[[0.05, 0.0], [0.0, 4.0]], [[0.07, 0.0], [0.0, 3.6]]])
    return _quadratic(hessians, np.array([[2.6, 0.3], [3.4, -0.2]]), np.array([-3.2, -2.0]))


def lines() -> Plane:
    """Two clients that are content anywhere on a line each; the lines cross at a small angle."""
    normals = np.array([[np.sin(0.25), np.cos(0.25)], [-np.sin(0.25), np.cos(0.25)]])
    hessians = np.einsum("ni,nj->nij", normals, normals)
    plane = _quadratic(hessians, np.array([[2.5, 0.0], [2.5, 0.0]]), np.array([-3.2, 1.0]))
    along = np.stack([normals[:, 1], -normals[:, 0]], 1)
    return replace(
        plane,
        own=np.empty((0, 2)),
        ways=np.stack([2.5 * np.eye(2)[0] + 7 * t * along for t in (-1, 1)], 1),
    )


def noisy(centres: Array = OPTIMA) -> Plane:
    """The pair, with six samples per client whose optima scatter around the client's."""
    rng = np.random.default_rng(0)
    scatter = rng.normal(size=(2, 6, 2)) * 1.5
    scatter -= scatter.mean(1, keepdims=True)
    optima = (centres[:, None] + scatter).reshape(12, 2)
    each = np.repeat(HESSIANS, 6, 0)
    clients = [range(6), range(6, 12)]
    plane = _quadratic(each, optima, np.array(START), clients=clients)
    return Plane(plane.task, plane.optimum, centres, plane.mean)


def similar() -> Plane:
    """Noisy samples, and clients that nearly agree."""
    return noisy(np.array([[0.9, 0.6], [1.1, 0.4]]))


def wide() -> Plane:
    """The pair, fifty times side by side with other optima, so that coding has something to code; seen from the
    first two coordinates."""
    rng, blocks = np.random.default_rng(1), 50
    hessians = np.stack([np.kron(np.eye(blocks), h) for h in HESSIANS])
    optima = np.tile(OPTIMA, blocks)
    optima[:, 2:] += rng.normal(size=optima[:, 2:].shape)
    return _quadratic(hessians, optima, np.tile(START, blocks))


def _game(x: torch.Tensor, y: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """½ax² + bxy − ½cy² + px − qy, whose mapping is M(x, y) + v."""
    a, b, c = m[:, 0, 0], m[:, 0, 1], m[:, 1, 1]
    return (0.5 * a * x * x + b * x * y - 0.5 * c * y * y + v[:, 0] * x - v[:, 1] * y).squeeze(-1)


def _saddle(matrices: Array, solutions: Array, start: tuple[float, float]) -> Plane:
    """Clients with mappings M_i(z − s_i)."""
    shifts = -np.einsum("nij,nj->ni", matrices, solutions)
    best = np.linalg.solve(matrices.mean(0), -shifts.mean(0))
    x, y = (torch.tensor([value], dtype=torch.float64) for value in start)
    data = [torch.tensor(matrices), torch.tensor(shifts)]
    task = fl.SaddleTask.of(
        _game, data, x, y, batched=True, optimum=torch.tensor(best), record=True
    )
    return Plane(task, best, solutions, matrices.mean(0), game=True)


def game() -> Plane:
    """Two clients whose games have different saddle points and turn at different speeds."""
    matrices = np.array([[[1.2, 0.8], [-0.8, 0.3]], [[0.2, 1.6], [-1.6, 1.0]]])
    return _saddle(matrices, np.array([[-1.2, 1.6], [2.2, -0.8]]), (-3.0, -2.2))


def bilinear() -> Plane:
    """Two clients whose games turn and hardly contract."""
    matrices = np.array([[[0.06, 0.8], [-0.8, 0.06]], [[0.06, 1.2], [-1.2, 0.06]]])
    return _saddle(matrices, np.array([[-0.5, 0.5], [0.5, -0.3]]), (-1.8, -1.2))


PROBLEMS: dict[str, Callable[[], Plane]] = {
    make.__name__: make for make in (pair, valley, lines, noisy, similar, wide, game, bilinear)
}
