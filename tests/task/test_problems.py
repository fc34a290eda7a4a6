"""Problems have the constants they promise and the solutions they state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import toy

import fairlead as fl
from fairlead.gradients.oracle import Gradients
from fairlead.task.solve import minimize


def _gradients(task: fl.Task, x: torch.Tensor) -> torch.Tensor:
    return torch.stack(
        [Gradients(task).full_single(i, x, x[:0], 1000)[0] for i in range(task.clients)]
    )


@pytest.mark.parametrize("clients", [1, 2, 9])
def test_random_quadratics_have_the_constants_asked_for(clients: int) -> None:
    task = fl.problems.random_quadratics(clients, dim=6, mu=0.2, beta=3.0, delta=0.7, gradient=5.0)
    hessians = task.data[0]
    mean = hessians.mean(0)
    spectrum = torch.linalg.eigvalsh(mean)
    assert spectrum[0].item() == pytest.approx(0.2)
    assert spectrum[-1].item() == pytest.approx(3.0)
    assert task.optimum is not None
    g = _gradients(task, task.optimum)
    assert g.mean(0).norm().item() < 1e-12
    delta = torch.linalg.eigvalsh(hessians - mean).abs().max().item()
    assert delta == pytest.approx(0.7 if clients > 1 else 0.0, abs=1e-12)
    size = (g**2).sum(1).mean().sqrt().item()
    assert size == pytest.approx(5.0 if clients > 1 else 0.0, abs=1e-12)


def test_theorem2_is_the_papers_pair() -> None:
    task = fl.problems.theorem2(gradient=7.0, mu=2.0, start=3.0)
    x = torch.tensor([3.0], dtype=torch.float64)
    assert _gradients(task, x).flatten().tolist() == [2 * 2.0 * 3 + 7, -7.0]
    assert task.objective(x).item() == pytest.approx(2.0 / 2 * 9)
    assert task.optimum.item() == 0.0


def test_logistic_solution_agrees_with_scikit_learn() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    y = np.where(rng.random(60) < 0.5, 1.0, -1.0)
    owners = [list(range(20)), list(range(20, 40)), list(range(40, 60))]
    task = fl.problems.logistic_regression(x, y, owners, l2=0.05)
    assert _gradients(task, task.optimum).mean(0).norm() < 1e-10
    model = linear.LogisticRegression(
        C=1 / (60 * 0.05), fit_intercept=False, tol=1e-12, max_iter=9999
    )
    model.fit(x, y)
    np.testing.assert_allclose(task.optimum.numpy(), model.coef_[0], atol=1e-6)


def test_scaffold_solves_heterogeneous_logistic_regression_and_fedavg_does_not() -> None:
    task = fl.problems.synthetic_logistic(clients=5, samples=30, dim=5, shift=2.0, l2=0.1)
    settings = {"rounds": 250, "steps": 5, "eval_every": 250}
    assert fl.train(task, fl.Scaffold(lr=0.3), **settings).history.last("distance") < 1e-8
    assert fl.train(task, fl.FedAvg(lr=0.3), **settings).history.last("distance") > 1e-3


def test_two_gaussians_is_the_papers_toy() -> None:
    task = fl.problems.two_gaussians(clients=5)
    assert (task.dim, task.clients) == (1, 5)
    assert task.sizes.tolist() == [100] * 5
    far = [task.data[0][task.split[i]][50:].mean().item() for i in range(5)]
    assert far[:4] == pytest.approx([1.0] * 4, abs=0.2)
    assert far[4] == pytest.approx(4.0, abs=0.2)
    mixed = fl.problems.two_gaussians(clients=5, iid_split=True)
    torch.testing.assert_close(mixed.optimum, task.optimum, rtol=0, atol=1e-8)  # the same points

    def spread(t: fl.Task) -> float:
        return _gradients(t, t.optimum).abs().max().item()

    assert spread(mixed) < 0.4 * spread(task)


@pytest.mark.parametrize(("std", "smooth", "zeta"), [(0.25, 0.189, 0.407), (0.5, 0.182, 0.398)])
def test_the_toys_constants_are_the_papers_for_a_standard_deviation_of_a_quarter(
    std: float, smooth: float, zeta: float
) -> None:
    """The paper: L = max‖∇²F‖ ≈ 0.190, D = ‖x⁰ − x*‖ ≈ 2, and ζ = max_i‖∇F_i − ∇F‖ ≈ 0.407 at local points
    (its equation 3), the furthest of which is the outlier's own optimum. Means over data sets."""
    found = []
    for seed in range(8):
        task = fl.problems.two_gaussians(clients=20, std=std, start=1.0, seed=seed)
        x, y = task.data
        bias = torch.linspace(-6, 2, 401, dtype=torch.float64)
        p = torch.sigmoid(x.sum(1)[:, None] + bias)  # each point's at each bias
        own = (p - (y[:, None] > 0).double()).reshape(20, 100, -1).mean(1)  # ∇F_i
        at = own[19].abs().argmin()
        apart = (own[:, at] - own[:, at].mean()).abs().max()
        there = _gradients(task, bias[at, None])[:, 0]
        torch.testing.assert_close(there, own[:, at], rtol=0, atol=1e-12)
        far = (task.start(0)[0] - task.optimum).abs()
        found.append([(p * (1 - p)).mean(0).max().item(), apart.item(), far.item()])
    assert np.mean(found, 0) == pytest.approx([smooth, zeta, 2.04], abs=4e-3)


def test_more_local_steps_start_faster_and_end_worse_on_the_toy() -> None:
    task = fl.problems.two_gaussians(clients=2)
    few, many = (fl.train(task, fl.FedAvg(lr=0.2), rounds=25, steps=steps) for steps in (10, 200))
    assert many.history["gap"][1] < few.history["gap"][1]
    assert many.history.last("gap") > 3 * few.history.last("gap")


def test_minimize_finds_the_weighted_optimum_and_refuses_what_has_none() -> None:
    weights = [4.0, 1.0, 2.0, 3.0]
    a, b = np.array([1.0, 3.0, 0.5, 2.0]), np.array([-1.0, 1.0, 4.0, -3.0])
    w = np.array(weights)
    expected = (w * a * b).sum() / (w * a).sum()
    assert minimize(toy(), weights).item() == pytest.approx(expected, abs=1e-10)
    task = fl.problems.quadratics([[[-1.0]]], [[0.0]], [1.0])
    with pytest.raises(fl.FairleadError, match="that the problem is convex"):
        minimize(task)


def test_wrong_constants_are_refused() -> None:
    with pytest.raises(fl.FairleadError, match="mu ≤ beta"):
        fl.problems.random_quadratics(mu=2.0, beta=1.0)
    with pytest.raises(fl.FairleadError, match="mu is 0"):
        fl.problems.theorem2(mu=0.0)
    with pytest.raises(fl.FairleadError, match="−1 and \\+1"):
        fl.problems.logistic_regression(np.ones((2, 1)), [0, 1], [[0], [1]])
