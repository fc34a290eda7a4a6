"""What the tests of bounds compare with is what `fl.train` computes; and the printed bounds that are false."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from exact_moments import (
    Array,
    Quadratics,
    Step,
    excess_of,
    fedavg_rounds,
    first_round_of_all,
    glomo_rounds,
    random_quadratics,
    scaffold_rounds,
    second_moments,
)

import fairlead as fl
from fairlead.theory import Constants, Settings, fedpvr_nonconvex, scaffold, scaffold_s_anchor

LR = np.array([0.03])
ZERO = np.zeros(1)


def problem() -> tuple[Quadratics, fl.Task]:
    q = random_quadratics(np.random.default_rng(3), 1, 3)
    return q, fl.problems.quadratics(q.a[0], q.b[0], q.x[0])


def losses(task: fl.Task, method: fl.Algorithm, server: int = 6, **settings: object) -> Array:
    assert task.optimum is not None
    low = float(task.objective(task.optimum))
    run = fl.train(task, method, rounds=server, steps=3, **settings)  # pyright: ignore[reportArgumentType]
    return run.history["loss"] - low


@pytest.mark.parametrize(
    ("method", "rounds"),
    [
        (fl.FedAvg(lr=0.03, server_lr=2.0), lambda q: fedavg_rounds(q, LR, 3, 3, 2.0, ZERO)),
        (fl.Scaffold(lr=0.03), lambda q: scaffold_rounds(q, LR, 3, 3, 1.0, ZERO)),
        (
            fl.Scaffold(lr=0.03, warm_start=True),
            lambda q: scaffold_rounds(q, LR, 3, 3, 1.0, ZERO, warm=True),
        ),
        (fl.FedLOMO(lr=0.03), lambda q: glomo_rounds(q, LR, 3, 3, np.ones(1), 0.0)),
    ],
)
def test_moments_are_those_of_a_run(
    method: fl.Algorithm, rounds: Callable[[Quadratics], tuple[Array, list[Step]]]
) -> None:
    q, task = problem()
    exact = [float(excess_of(q, m)[0]) for m in second_moments(*rounds(q), 6)]
    np.testing.assert_allclose(losses(task, method), exact, rtol=1e-9, atol=1e-12)


def test_moments_of_fedglomo_are_those_of_a_run() -> None:
    q, task = problem()
    beta = np.array([0.3])
    _, steps = glomo_rounds(q, LR, 3, 3, beta, 0.0)
    later = second_moments(first_round_of_all(q, LR, 3), steps, 5)
    exact = [float(q.excess(q.x)[0]), *(float(excess_of(q, m)[0]) for m in later)]
    np.testing.assert_allclose(losses(task, fl.FedGLOMO(lr=0.03, beta=0.3)), exact, rtol=1e-9)


@pytest.mark.slow
def test_expectations_are_means_over_runs() -> None:
    """Two of three clients per round and noisy gradients, over 300 seeds."""
    q, task = problem()
    sigma = np.array([0.5])
    start, steps = fedavg_rounds(q, LR, 3, 2, 1.0, sigma)
    exact = [float(excess_of(q, m)[0]) for m in second_moments(start, steps, 6)]
    noisy = task.replace(noise=float(sigma[0] / math.sqrt(2)))
    runs = np.array(
        [
            losses(noisy, fl.FedAvg(lr=0.03), cohort=2, seed=seed, eval_every=6)
            for seed in range(300)
        ]
    )
    error = runs[:, -1].std() / math.sqrt(len(runs))
    assert abs(runs[:, -1].mean() - exact[-1]) < 4 * error


def test_a_bound_of_a_run() -> None:
    """From the task's own constants to the bound on a run's recorded losses."""
    _, task = problem()
    assert task.constants is not None
    known = replace(task.constants, sigma=0.0)
    bound = scaffold(known, Settings(clients=3, steps=3), rounds=40)
    errors = losses(task, fl.Scaffold(lr=bound.lr), server=40)
    assert bound.holds
    assert bound.average(errors) <= bound.value


# -- printed bounds that are false --------------------------------------------------------------------------


def test_fedpvr_lemma_14_as_printed_is_false() -> None:
    """f = x²/2 on every client: one full gradient step a round, no heterogeneity, no noise, Θ = 0."""
    rounds, step = 200, 1 / 26
    x = (1 - step) ** np.arange(rounds)
    assert x[1] ** 2 / 2 > x[0] ** 2 / 2 - step * x[0] ** 2, "(B.46) with Θ = 0"
    known = Constants(beta=1.0, sigma=0.0, F=0.5, zeta_hat_rest=0.0)
    bound = fedpvr_nonconvex(known, Settings(clients=2, lr=step), rounds)
    assert bound.holds
    assert bound.printed is not None
    assert bound.printed < bound.average(x**2) < bound.value


def test_saddle_45_as_printed_is_false() -> None:
    """f = x²/2 − y²/2, p = 1: z^k = (3/4)^k, with the weights (1 − γμ/2)^{1−k} that (44) defines."""
    rounds = 100
    gap = ((3 / 4) ** np.arange(rounds + 1)) ** 2 / 2
    bound = scaffold_s_anchor(Constants(mu=1.0, beta=1.0, D=1.0), Settings(clients=2), rounds)
    assert bound.lr == 0.25
    assert bound.printed is not None
    assert 1000 * bound.printed < bound.average(gap) < bound.value
    stated = replace(bound, rate=0.25)  # the weights of the theorem's statement, (1 − γμ)^{1−k}
    assert stated.average(gap) < bound.printed
