"""Saddle points: the mapping, fixed points, identities, the paper's problem."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import fairlead as fl
from fairlead.gradients.oracle import Gradients
from fairlead.study.reproduce.case import Result, Results
from fairlead.study.reproduce.experiments import saddle_figures as figures

FAR = {"rounds": 400, "steps": 5, "eval_every": 400}


def _game(**settings) -> fl.SaddleTask:
    return fl.problems.quadratic_game(clients=6, dim=3, **settings)


def _random(task: fl.SaddleTask, seed: int = 0) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=task.dim))


def test_the_mapping_turns_the_sign_where_f_is_maximized(device: str) -> None:
    task = _game(device=device)
    z = _random(task).to(device)
    m, v = task.data
    ids = np.arange(task.clients)
    found = Gradients(task).full_stacked(ids, z, z.new_zeros(len(ids), 0), 100)[0]
    torch.testing.assert_close(found, m @ z + v, rtol=0, atol=1e-12)
    torch.testing.assert_close(task.mapping(z), found.mean(0), rtol=0, atol=1e-12)


def test_the_quadratic_game_has_the_constants_asked_for() -> None:
    task = _game(mu=0.3, beta=2.0, zeta=3.0, delta=0.4)
    m, v = task.data
    g = m @ task.optimum + v
    assert g.mean(0).norm() < 1e-12
    assert g.norm(dim=1).max().item() == pytest.approx(3.0)
    mean = m.mean(0)
    assert torch.linalg.eigvalsh(mean[:3, :3])[0].item() == pytest.approx(0.3)
    assert torch.linalg.eigvalsh(mean[3:, 3:])[-1].item() == pytest.approx(2.0)
    assert torch.linalg.matrix_norm(mean[:3, 3:], 2).item() == pytest.approx(2.0)
    apart = torch.linalg.matrix_norm((m - mean)[:, :3, 3:], 2).max().item()
    assert apart == pytest.approx(0.4)


@pytest.mark.parametrize("make", [fl.problems.quadratic_game, fl.problems.bilinear_game])
def test_the_pairwise_zeta_is_the_papers(make) -> None:
    """Definition 6 bounds ‖G_i(z) − G_j(z)‖; for δ = 0 it is the same at every z."""
    task = make(clients=6, dim=3, zeta=3.0, delta=0.0, pairwise=True)
    m, v = task.data
    for z in (task.optimum, _random(task)):
        g = m @ z + v
        assert torch.cdist(g, g).max().item() == pytest.approx(3.0)
    plain = make(clients=6, dim=3, zeta=3.0, delta=0.0)
    g = plain.data[0] @ plain.optimum + plain.data[1]
    assert torch.cdist(g, g).max().item() > 3.5


@pytest.mark.parametrize("scaling", ["printed", "regression"])
def test_the_papers_problem_is_17_and_18(scaling: str) -> None:
    task = fl.problems.saddle_regression(s=3.0, clients=4, dim=2, lam=0.1, scaling=scaling)
    a, b = task.data
    assert a.min() >= 1
    assert b.mean(0).abs().max() < 1e-12
    z = _random(task)
    x, y = z[:2], z[2:]
    c = 0.5 if scaling == "printed" else 1.0
    found = Gradients(task).full_stacked(np.arange(4), z, z.new_zeros(4, 0), 9)[0]
    expected = torch.cat([0.1 * x - c * a * y, y - c * b + c * a * x], 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "method",
    [
        fl.MirrorDescent(lr=0.25),
        fl.MirrorProx(lr=0.4),
        fl.ScaffoldS(lr=0.1),
        fl.Catalyst(fl.ScaffoldS(lr=0.1), theta=0.5),
        fl.Scaffold(lr=0.1),
    ],
    ids=lambda m: type(m).__name__,
)
def test_fixed_points_are_the_saddle_point(method: fl.Algorithm) -> None:
    run = fl.train(_game(), method, **FAR)
    assert run.history.last("distance") < 1e-10
    assert abs(run.history.last("gap")) < 1e-10
    assert run.history.last("residual_norm") < 1e-9


@pytest.mark.parametrize("method", [fl.FedAvg(lr=0.1), fl.ExtraStep(lr=0.1)])
def test_uncorrected_local_steps_end_elsewhere(method: fl.Algorithm) -> None:
    assert fl.train(_game(), method, **FAR).history.last("distance") > 1e-3


def test_identities() -> None:
    task = _game()

    def same(a: fl.Algorithm, b: fl.Algorithm, **more) -> None:
        one, two = (fl.train(task, m, **{"rounds": 6, "steps": 4, **more}).x for m in (a, b))
        torch.testing.assert_close(one, two, rtol=0, atol=1e-13)
        assert one.abs().max() > 1e-2

    same(fl.Catalyst(fl.ScaffoldS(lr=0.1), theta=0.0), fl.ScaffoldS(lr=0.1))
    same(fl.FedAvg(lr=0.1), fl.MirrorDescent(lr=0.1), steps=1)
    same(fl.ExtraStep(lr=0.1), fl.MirrorProx(lr=0.1), steps=1, cohort=[[2]] * 6)
    same(fl.MirrorDescent(lr=0.4), fl.MirrorDescent(lr=0.1, total=True))
    same(fl.ScaffoldS(lr=0.1), fl.Mime(lr=0.1, beta=0.0), cohort=3)


def test_one_exact_inner_solve_is_the_proximal_point() -> None:
    """z⁺ solves G(z⁺) + θ(z⁺ − z̄) = 0: (M + θI) z⁺ = θ z̄ − v."""
    task, theta = _game(), 0.7
    method = fl.Catalyst(fl.ScaffoldS(lr=0.1), theta=theta, inner_rounds=200)
    run = fl.train(task, method, rounds=400, steps=5, eval_every=400)
    m, v = (t.mean(0) for t in task.data)
    z = torch.zeros(task.dim, dtype=torch.float64)
    for _ in range(2):
        z = torch.linalg.solve(m + theta * torch.eye(task.dim, dtype=m.dtype), theta * z - v)
    torch.testing.assert_close(run.x, z, rtol=0, atol=1e-10)


def test_catalyst_around_scaffold_minimizes() -> None:
    task = fl.problems.random_quadratics(clients=5, dim=4, mu=0.2, gradient=5.0)
    for extrapolation in (0.0, 0.5):
        method = fl.Catalyst(fl.Scaffold(lr=0.2), 0.2, 5, extrapolation)
        assert (
            fl.train(task, method, rounds=600, steps=5, eval_every=600).history.last("distance")
            < 1e-9
        )


def test_exchanges_are_counted() -> None:
    task = _game()
    counts = {m: fl.train(task, m, rounds=3, steps=2).counters.exchanges
              for m in (fl.MirrorDescent(lr=0.1), fl.MirrorProx(lr=0.1), fl.ScaffoldS(lr=0.1))}  # fmt: skip
    assert list(counts.values()) == [3, 6, 6]


def test_random_synchronization_takes_one_over_p_steps_on_average() -> None:
    task = _game()
    run = fl.train(task, fl.ScaffoldS(lr=0.1), rounds=400, steps=fl.Geometric(0.2), eval_every=400)
    assert run.history.last("distance") < 1e-10
    assert run.counters.steps / 400 == pytest.approx(5, abs=5 * np.sqrt(20 / 400))


def test_round_lengths_are_geometric_and_shared_by_the_clients() -> None:
    """A χ² test of 1 − Σ over {1, …, 6, more} with p = ¼; 22.46 is its 0.1 % point for 6 degrees."""
    table = [fl.Batches(steps=fl.Geometric(0.25)).draw(seed=7, round=k, ids=np.arange(3),
             n=np.array([4, 9, 2])).steps for k in range(2000)]  # fmt: skip
    lengths = np.array(table)
    assert (lengths == lengths[:, :1]).all()
    seen = np.bincount(np.minimum(lengths[:, 0], 7), minlength=8)[1:]
    chance = np.r_[0.25 * 0.75 ** np.arange(6), 0.75**6]
    assert ((seen - 2000 * chance) ** 2 / (2000 * chance)).sum() < 22.46


@pytest.mark.slow
def test_one_round_of_random_synchronization_has_the_expectation_of_its_lengths() -> None:
    """SCAFFOLD-S on a linear mapping: after k steps client i is at T_i^k z + …, so the mean over seeds
    must be Σ_k p(1 − p)^(k−1)·(the deterministic round with k steps)."""
    task, p = _game(), 0.4
    one = {"rounds": 1, "objective": False}
    after = {k: fl.train(task, fl.ScaffoldS(lr=0.1), steps=k, **one).x for k in range(1, 25)}
    expected = sum(p * (1 - p) ** (k - 1) * x for k, x in after.items())
    spread = sum(p * (1 - p) ** (k - 1) * (x - expected).square() for k, x in after.items()).sqrt()
    seeds = 300
    runs = [fl.train(task, fl.ScaffoldS(lr=0.1), steps=fl.Geometric(p), seed=s, **one).x
            for s in range(seeds)]  # fmt: skip
    error = (torch.stack(runs).mean(0) - expected).abs()
    assert (error < 4.5 * spread / np.sqrt(seeds)).all()


@pytest.mark.slow
def test_random_and_deterministic_synchronization_need_alike_many_rounds() -> None:
    """p = 1/τ: the rounds to 1e-6, and with them exchanges and bits, agree within a third on the mean
    of ten seeds; both count two exchanges and the same bits a round."""
    task, goal = _game(), {"distance": 1e-6}
    settings = {"rounds": 300, "target": goal, "objective": False}
    fixed = fl.train(task, fl.ScaffoldS(lr=0.1), steps=5, **settings)
    drawn = [fl.train(task, fl.ScaffoldS(lr=0.1), steps=fl.Geometric(0.2), seed=s, **settings)
             for s in range(10)]  # fmt: skip
    for run in (fixed, *drawn):
        assert run.stopped == "target"
        assert run.counters.exchanges == 2 * run.rounds
        assert run.history.last("bits") * fixed.rounds == fixed.history.last("bits") * run.rounds
    mean = np.mean([run.rounds for run in drawn])
    assert 0.75 < mean / fixed.rounds < 1.34


def test_two_modules_play_on_client_data() -> None:
    """min over a linear model, max over a bounded shift of its inputs: adversarial regression."""
    rng = np.random.default_rng(0)
    data = [torch.tensor(rng.normal(size=(30, 3))), torch.tensor(rng.normal(size=(30, 1)))]

    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.s = nn.Parameter(torch.zeros(3))

    def play(model: nn.Module, shift: Shift, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        error = (model(x + shift.s) - y).square().sum(1) / 2
        weight = sum((p**2).sum() for p in model.parameters())
        return error + 0.1 * weight - 2 * (shift.s**2).sum()

    task = fl.SaddleTask(
        nn.Linear(3, 1), Shift(), play, data, [range(10), range(10, 30)], dtype=torch.float64
    )
    runs = [fl.train(task, fl.ScaffoldS(lr=0.05), rounds=150, steps=3, batch_size=None, engine=e)
            for e in ("vmap", "loop")]  # fmt: skip
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=0, atol=1e-10)
    assert runs[0].history.last("residual_norm") < 1e-5
    with pytest.raises(fl.FairleadError, match="both x and y"):
        fl.SaddleTask(
            nn.Flatten(), Shift(), lambda x, y, a, b: a.sum(1) + y.s.sum(), data, [range(30)]
        )


@pytest.mark.slow
def test_only_catalyst_keeps_its_pace_as_heterogeneity_grows() -> None:
    """The figures of the paper in numbers: communication rounds to ‖x‖ ≤ 1e-6, best of the paper's
    step sizes, 5 and 10 inner rounds and sufficient decrease."""

    def rounds(s: float, make: Callable[[float], fl.Algorithm]) -> float:
        tried = []
        for lr in figures.GRID:
            case = figures.case("", make, s, "regression", 0, lr)
            run = fl.train(case.task(), case.method, progress=False, **case.settings)
            tried.append(Result.of(case, run, {"x_distance": (1e-6,)}, (), lasting=True))
        return figures.best(Results(tried)).cost("x_distance", 1e-6, "communications")

    def catalyst(lr: float, **settings) -> fl.Algorithm:
        return fl.Catalyst(fl.ScaffoldS(lr), theta=1.0, **settings)

    for inner in ({"inner_rounds": 5}, {"inner_rounds": 10}, {"inner_rounds": 50, "decrease": 0.5}):
        make = partial(catalyst, **inner)
        assert rounds(15, make) < 3 * rounds(0, make) < np.inf
    assert rounds(15, lambda lr: fl.ScaffoldS(lr)) == np.inf
    assert rounds(15, lambda lr: fl.MirrorProx(lr)) == np.inf
