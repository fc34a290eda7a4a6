"""Formulas that the papers misprint: what is printed fails where what is meant does not. docs/errata.md names these tests."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import TOY_A, TOY_B, toy

import fairlead as fl

OPTIMUM = (TOY_A * TOY_B).sum() / TOY_A.sum()


def _scaffold_error(sign: float, lag: float, rounds: int = 200) -> float:
    """SCAFFOLD on the toy: y ← y − sign·η(g − c_i + c), then c_i ← lag·(c_i − c) + (x − y)/(Kη)."""
    x, c_i, lr, steps = 0.0, np.zeros(4), 0.05, 10
    for _ in range(rounds):
        c, y = c_i.mean(), np.full(4, x)
        for _ in range(steps):
            y = y - sign * lr * (TOY_A * (y - TOY_B) - c_i + c)
        c_i = lag * (c_i - c) + (x - y) / (steps * lr)
        x = y.mean()
        if not np.abs(c_i).max() < 1e100:
            return np.inf
    return abs(x - OPTIMUM)


def test_scaffold_3_and_6_need_a_minus_sign() -> None:
    assert _scaffold_error(sign=1, lag=1) < 1e-12
    assert _scaffold_error(sign=-1, lag=1) == np.inf


def test_scaffold_19_has_c_and_c_i_exchanged() -> None:
    """(19) says that it is the mean of the round's gradients, which only c_i − c + (x − y)/(Kη) is."""
    assert _scaffold_error(sign=1, lag=-1) > 1e-2
    own = fl.train(toy(), fl.Scaffold(lr=0.05), rounds=100, steps=10, eval_every=100)
    assert abs(own.x.item() - OPTIMUM) < 1e-12


def test_fedavg_takes_tau_steps() -> None:
    """f = x²/2 and η = ½: τ = 3 steps halve x three times; 0 … τ would be four."""
    task = fl.problems.quadratics([[[1.0]]], [[0.0]], [1.0])
    assert fl.train(task, fl.FedAvg(lr=0.5), rounds=1, steps=3).x.item() == 0.5**3


def test_fedpvr_line_14_keeps_no_fixed_point() -> None:
    """At the optimum with its control variates every y_i is x, and (1 − η_g)·x + mean(y_i) is x for η_g = 1 alone."""
    printed = {eta: (1 - eta) * OPTIMUM + OPTIMUM for eta in (1.0, 1.5)}
    assert printed[1.0] == OPTIMUM
    assert abs(printed[1.5] - OPTIMUM) > 0.1
    method = fl.FedPVR(lr=0.05, layers=-1, server_lr=1.5)
    run = fl.train(toy(), method, rounds=100, steps=10, eval_every=100)
    assert run.x.item() == pytest.approx(OPTIMUM, abs=1e-10)


def test_fedpvr_14_lacks_a_square() -> None:
    """Ten times the loss is ten times every gradient: the mean of their squares grows by 100, so the bound is a square."""

    def found(scale: float) -> float:
        task = fl.problems.quadratics(
            scale * TOY_A[:, None, None], scale * (TOY_A * TOY_B)[:, None], [1.0]
        )
        return fl.measure.dissimilarity(task)["zeta_hat"]

    assert found(10.0) == pytest.approx(10 * found(1.0))


def test_fedpvr_has_one_condition_on_its_step() -> None:
    """η̃ ≤ 26/(20μ), or 13/(180μ) as the proof needs, says nothing beside η̃ ≤ 1/(80β), because β ≥ μ."""
    known = fl.theory.Constants(mu=1.0, beta=1.0, sigma=0.0, D=1.0, C0=1.0, zeta_rest=0.0)
    bound = fl.theory.fedpvr(known, fl.theory.Settings(clients=4, steps=5), rounds=100)
    assert bound.holds
    assert bound.lr * 5 <= 1 / 80 < 13 / 180 < 26 / 20


def test_catalyst_adds_theta_times_the_way_from_its_centre() -> None:
    """The mapping of f + θ/2‖x − x̄‖² − θ/2‖y − ȳ‖² at a point, by autograd; with a minus sign it would not be monotone."""
    theta, mu = 2.0, 0.5
    z, centre = torch.tensor([1.0, -2.0], requires_grad=True), torch.tensor([0.3, 0.7])
    x, y = z
    f = mu / 2 * x**2 + x * y - mu / 2 * y**2
    more = theta / 2 * (x - centre[0]) ** 2 - theta / 2 * (y - centre[1]) ** 2
    turned = torch.tensor([1.0, -1.0])
    plain, regularised = (
        turned * torch.autograd.grad(v, z, retain_graph=True)[0] for v in (f, f + more)
    )
    torch.testing.assert_close(regularised, plain + theta * (z - centre))
    matrix = torch.tensor([[mu, 1.0], [-1.0, mu]])
    for sign, monotone in ((1, True), (-1, False)):
        symmetric = matrix + matrix.T + 2 * sign * theta * torch.eye(2)
        assert (torch.linalg.eigvalsh(symmetric).min() > 0) == monotone


def test_saddle_41_puts_the_square_of_a_mean_for_a_mean_of_squares() -> None:
    """The steps between synchronizations are geometric: p·Eτ² is (2 − p)/p, where (41) prints 1/p."""
    p = 0.2
    waits = np.arange(1, 2000)
    weights = p * (1 - p) ** (waits - 1)
    assert weights @ waits == pytest.approx(1 / p)
    assert p * weights @ waits**2 == pytest.approx((2 - p) / p)
    assert (2 - p) / p <= 2 / p, "what (42) uses"


@pytest.mark.parametrize(("scaling", "factor"), [("printed", 1 / 8), ("regression", 1 / 2)])
def test_saddle_18_is_a_quarter_of_19(scaling: str, factor: float) -> None:
    """A = 1, b = 0 and λ = 0: the largest value over y, at x = 2, is a multiple of ‖Ax − b‖² = 4."""
    game = fl.problems.saddle_regression(s=0.0, dim=1, lam=0.0, scaling=scaling)
    points = [torch.tensor([2.0, y], dtype=torch.float64) for y in np.linspace(-3, 3, 25)]
    assert max(float(game.objective(z)) for z in points) == pytest.approx(4 * factor)
