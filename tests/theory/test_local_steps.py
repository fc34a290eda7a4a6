"""How many local steps are worth it: rounds of SCAFFOLD's update (28) on random quadratics, exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fairlead as fl
from fairlead.theory import Constants, Settings, best_local_steps, scaffold_quadratics, speed_up

Array = NDArray[np.float64]


def hessians(delta: float) -> Array:
    task = fl.problems.random_quadratics(clients=10, dim=10, mu=0.02, beta=1.0, delta=delta)
    return task.data[0].numpy()


def round_map(a: Array, lr: float, k: int) -> Array:
    """x − x* after a round, as a matrix: y ← y − η(A_i(y − x) + A(x − x*)), K times."""
    x = np.eye(a.shape[1])
    y = np.repeat(x[None], len(a), 0)
    for _ in range(k):
        y = y - lr * (a @ (y - x) + a.mean(0) @ x)
    return y.mean(0)


def rounds_needed(a: Array, lr: float, k: int, share: float = 1e-6) -> float:
    """Rounds until f − f* has this share of its start, by the slowest direction."""
    slowest = np.abs(np.linalg.eigvals(round_map(a, lr, k))).max()
    return math.log(share) / (2 * math.log(slowest)) if slowest < 1 else math.inf


@pytest.mark.parametrize("delta", [0.05, 0.2, 0.5])
def test_rounds_fall_like_one_over_k_up_to_beta_over_delta(delta: float) -> None:
    """With the theorem's step sizes; K* is 20, 5 and 2."""
    a = hessians(delta)
    known = Constants(mu=0.02, beta=1.0, delta=delta, F=1.0)
    best = best_local_steps(known)
    assert best == pytest.approx(1 / delta)

    def rounds(k: int) -> float:
        return rounds_needed(a, scaffold_quadratics(known, Settings(10, k), 1).lr, k)

    one = rounds(1)
    for k in range(1, round(best) + 1):
        assert rounds(k) <= 2.5 * one / k
        if k <= 10 / 22 * best:
            assert rounds(k) == pytest.approx(one / k, rel=0.02)
    beyond = [rounds(round(best) * times) for times in (1, 2, 4, 8, 16)]
    assert max(beyond) <= 2.5 * min(beyond)
    assert max(beyond) == pytest.approx(min(beyond), rel=0.05), "flat: more steps change nothing"
    assert speed_up(known, round(best)) == pytest.approx(best / 2)
    assert speed_up(known, 10**9) == pytest.approx(best)


@pytest.mark.parametrize("delta", [0.05, 0.2, 0.5])
def test_with_the_best_step_size(delta: float) -> None:
    """The same with a tuned step size, which is some twenty times larger: the gain goes on to about 4β/δ."""
    a = hessians(delta)
    grid = np.geomspace(2e-3, 2, 50)

    def rounds(k: int) -> float:
        return min(rounds_needed(a, float(lr), k) for lr in grid)

    best, one = round(1 / delta), rounds(1)
    for k in {2, best // 2, best} - {0, 1}:
        assert 0.5 * one / k <= rounds(k) <= 1.1 * one / k
    beyond = [rounds(best * times) for times in (4, 8, 16)]
    assert max(beyond) <= 2.5 * min(beyond)


def test_the_recursion_is_what_training_computes() -> None:
    task = fl.problems.random_quadratics(clients=10, dim=10, mu=0.02, beta=1.0, delta=0.2)
    assert task.optimum is not None
    run = fl.train(task, fl.ScaffoldS(lr=0.02), rounds=4, steps=8)
    once = torch.tensor(round_map(task.data[0].numpy(), 0.02, 8))
    away = torch.linalg.matrix_power(once, 4) @ (task.start()[0] - task.optimum)
    torch.testing.assert_close(run.x - task.optimum, away, rtol=0, atol=1e-12)
