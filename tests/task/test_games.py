"""Saddle problems from data, points on the simplex, and Catalyst's sufficient decrease."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from conftest import uneven
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fairlead as fl
from fairlead.core.domain import Simplex
from fairlead.gradients.form import ANY, Form
from fairlead.gradients.oracle import Gradients
from fairlead.task.losses import auc
from fairlead.task.solve import saddle_point


def binary(l2: float = 0.05, weighting: str = "uniform", solve: bool = True) -> fl.SaddleTask:
    """Linear scores on 40 samples whose positives lie mostly with the last of three clients."""
    rng = np.random.default_rng(1)
    y = np.r_[-np.ones(28), np.ones(12)]
    x = rng.normal(size=(40, 3)) + 0.7 * y[:, None]
    order = [np.arange(0, 15), np.r_[np.arange(15, 25), 30], np.r_[25:28, 28:30, 31:40]]
    model = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = (torch.tensor(x), torch.tensor(y))
    task = fl.Task(model, "logistic", data, order, test=data, l2=l2, dtype=torch.float64)
    return fl.problems.auc_maximization(task, weighting, solve)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8))
def test_projection_on_the_simplex(values: list[float]) -> None:
    """u is the projection of v just if ⟨v − u, w − u⟩ ≤ 0 at every corner w."""
    v = torch.tensor([9.0, *values, -9.0], dtype=torch.float64)
    u = Simplex(slice(1, len(v) - 1)).project(v)
    assert (u[0], u[-1]) == (9, -9)
    inside, outside = u[1:-1], v[1:-1]
    assert (inside >= 0).all()
    assert float(inside.sum()) == pytest.approx(1, abs=1e-12)
    corners = torch.eye(len(inside), dtype=torch.float64)
    assert float(((corners - inside) @ (outside - inside)).max()) < 1e-12


def test_entropic_steps_multiply_and_normalise() -> None:
    z = torch.tensor([1.0, 0.2, 0.3, 0.5], dtype=torch.float64)
    g = torch.tensor([0.5, 1.0, -1.0, 0.0], dtype=torch.float64)
    raw = z[1:] * torch.exp(-2 * g[1:])
    found = Simplex(slice(1, 4)).step(z, g, "entropy", ratio=2.0)
    torch.testing.assert_close(found, torch.cat([z[:1] - 0.5, raw / raw.sum()]), rtol=0, atol=1e-15)


def _distances(penalty: float = 0.0, **settings) -> fl.SaddleTask:
    """f_i = a_i/2·(x − b_i)² for three clients."""
    data = [torch.tensor([1.0, 4.0, 1.0]), torch.tensor([0.0, 6.0, 1.0])]
    data = [t.double() for t in data]
    base = fl.Task.from_function(
        lambda x, a, b: a / 2 * ((x - b) ** 2).sum(), data, torch.zeros(1).double()
    )
    return fl.problems.agnostic(base, penalty, **settings)


def test_agnostic_weights_have_the_closed_form() -> None:
    """Worst of (x)²/2, 2(x − 6)², (x − 1)²/2: the first two meet at x = 4 with value 8, and λ_1·4 = λ_2·8."""
    task = _distances(solve=True)
    expected = torch.tensor([4.0, 2 / 3, 1 / 3, 0.0], dtype=torch.float64)
    torch.testing.assert_close(task.optimum, expected, rtol=0, atol=1e-9)
    for geometry in ("euclidean", "entropy"):
        method = fl.MirrorProx(lr=0.1, geometry=geometry)
        run = fl.train(task, method, rounds=800, steps=1, eval_every=800)
        assert run.history.last("distance") < 1e-7, geometry
        assert run.history.last("worst_loss") == pytest.approx(8.0, abs=1e-6)
        assert run.history.last("residual_norm") < 1e-6


def test_a_large_penalty_keeps_the_weights_even() -> None:
    task = _distances(penalty=1e3, solve=True)
    mean = (1 * 0.0 + 4 * 6.0 + 1 * 1.0) / 6
    assert float(task.optimum[0]) == pytest.approx(mean, abs=0.1)
    assert float((task.optimum[1:] - 1 / 3).abs().max()) < 1e-2


def test_agnostic_of_a_network_weighs_client_gradients(device: str) -> None:
    base = uneven(device)
    task = fl.problems.agnostic(base)
    z = task.start(0)[0]
    lam = torch.tensor([0.1, 0.4, 0.2, 0.0, 0.3], dtype=z.dtype, device=device)
    z[task.players[1]] = lam
    x, none = z[task.players[0]], z.new_zeros(5, 0)
    g = Gradients(base).full_stacked(np.arange(5), x, none, 100)[0]
    found = task.mapping(z)
    torch.testing.assert_close(found[task.players[0]], lam @ g, rtol=0, atol=1e-12)
    ridge = base.l2 / 2 * (x @ x)
    losses = base.client_losses(x) - ridge  # the constant moves no weights
    torch.testing.assert_close(found[task.players[1]], -losses, rtol=0, atol=1e-12)
    seen = task.evaluate(z)
    assert seen["worst_loss"] == pytest.approx(float(base.client_losses(x).max()))
    assert seen["accuracy"] == base.evaluate(x)["accuracy"]


def test_agnostic_training_serves_the_worst_client_better() -> None:
    network = uneven()
    base = fl.Task(
        fl.models.softmax_regression(5, 3), "cross_entropy", network.data, network.split, l2=0.01,
        dtype=torch.float64,
    )  # fmt: skip
    even = fl.train(base, fl.FedSGD(lr=0.5), rounds=300, eval_every=300)
    worst = float(base.client_losses(even.x).max())
    task = fl.problems.agnostic(base)
    for geometry in ("euclidean", "entropy"):
        method = fl.MirrorProx(lr=0.5, geometry=geometry, ratio=0.2)
        run = fl.train(task, method, rounds=300, steps=1, eval_every=300)
        assert run.history.last("worst_loss") < 0.95 * worst
        assert float(run.x[task.players[1]].sum()) == pytest.approx(1)


def test_methods_that_would_leave_the_simplex_are_refused() -> None:
    task = _distances()
    for method in (fl.FedAvg(lr=0.1), fl.Catalyst(fl.ScaffoldS(lr=0.1)), fl.FedPVR(lr=0.1)):
        with pytest.raises(fl.FairleadError, match="leave the simplex"):
            fl.train(task, method, rounds=1)
    with pytest.raises(fl.FairleadError, match="omit geometry and ratio"):
        fl.train(binary(), fl.MirrorProx(lr=0.1, geometry="entropy"), rounds=1)
    with pytest.raises(fl.FairleadError, match="built for the weighting 'uniform'"):
        fl.train(fl.problems.agnostic(uneven()), fl.MirrorProx(lr=0.1), rounds=1, weighting="size")
    with pytest.raises(fl.FairleadError, match="did you mean 'entropy'"):
        fl.MirrorProx(lr=0.1, geometry="entropi")


def test_auc_counts_pairs_with_ties_by_half() -> None:
    rng = np.random.default_rng(0)
    score, label = torch.tensor(rng.integers(0, 6, 50) / 2), torch.tensor(rng.random(50) < 0.3)
    pairs = score[label][:, None] - score[~label]
    expected = ((pairs > 0).double() + 0.5 * (pairs == 0)).mean()
    torch.testing.assert_close(auc(score, label), expected)


@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_the_auc_saddle_point_minimizes_the_pairwise_loss(weighting: str) -> None:
    """min over w of Σ over pairs of weight·(1 − w'(x⁺ − x⁻))² + l2/2·‖w‖², by normal equations."""
    task = binary(weighting=weighting)
    x, y = (t.numpy() for t in task.data)
    weight = np.zeros(len(y))
    weight[task.split.order] = np.repeat(task.client_weights(weighting) / task.sizes, task.sizes)
    plus, minus = y > 0, y < 0
    pair = np.outer(weight[plus] / weight[plus].sum(), weight[minus] / weight[minus].sum())
    gap = x[plus][:, None] - x[minus]
    h = 2 * np.einsum("ij,ijk,ijl->kl", pair, gap, gap) + 0.05 * np.eye(3)
    w = np.linalg.solve(h, 2 * np.einsum("ij,ijk->k", pair, gap))
    np.testing.assert_allclose(task.optimum[:3].numpy(), w, rtol=0, atol=1e-9)
    loss = (pair * (1 - gap @ w) ** 2).sum() - 1 + 0.05 / 2 * (w @ w)
    assert float(task.objective(task.optimum, weighting)) == pytest.approx(loss, abs=1e-9)


def test_local_corrected_steps_reach_the_centralised_auc() -> None:
    task = binary()
    run = fl.train(task, fl.ScaffoldS(lr=0.02), rounds=400, steps=5, eval_every=400)
    assert run.history.last("distance") < 1e-6
    assert run.history.last("auc") == task.evaluate(task.optimum)["auc"] > 0.85
    drifted = fl.train(task, fl.FedAvg(lr=0.02), rounds=400, steps=5, eval_every=400)
    assert drifted.history.last("distance") > 0.01


def test_auc_of_digits_sorted_by_label_reaches_the_centralised_one() -> None:
    """One digit against the others; two of ten clients hold all positives."""
    task = fl.tasks.auc()
    best = task.evaluate(task.optimum)["auc"]
    run = fl.train(
        task, fl.ScaffoldS(lr=0.003), rounds=100, steps=10, batch_size=0.2, eval_every=100
    )
    assert run.history.last("auc") > best - 0.005
    assert best < 0.99


@pytest.mark.slow
@pytest.mark.skipif("FAIRLEAD_DATA" not in os.environ, reason="needs a9a.npz in $FAIRLEAD_DATA")
def test_auc_of_a9a_sorted_by_label_reaches_the_centralised_one() -> None:
    """Income data, 24 % positive; nearly every one of ten clients holds a single class."""
    task = fl.tasks.auc(source="a9a")
    table = task.split.table(task.data[1].numpy())
    assert ((table > 0).sum(1) == 1).sum() >= 8
    best = task.evaluate(task.optimum)["auc"]
    run = fl.train(task, fl.ScaffoldS(lr=0.01), rounds=60, steps=10, batch_size=0.2, eval_every=60)
    assert run.history.last("auc") > best - 0.005
    assert 0.89 < best < 0.91


def test_auc_needs_both_classes_and_signs() -> None:
    data = (torch.randn(4, 2), torch.ones(4))
    task = fl.Task(nn.Linear(2, 1), "logistic", data, [range(4)])
    with pytest.raises(fl.FairleadError, match="positive and negative"):
        fl.problems.auc_maximization(task)
    other = fl.Task(nn.Linear(2, 1), "squared", (data[0], data[1] * 3), [range(4)])
    with pytest.raises(fl.FairleadError, match="−1 and \\+1"):
        fl.problems.auc_maximization(other)


def test_robust_regression_has_the_adversary_s_best_answer() -> None:
    """At the saddle point r maximizes ½(w'r)² + w'r·mean(w'a − b) − penalty/2·‖r‖², so r = w·c/(penalty − ‖w‖²)."""
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(30, 3)), rng.normal(1.0, 1.0, 30)
    task = fl.problems.robust_regression(a, b, [range(9), range(9, 30)], l2=0.2, penalty=5.0)
    w, r = (task.optimum[p].numpy() for p in task.players)
    error = a @ w - b
    mean = (error[:9].mean() + error[9:].mean()) / 2
    np.testing.assert_allclose(r, w * mean / (5.0 - w @ w), rtol=0, atol=1e-10)
    run = fl.train(task, fl.ScaffoldS(lr=0.05), rounds=400, steps=4, eval_every=400)
    assert run.history.last("distance") < 1e-9
    rng = np.random.default_rng(44)
    penalty, scale = 10 ** rng.uniform(-3, 1), 10 ** rng.uniform(-1, 2)
    a = rng.normal(size=(20, 2)) * 10 ** rng.uniform(-1, 1)
    b = rng.normal(rng.normal(), 1, 20) * scale
    l2 = 10 ** rng.uniform(-4, 0)
    with pytest.raises(fl.FairleadError, match="raise it"):
        fl.problems.robust_regression(a, b, [range(20)], l2=l2, penalty=penalty)


def test_a_bilinear_game_has_the_constants_asked_for() -> None:
    task = fl.problems.bilinear_game(dim=3, beta=2.0, smallest=0.7, zeta=1.5, delta=0.2)
    m, v = task.data
    sizes = torch.linalg.svdvals(m.mean(0)[:3, 3:])
    torch.testing.assert_close(sizes[[0, -1]], torch.tensor([2.0, 0.7]).double())
    assert float(m[:, :3, :3].abs().max()) == float(m[:, 3:, 3:].abs().max()) == 0
    assert float((m @ task.optimum + v).norm(dim=1).max()) == pytest.approx(1.5)
    apart = torch.linalg.matrix_norm((m - m.mean(0))[:, :3, 3:], 2)
    assert float(apart.max()) == pytest.approx(0.2)


def test_on_a_bilinear_game_descent_ascent_leaves_and_mirror_prox_arrives() -> None:
    """Each turn multiplies the distance along a singular value σ by √(1 + γ²σ²), or √(1 − γ²σ² + γ⁴σ⁴)."""
    task = fl.problems.bilinear_game(clients=3, dim=1, beta=1.0, smallest=1.0)
    far = float(task.optimum.norm())
    for method, factor in ((fl.MirrorDescent(0.3), 1.09), (fl.MirrorProx(0.3), 1 - 0.09 + 0.0081)):
        run = fl.train(task, method, rounds=50, steps=1, eval_every=50)
        assert run.history.last("distance") == pytest.approx(far * factor**25, rel=1e-9)


def test_the_ridge_term_of_a_saddle_task_pulls_both_players_in(device: str) -> None:
    one = torch.ones(1, dtype=torch.float64)
    data = [torch.ones(2, 1, dtype=torch.float64)]
    task = fl.SaddleTask.of(
        lambda x, y, a: (a * x * y).sum(), data, one, one, l2=0.5, device=device
    )
    z = torch.tensor([2.0, 3.0], dtype=torch.float64, device=device)
    expected = torch.tensor([3 + 1.0, -2 + 1.5], dtype=torch.float64, device=device)
    torch.testing.assert_close(task.mapping(z), expected)
    found = Gradients(task).full_stacked(np.arange(2), z, z.new_zeros(2, 0), 9)[0]
    torch.testing.assert_close(found, expected.expand(2, 2))
    assert float(task.objective(z)) == pytest.approx(6 + 0.25 * (4 - 9))


def test_the_solver_says_when_there_is_no_saddle_point() -> None:
    one = torch.ones(1, dtype=torch.float64)
    data = [torch.ones(1, 1, dtype=torch.float64)]
    task = fl.SaddleTask.of(lambda x, y, a: (a * (x + y)).sum(), data, one, one)
    with pytest.raises(fl.FairleadError, match="strongly convex-concave"):
        saddle_point(task)


def test_catalyst_moves_on_at_a_sufficient_decrease() -> None:
    """With one client and one step, x ← x − γ(x − 0 + θ(x − x̄)) from 1: the moves shrink by 1 − γ(1 + θ) = ½,
    so with decrease 0.3 the centre moves after the third round, as ½ > 0.3 ≥ ¼."""
    task = fl.problems.quadratics([[[1.0]]], [[0.0]], [1.0])
    method = fl.Catalyst(fl.FedSGD(lr=0.25), theta=1.0, inner_rounds=100, decrease=0.3)
    x = centre = 1.0
    for k in range(1, 10):
        x = x - 0.25 * (x + (x - centre))
        centre = x if k % 3 == 0 else centre
        run = fl.train(task, method, rounds=k)
        assert float(run.x) == pytest.approx(x, abs=1e-14)
        assert float(run.state.centre) == pytest.approx(centre, abs=1e-14)


def test_catalyst_s_count_is_the_most_rounds_between_centres() -> None:
    task = fl.problems.quadratics([[[1.0]]], [[0.0]], [1.0])
    some = [fl.Catalyst(fl.FedSGD(lr=0.25), inner_rounds=2, decrease=d) for d in (0.0, 0.3)]
    one, two = (fl.train(task, m, rounds=9).x for m in some)
    torch.testing.assert_close(one, two)
    for wrong in ({"decrease": 1.0}, {"decrease": -0.1}, {"inner_rounds": 0}, {"theta": -1.0}):
        with pytest.raises(fl.FairleadError, match="theta must be at least 0"):
            fl.Catalyst(fl.FedSGD(lr=0.1), **wrong)


@pytest.mark.parametrize("name", ["saddle_regression", "quadratic_game", "bilinear_game"])
def test_recorded_mappings_are_bitwise_those_of_vmap(name: str) -> None:
    task = getattr(fl.problems, name)(clients=3, dim=4)
    captured, plain = Gradients(task, Form(capture=(ANY,))), Gradients(task)
    z = torch.tensor(np.random.default_rng(0).normal(size=(3, task.dim)))
    block = task.samples(torch.arange(3), torch.zeros(3, 1, dtype=torch.int64))
    for point in (z, z[0]):
        found = [captured.stacked(point, block, None, z.new_zeros(3, 0))[0] for _ in range(3)]
        exact = plain.stacked(point, block, None, z.new_zeros(3, 0))[0]
        assert all(torch.equal(g, exact) for g in found)
    assert captured.captured == 2


@pytest.mark.filterwarnings("ignore:the split has sample 5 more than once")
def test_agnostic_of_clients_that_share_samples() -> None:
    rng = np.random.default_rng(0)
    data = (torch.tensor(rng.normal(size=(12, 3))), torch.tensor(rng.integers(0, 2, 12)))
    base = fl.Task(
        fl.models.mlp(3, 2), "cross_entropy", data, [range(2, 9), range(5, 11)], dtype=torch.float64
    )
    task = fl.problems.agnostic(base)
    z = task.start(0)[0]
    found = -task.mapping(z)[task.players[1]]
    torch.testing.assert_close(found, base.client_losses(z[task.players[0]]))


def test_the_solver_does_not_take_rounding_for_a_solution() -> None:
    one = torch.ones(1, dtype=torch.float64)
    data = [torch.ones(1, 1, dtype=torch.float64)]

    def f(x: torch.Tensor, y: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return (torch.log(x) * a - 5 * x - y * y).sum()

    task = fl.SaddleTask.of(f, data, one, one)
    with pytest.raises(fl.FairleadError, match="strongly convex-concave"):
        saddle_point(task)


def test_statistics_of_the_run_count_in_residual_and_gap() -> None:
    rng = np.random.default_rng(0)
    y = np.where(rng.random(40) < 0.4, 1.0, -1.0)
    data = (torch.tensor(rng.normal(2.0, 3.0, (40, 3))), torch.tensor(y))
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    base = fl.Task(
        model, "logistic", data, [range(20), range(20, 40)], test=data, dtype=torch.float64
    )
    task = fl.problems.auc_maximization(base)
    run = fl.train(task, fl.FedAvg(lr=0.01), rounds=4, steps=2, batch_size=10)
    exact = task.residual(run.x, "uniform", run.session.buffers).norm()
    assert run.history.last("residual_norm") == pytest.approx(float(exact), rel=1e-14)
    assert float((exact - task.residual(run.x).norm()).abs()) > 1e-3


def test_client_losses_of_a_saddle_task_have_its_objective_as_mean() -> None:
    one = torch.ones(1, dtype=torch.float64)
    data = [torch.ones(2, 1, dtype=torch.float64)]
    task = fl.SaddleTask.of(lambda x, y, a: (a * x * y).sum(), data, one, one, l2=0.5)
    z = torch.tensor([2.0, 3.0], dtype=torch.float64)
    assert float(task.client_losses(z).mean()) == float(task.objective(z))


def test_frozen_parameters_do_not_count_in_the_ridge_term() -> None:
    base = uneven()
    model = base.model
    next(iter(model.parameters())).requires_grad_(False)
    other = fl.Task(
        model, "cross_entropy", base.data, base.split, l2=0.3, noise=0.2, dtype=torch.float64
    )
    task = fl.problems.agnostic(other)
    z = task.start(0)[0]
    assert task.noise == 0.2
    objective = float(other.objective(z[task.players[0]]))
    assert float(task.objective(z)) == pytest.approx(objective, rel=1e-12)


def test_saddle_problems_that_make_no_sense_are_refused() -> None:
    data = (torch.randn(4, 2), torch.tensor([1.0, -1.0, 1.0, -1.0]))
    two = fl.Task(nn.Linear(2, 2), lambda o, y: o.sum(1), data, [range(4)])
    with pytest.raises(fl.FairleadError, match="one output"):
        fl.problems.auc_maximization(two)
    column = fl.Task(nn.Linear(2, 1), "squared", (data[0], data[1][:, None]), [range(4)])
    with pytest.raises(fl.FairleadError, match="one number per sample"):
        fl.problems.auc_maximization(column)
    for make in (fl.problems.agnostic, fl.problems.auc_maximization):
        with pytest.raises(fl.FairleadError, match="already a saddle problem"):
            make(fl.problems.quadratic_game())
    zero = torch.zeros(2)
    with pytest.raises(fl.FairleadError, match="sum to 0: on a simplex"):
        fl.SaddleTask.of(
            lambda x, y, a: (x * y).sum() * a, [torch.ones(1)], zero, zero, simplex=True
        )
    once = fl.Catalyst(fl.FedAvg(lr=0.1))
    with pytest.raises(fl.FairleadError, match="Catalyst cannot wrap another Catalyst"):
        fl.Catalyst(once)
    with pytest.raises(fl.FairleadError, match="does not support momentum"):
        fl.ExtraStep(lr=0.1, momentum=0.9)


def test_projection_of_large_and_lost_numbers() -> None:
    simplex = Simplex(slice(0, 3))
    assert simplex.project(torch.tensor([3e7, 1.0, 0.0])).tolist() == [1, 0, 0]
    assert simplex.project(torch.tensor([float("nan"), 1.0, 0.0])).isnan().any()
    run = fl.train(_distances(), fl.MirrorProx(lr=1e300), rounds=5, steps=1)
    assert run.stopped == "diverged"


def test_agnostic_of_a_task_with_a_known_optimum_compares() -> None:
    task = fl.problems.agnostic(fl.problems.random_quadratics(clients=3, dim=2))
    result = fl.compare(task, [fl.MirrorProx(lr=0.1)], rounds=2, steps=1)
    assert result.metric == "residual_norm"


def test_a_run_with_another_inner_method_is_not_resumed() -> None:
    task = fl.problems.quadratic_game()
    run = fl.train(task, fl.Catalyst(fl.ScaffoldS(lr=0.1)), rounds=2, steps=2)
    with pytest.raises(fl.FairleadError, match="method was method = "):
        fl.train(task, fl.Catalyst(fl.Scaffold(lr=0.1)), rounds=4, steps=2, resume=run)


def test_a_given_module_stays_the_users() -> None:
    mine = nn.Linear(2, 1)
    data = [torch.randn(4, 2, dtype=torch.float64)]

    def play(x: nn.Module, y: nn.Module, a: torch.Tensor) -> torch.Tensor:
        return (x(a) * y(a)).sum(1)

    fl.SaddleTask(mine, lambda: nn.Linear(2, 1), play, data, [range(4)], dtype=torch.float64)
    assert mine.weight.dtype == torch.float32
