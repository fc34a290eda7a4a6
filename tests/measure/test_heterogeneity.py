"""Gradient dissimilarity and the things called ζ."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import toy, uneven
from hypothesis import given, settings
from hypothesis import strategies as st

import fairlead as fl
from fairlead.measure.functions import _opened
from fairlead.run.measuring import take
from fairlead.task.samples import losses_of, output_of


def _by_hand(task: fl.Task, x: torch.Tensor) -> torch.Tensor:
    """Every client's full gradient, by plain autograd."""
    rows = []
    for client in range(task.clients):
        leaf = x.clone().requires_grad_()
        owned = torch.from_numpy(task.split[client])
        block = tuple(t[owned] for t in task.data)
        output = output_of(task, task.model, task.state_dict(leaf), block)
        loss = losses_of(task, output, block).mean() + task.l2 / 2 * leaf @ leaf
        rows.append(torch.autograd.grad(loss, leaf)[0])
    return torch.stack(rows)


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("engine", ["vmap", "loop", "debug"])
def test_every_number_by_hand(engine: str, pairs: bool) -> None:
    task = uneven()
    x = task.start(1)[0]
    weights = torch.tensor(task.client_weights("size"))
    g = _by_hand(task, x)
    mean = weights @ g
    part = task.layers["1.weight"]
    rest = (g**2).sum(1) - (g[:, part] ** 2).sum(1)
    found = fl.measure.dissimilarity(
        task, x, pairs=pairs, part=part, weighting="size", engine=engine
    )
    A, b = float(weights @ (g**2).sum(1)), float(mean @ mean)
    expected = {
        "": A - b, "A": A, "b": b, "zeta_max": float((g - mean).norm(dim=1).max()),
        "zeta_hat": math.sqrt(A), "zeta_hat_rest": math.sqrt(float(weights @ rest)),
    }  # fmt: skip
    if pairs:
        expected["zeta_pair"] = float(torch.cdist(g, g).max())
    assert dict(found.values) == pytest.approx(expected, rel=1e-9)
    assert found.clients == 5
    assert found.samples == 29
    assert found.gradients == 29 * (1 if pairs else 2)
    width = 64 * task.dim
    each = (
        width if pairs else 2 * width + 128 + 64
    )  # gradient and halves, two squares; then one more
    down = width if pairs else 2 * width + 2 * width  # x, and where to leave out; then the means
    assert found.bits == 5 * (each + down)


def test_the_orderings_of_the_five_at_a_thousand_points() -> None:
    """A − b ≤ ζ_max² ≤ ζ_pair² ≤ 4ζ_max², A − b ≤ ζ_pair²/2, A − b ≤ ζ̂² = A, ζ̂_{1−p} ≤ ζ̂, ζ_max² ≤ (N − 1)(A − b); at the
    optimum A − b = ζ̂² = ζ_*²."""
    rng = np.random.default_rng(0)
    points = 0
    for seed in range(20):
        n, d = int(rng.integers(2, 9)), int(rng.integers(2, 7))
        task = fl.problems.random_quadratics(n, d, delta=0.5, gradient=2.0, seed=seed)
        probe = fl.measure.Dissimilarity(part=slice(0, d // 2))
        best = fl.measure.take(task, probe, task.optimum)
        assert best.value == pytest.approx(4.0, rel=1e-9)
        assert best["zeta_hat"] == pytest.approx(fl.measure.zeta_star(task), rel=1e-9)
        session, state = _opened(task, None, "vmap", "uniform", seed, {})
        found = [
            take(session, state, probe, 0, x=torch.tensor(rng.normal(size=d) * 3))
            for _ in range(50)
        ]
        session.close()
        columns = {key: np.array([one[key] for one in found]) for key in best.values}
        spread, A, b = columns[""], columns["A"], columns["b"]
        top, pair = columns["zeta_max"] ** 2, columns["zeta_pair"] ** 2
        slack = 1 + 1e-9
        np.testing.assert_allclose(spread, A - b, rtol=1e-9, atol=1e-9)
        assert (spread <= top * slack).all()
        assert (top <= pair * slack).all()
        assert (pair <= 4 * top * slack).all()
        assert (spread <= pair / 2 * slack).all()
        assert (spread <= A * slack).all()
        assert (top <= (n - 1) * spread * slack).all()
        assert (columns["zeta_hat_rest"] <= columns["zeta_hat"] * slack).all()
        points += len(A)
    assert points == 1000


def test_the_toys_published_constants() -> None:
    """Two Gaussians with a standard deviation of ¼ and 20 clients: L = 0.190 and ζ_max = 0.407 where the outlier's local
    steps end."""
    found = []
    for seed in range(4):
        task = fl.problems.two_gaussians(clients=20, std=0.25, start=1.0, seed=seed)
        probe = fl.measure.Curvature(steps=1, delta=False)
        biases = torch.linspace(-2.0, -0.5, 7, dtype=torch.float64)[:, None]
        L = max(fl.measure.take(task, probe, bias)["L"] for bias in biases)
        x, y = (t.reshape(20, 100, -1)[-1] for t in task.data)
        alone = fl.Task(task.model, "logistic", (x, y[:, 0]), [range(100)], dtype=torch.float64)
        end = fl.minimize(alone)
        found.append([L, fl.measure.dissimilarity(task, end)["zeta_max"]])
    L, zeta = np.mean(found, 0)
    assert pytest.approx(0.190, abs=0.003) == L
    assert zeta == pytest.approx(0.407, abs=0.01)


def test_the_pairs_of_a_game() -> None:
    """Definition 6 of the saddle-point paper, of the gradient mapping: the same at every point if Hessians are equal."""
    game = fl.problems.quadratic_game(clients=5, delta=0.0, zeta=1.5, pairwise=True)
    for x in (game.start()[0], game.optimum):
        assert fl.measure.dissimilarity(game, x)["zeta_pair"] == pytest.approx(1.5, rel=1e-9)


def test_sampled_clients_give_lower_bounds_and_estimates_without_bias() -> None:
    task = fl.problems.random_quadratics(clients=12, dim=4, delta=0.3, gradient=2.0)
    exact = fl.measure.dissimilarity(task, task.optimum)
    drawn = [
        fl.measure.dissimilarity(task, task.optimum, clients=4, seed=seed) for seed in range(100)
    ]
    assert all(one["zeta_max"] <= exact["zeta_pair"] for one in drawn)
    assert all(one["zeta_pair"] <= exact["zeta_pair"] for one in drawn)
    assert all(one.ranges["zeta_pair"] == (one["zeta_pair"], math.inf) for one in drawn)
    assert "lower bounds" in drawn[0].notes[0]
    mean = np.mean([one.value for one in drawn])
    error = np.std([one.value for one in drawn]) / math.sqrt(len(drawn))
    assert abs(mean - exact.value) < 4 * error


@pytest.mark.parametrize("pairs", [True, False])
def test_sampled_data_give_estimates_without_bias(pairs: bool) -> None:
    """In the mean over draws of 4 of 10 samples; without the correction A would be too large."""
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(30, 3)))
    y = torch.tensor(rng.normal(size=30))
    model = torch.nn.Linear(3, 1)
    owners = [range(10), range(10, 24), range(24, 28), range(28, 30)]
    task = fl.Task(model, "squared", (x, y), owners, dtype=torch.float64, l2=0.1)
    probe = fl.measure.Dissimilarity(samples=4, pairs=pairs, part="bias")
    exact = fl.measure.dissimilarity(task, pairs=pairs, part="bias")
    session, state = _opened(task, None, "vmap", "uniform", 0, {})
    drawn = [take(session, state, probe, round) for round in range(150)]
    session.close()
    rows = [[one[""], one["A"], one["b"]] for one in drawn]
    mean, error = np.mean(rows, 0), np.std(rows, 0) / math.sqrt(len(rows))
    expected = [exact[""], exact["A"], exact["b"]]
    assert (np.abs(mean - expected) < 4 * error).all()
    assert drawn[0].samples == 4 + 4 + 4 + 2
    other = fl.measure.take(task, probe, engine="loop")
    assert dict(other.values) == pytest.approx(dict(drawn[0].values), rel=1e-9)
    with pytest.raises(fl.FairleadError, match="an even number"):
        fl.measure.dissimilarity(task, samples=3)


def test_gradients_that_do_not_fit_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairlead.probe import heterogeneity

    task = fl.problems.random_quadratics(clients=8, dim=5, gradient=2.0)
    exact = fl.measure.dissimilarity(task)
    monkeypatch.setattr(heterogeneity, "ROOM", 3 * 5 * 8)
    found = fl.measure.dissimilarity(task)
    assert found["zeta_max"] == pytest.approx(exact["zeta_max"])
    assert found.value == pytest.approx(exact.value)
    low, high = found.ranges["zeta_pair"]
    assert low <= exact["zeta_pair"] <= high
    assert "lower bound" in found.notes[-1]


# linprog drops coefficients below 1e-9
thousandths = st.integers(0, 100_000).map(lambda n: n / 1000)


@settings(max_examples=200)
@given(st.lists(st.tuples(thousandths, thousandths), min_size=1, max_size=12))
def test_g_and_b_solve_the_linear_program(pairs: list[tuple[float, float]]) -> None:
    from scipy.optimize import linprog

    b = np.array([base for base, _ in pairs])
    A = b + np.array([more for _, more in pairs])  # Jensen's inequality
    G, B = fl.measure.smallest_bounds(A, b)
    assert B >= 1
    assert (G**2 + B**2 * b >= A * (1 - 1e-9) - 1e-9).all()
    best = linprog(
        [1, b.mean()], A_ub=np.c_[-np.ones_like(b), -b], b_ub=-A, bounds=[(0, None), (1, None)]
    )
    assert G**2 + B**2 * b.mean() == pytest.approx(best.fun, rel=1e-6, abs=1e-6)


def test_g_and_b_next_to_an_optimum() -> None:
    """Gradients of 1e-154 there make B as large as a float can be, and no overflow."""
    tiny = 1.2e-308
    G, B = fl.measure.smallest_bounds([0.0, 1.0], [0.0, tiny])
    assert G == 0
    assert B**2 * tiny == pytest.approx(1.0)
    G, B = fl.measure.smallest_bounds([2.0, 1.0], [2.0, tiny])
    assert (G, B) == (1.0, 1.0)


def test_bounds_over_a_trajectory_hold_at_its_points() -> None:
    task = fl.problems.synthetic_logistic(clients=5, samples=20, dim=4, shift=2.0)
    rng = np.random.default_rng(0)
    points = [torch.tensor(rng.normal(size=4)) for _ in range(10)]
    found = fl.measure.dissimilarity_bounds(task, points, beta=20.0)
    assert found.convex is not None
    assert found.always is not None
    least = float(task.objective(task.optimum))
    for x in points:
        one = fl.measure.dissimilarity(task, x)
        gap = 2 * 20.0 * (float(task.objective(x)) - least)
        assert found.G**2 + found.B**2 * one["b"] >= one["A"] * (1 - 1e-9)
        assert found.convex[0] ** 2 + found.convex[1] ** 2 * gap >= one["A"] * (1 - 1e-9)
        assert found.always[0] ** 2 + found.always[1] ** 2 * gap >= one["A"]


def test_what_theorems_need_is_measured() -> None:
    """SCAFFOLD's bound from measured constants holds for the run that it is about."""
    task = fl.problems.random_quadratics(
        clients=4, mu=0.5, beta=1.0, delta=0.1, gradient=2.0, dim=3
    )
    found = fl.measure.known(task, part=slice(0, 2))
    assert found.mu == pytest.approx(-fl.measure.curvature(task)["weak_convexity"])
    assert pytest.approx(4.0) == found.C0
    assert pytest.approx(float(task.optimum.norm())) == found.D
    assert found.zeta_rest == pytest.approx(fl.measure.zeta_star(task, part=slice(0, 2)))
    settings = fl.theory.Settings(clients=4, steps=5)
    rounds = 400
    bound = fl.theory.scaffold(found, settings, rounds=rounds)
    assert bound.holds
    assert bound.rate is not None
    run = fl.train(
        task,
        fl.Scaffold(lr=bound.lr),
        rounds=rounds,
        steps=5,
        average=bound.rate,
        eval_every=rounds,
    )
    assert 0 <= run.history.last("average_gap") <= bound.value
    game = fl.problems.quadratic_game(clients=3, dim=3)
    assert fl.measure.known(game).beta == fl.measure.curvature(game)["lipschitz"]


def test_a_task_without_optimum_and_an_unknown_layer() -> None:
    with pytest.raises(fl.FairleadError, match="optimum is not known"):
        fl.measure.zeta_star(uneven())
    with pytest.raises(fl.FairleadError, match="no layer is named 7"):
        fl.measure.dissimilarity(uneven(), part="7")
    assert fl.measure.dissimilarity(toy(), clients=1)["zeta_pair"] == 0.0
