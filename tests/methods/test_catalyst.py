"""Catalyst's θ from theory: β − μ of the task, settled before the first round."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fairlead as fl
from fairlead.run.saved import listed, read

INNER = fl.ScaffoldS(lr=0.05)


def test_theta_is_beta_minus_mu_of_the_task() -> None:
    game = fl.problems.quadratic_game(clients=3, dim=2)
    known = game.constants
    assert known is not None
    assert known.beta is not None
    assert known.mu is not None
    run = fl.train(game, fl.Catalyst(INNER, theta="theory"), rounds=6, steps=3)
    by_hand = fl.train(game, fl.Catalyst(INNER, theta=known.beta - known.mu), rounds=6, steps=3)
    assert run.algorithm.theta == known.beta - known.mu
    torch.testing.assert_close(run.x, by_hand.x, rtol=0, atol=0)


def test_measured_constants_count() -> None:
    task = fl.problems.synthetic_logistic(clients=3, samples=10, dim=2)
    assert task.constants is None
    known = task.replace(constants=fl.theory.Constants(mu=0.01, beta=0.76))
    run = fl.train(known, fl.Catalyst(fl.Scaffold(lr=0.1), theta="theory"), rounds=2, steps=2)
    assert run.algorithm.theta == pytest.approx(0.75)
    assert known.replace(l2=0.5).constants is None, "another l2 is another problem"


def test_unknown_constants_are_refused_in_a_sentence() -> None:
    task = fl.problems.synthetic_logistic(clients=3, samples=10, dim=2)
    method = fl.Catalyst(fl.Scaffold(lr=0.1), theta="theory")
    with pytest.raises(fl.FairleadError, match=r"needs μ and β of the task.*set theta to a number"):
        fl.train(task, method, rounds=2, steps=2)
    only_beta = task.replace(constants=fl.theory.Constants(beta=1.0))
    with pytest.raises(fl.FairleadError, match=r"needs μ and β"):
        fl.train(only_beta, method, rounds=2, steps=2)
    with pytest.raises(fl.FairleadError, match='at least 0 or "theory"'):
        fl.Catalyst(INNER, theta="best")  # pyright: ignore[reportArgumentType]


def test_checkpoints_keep_theta(tmp_path: Path) -> None:
    game = fl.problems.quadratic_game(clients=3, dim=2)
    method = fl.Catalyst(INNER, theta="theory", inner_rounds=2)
    whole = fl.train(game, method, rounds=8, steps=3)
    fl.train(game, method, rounds=4, steps=3, checkpoints=tmp_path)
    kept = read(listed(tmp_path)[-1]).meta["config"]["method"]["theta"]
    assert kept == whole.algorithm.theta
    resumed = fl.train(game, method, rounds=8, steps=3, resume=tmp_path)
    torch.testing.assert_close(resumed.x, whole.x, rtol=0, atol=0)
    other = game.replace(constants=fl.theory.Constants(mu=0.0, beta=9.0))
    with pytest.raises(fl.FairleadError, match="theta"):
        fl.train(other, method, rounds=8, steps=3, resume=tmp_path)


def test_every_engine_uses_it() -> None:
    game = fl.problems.quadratic_game(clients=3, dim=2)
    method = fl.Catalyst(INNER, theta="theory")
    runs = [fl.train(game, method, rounds=3, steps=2, engine=e) for e in ("vmap", "loop", "debug")]
    for run in runs[1:]:
        torch.testing.assert_close(run.x, runs[0].x, rtol=0, atol=1e-12)


def test_problems_know_their_constants() -> None:
    pair = fl.problems.theorem2(gradient=10.0, mu=1.0, start=2.0).constants
    assert pair is not None
    assert (pair.mu, pair.beta, pair.delta, pair.D, pair.F) == (0.0, 2.0, 1.0, 2.0, 2.0)
    assert pair.C0 == 100.0
    regression = fl.problems.saddle_regression(s=0.0, dim=2, lam=0.5, scaling="printed").constants
    assert regression is not None
    assert regression.mu == 0.5
    assert regression.D == 2.0
    # M = ((½, −½), (½, 1)) for every coordinate
    assert regression.beta == pytest.approx(
        float(torch.linalg.matrix_norm(torch.tensor([[0.5, -0.5], [0.5, 1.0]]), 2))
    )
    nonconvex = fl.problems.random_quadratics(mu=0.01, delta=0.5).constants
    assert nonconvex is not None
    assert nonconvex.mu is None
    assert nonconvex.delta == pytest.approx(0.5)
