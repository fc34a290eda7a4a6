"""The recipes on quadratics, games and the two-Gaussians toy: their recursions are what training computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli.main import app
from fairlead.study.reproduce import Form, Result, Results, recipe
from fairlead.study.reproduce.affine import Clients, best_of, first_rounds, gradient_descent
from fairlead.study.reproduce.experiments import (
    drift_picture,
    drift_toy,
    saddle_figures,
    saddle_rates,
    scaffold_privacy,
    scaffold_sampling,
    scaffold_theorems,
)


@pytest.mark.parametrize(
    "check",
    [
        scaffold_theorems.check_local_steps, scaffold_sampling.check_sampling, scaffold_sampling.saga,
        drift_toy.check, saddle_rates.check_rates, saddle_rates.check_random,
    ],
)  # fmt: skip
def test_recursions_are_what_training_computes(check: Callable[[], dict[str, float]]) -> None:
    assert max(check().values()) < 1e-12


def test_rounds_of_gradient_descent_are_those_of_a_hand_computed_factor() -> None:
    task = fl.problems.quadratics([[[1.0]], [[3.0]]], [[-1.0], [3.0]], [4.5])
    clients = Clients.of(task, sign=-1)
    assert clients.error(clients.start) == pytest.approx(16.0)  # ½·2·(4.5 − 0.5)²
    rounds = np.stack([gradient_descent(clients.maps, lr, 1) for lr in (0.25, 0.5, 2.0)])
    # the mean curvature is 2: steps multiply x − x* by ½, 0 and −3
    assert first_rounds(rounds, clients, clients.error, 1.0, 10) == [2, 1, math.inf]


def test_the_best_of_a_grid_at_its_edge_voids_the_verdict() -> None:
    assert best_of((0.1, 1.0, 10.0), (3, 2, 1)) == (2, True)

    def verdict(edge: bool) -> set[str]:
        numbers = {"tuned": 10.0, "theorem": 10.0, "lr": 1.0, "edge": edge}
        some = [
            Result({"delta": d, "K": K}, f"{d}{K}", numbers=numbers)
            for d in (0.0, 0.2)
            for K in scaffold_theorems.LOCAL
        ]
        claims = recipe("scaffold-kstar").conclude(Form(), Results(some)).claims
        return {c.verdict for c in claims if c.text.startswith("[tuned]")}

    assert verdict(edge=True) == {"open"}
    assert "open" not in verdict(edge=False)


def test_without_hessian_dissimilarity_k_local_steps_are_k_rounds() -> None:
    one, ten = (scaffold_theorems.local_steps(0.0, K, (0.5, 1.0, 1.5), 1e-4, 1000) for K in (1, 10))
    assert ten["tuned"] == math.ceil(one["tuned"] / 10)


def test_the_constant_of_the_lower_bound_is_that_of_direct_search() -> None:
    """K = 2, μ = 1: x⁺ = x(1 + (1 − 2η)²)/2 + η²G, minimal at η = x/(2x + G)."""
    found = scaffold_theorems.lower(gradient=10.0, steps=2, rounds=100)
    x = 1.0
    for _ in range(100):
        lr = x / (2 * x + 10)
        x = x * (1 + (1 - 2 * lr) ** 2) / 2 + lr**2 * 10
    assert found["scaled"][-1] == pytest.approx(x**2 / 2 * 100**2 / 10**2, rel=1e-5)
    assert found["last step"] == pytest.approx(x / (2 * x + 10), rel=0.05)


def test_masks_change_gradients_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    a, y = rng.normal(size=(60, 4)), np.where(rng.random(60) < 0.5, -1.0, 1.0)
    plain, masked = (scaffold_privacy.masked(a, y, norm) for norm in (0.0, 10.0))
    b = torch.tensor(scaffold_privacy.masks(10.0, 4))
    assert float(b.square().sum(1).mean()) == pytest.approx(100)
    x = torch.tensor([0.3, -1.0, 0.5, 2.0], dtype=torch.float64)
    assert float(plain.objective(x)) == pytest.approx(float(masked.objective(x)), abs=1e-12)
    moved = masked.client_losses(x) - plain.client_losses(x)
    torch.testing.assert_close(moved, b @ x, rtol=0, atol=1e-12)
    torch.testing.assert_close(plain.optimum, masked.optimum, rtol=0, atol=0)
    ends = [
        fl.train(task, fl.Scaffold(0.3, warm_start=True), rounds=5, steps=5).x
        for task in (plain, masked)
    ]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)
    away = fl.train(masked, fl.FedAvg(0.3), rounds=5, steps=5).x
    assert float((away - ends[0]).norm()) > 1e-2


def test_the_picture_shows_where_fedavg_and_scaffold_go(tmp_path: Path) -> None:
    p = drift_picture
    made = {
        name: p.paths(method, p.START, p.STEPS, p.HESSIANS, p.OPTIMA)
        for name, method in p.METHODS.items()
    }
    curvature = np.stack([np.diag(h) for h in p.HESSIANS])
    pull = 1 - (1 - p.LR * curvature) ** p.STEPS  # of K steps towards a client's optimum
    np.testing.assert_allclose(
        made["FedAvg"]["end"], (pull * p.OPTIMA).sum(0) / pull.sum(0), rtol=1e-9
    )
    np.testing.assert_allclose(made["SCAFFOLD"]["end"], made["SCAFFOLD"]["optimum"], rtol=1e-9)
    first, second = made["SCAFFOLD"]["rounds"][0]["clients"]
    np.testing.assert_allclose(first[1], second[1], rtol=1e-12)  # both along the mean gradient
    for r in made["FedAvg"]["rounds"]:
        ends = np.mean([way[-1] for way in r["clients"]], 0)
        np.testing.assert_allclose(r["server"][1], ends, rtol=1e-12)
    done = Results([Result({"method": k}, k, numbers=n) for k, n in made.items()])
    files = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for file in files:
        p.draw(done, file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "optimum of client 2" in files[0].read_text(encoding="utf-8")


def test_slopes_of_the_toy_are_those_of_its_loss() -> None:
    task = drift_toy.problem(seed=1)
    toy = drift_toy.Toy(task)
    bias = torch.tensor([0.4], dtype=torch.float64)
    step = 1e-5
    numeric = (task.client_losses(bias + step) - task.client_losses(bias - step)) / (2 * step)
    np.testing.assert_allclose(toy.slopes(np.full(20, 0.4)), numeric.numpy(), atol=1e-9)
    assert toy.loss(0.4) == pytest.approx(float(task.objective(bias)), abs=1e-12)
    assert abs(float(toy.slope(toy.optimum)[0])) < 1e-8
    assert toy.test_loss(0.4) == pytest.approx(task.evaluate(bias)["test_loss"], abs=1e-9)
    assert drift_toy.settled([1.0, 0.5, 0.52, 0.5]) == 1


def test_bounded_heterogeneity_does_not_move_the_mean_of_affine_clients() -> None:
    def rounds(zeta: float, delta: float) -> float:
        settings = ("random", 5.0, zeta, delta, "FedAvg-S", 5, 1e-4, (1,))
        return saddle_rates.to_goal(*settings)["rounds"]

    assert rounds(0.0, 0.0) == rounds(100.0, 0.0) < math.inf
    assert rounds(0.0, 0.1) < math.inf
    assert rounds(100.0, 0.1) == math.inf


def test_slopes_of_rounds_over_condition_numbers() -> None:
    assert saddle_rates.slope({k: 7 * k**2 for k in (2.0, 10.0, 100.0)}) == pytest.approx(2.0)
    hard = [
        saddle_rates.to_goal("bilinear", k, 10.0, 0.0, "mirror descent", 5, 1e-4, ())["rounds"]
        for k in (10.0, 20.0)
    ]
    assert hard[1] / hard[0] == pytest.approx(4, rel=0.1)


@pytest.mark.slow
def test_two_calls_from_nothing_give_the_same_tables(tmp_path: Path) -> None:
    call = partial(CliRunner().invoke, app)
    for folder in ("one", "two"):
        names = ["scaffold-fig3", "drift-toy", "--quick", "--out", str(tmp_path / folder)]
        assert call(["reproduce", *names]).exit_code == 0
    for name in ("scaffold-fig3", "drift-toy"):
        one, two = (tmp_path / k / name / "quick" / "table.md" for k in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
        assert len(one.read_text(encoding="utf-8").splitlines()) > 10


@pytest.mark.parametrize(
    ("first", "last", "verdict"),
    [
        (100, 250, "holds"), (100, 300, "does not hold"), (100, math.inf, "does not hold"),
        (math.inf, 300, "holds"), (math.inf, math.inf, "open"),
    ],
)  # fmt: skip
def test_a_method_keeps_its_pace_if_it_needs_no_more_rounds_than_thrice(
    first: float, last: float, verdict: str
) -> None:
    rounds = {"SCAFFOLD-Catalyst-S": {0.0: first, 5.0: 7.0, 15.0: last}}
    assert saddle_figures._claims("regression", rounds)[0].verdict == verdict
