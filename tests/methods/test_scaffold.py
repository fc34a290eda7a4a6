"""SCAFFOLD: hand-computed steps, identities, invariants, and the known mistakes of others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import TOY_A, TOY_B, toy, uneven

import fairlead as fl
from fairlead.gradients.oracle import Gradients
from fairlead.methods.scaffold import Deltas, Kept

TOY_OPTIMUM = (TOY_A * TOY_B).sum() / TOY_A.sum()


def _variates(run: fl.Run) -> torch.Tensor:
    assert run.session.states.store is not None
    return run.client_states().c


def test_two_rounds_by_hand() -> None:
    """Two clients, f_1 = x²/2 and f_2 = (x − 4)², K = 2, η = ½, from x = 2."""
    task = fl.problems.quadratics([[[1.0]], [[2.0]]], [[0.0], [8.0]], [2.0])
    run = fl.train(task, fl.Scaffold(lr=0.5), rounds=1, steps=2)
    # client 1: 2 → 1 → ½; client 2: gradient 2(y − 4): 2 → 4 → 4. Mean of ½ and 4 is 2.25.
    assert run.x.item() == 2.25
    # c_i = (x − y)/(K·η): (2 − ½)/1 = 1.5 and (2 − 4)/1 = −2; c is their mean.
    assert _variates(run).flatten().tolist() == [1.5, -2.0]
    assert run.state.c.item() == -0.25
    run = fl.train(task, fl.Scaffold(lr=0.5), rounds=2, steps=2)
    # client 1: y ← y − ½(y − 1.5 − 0.25): 2.25 → 2 → 1.875
    # client 2: y ← y − ½(2y − 8 + 2 − 0.25): 2.25 → 3.125 → 3.125
    assert run.x.item() == (1.875 + 3.125) / 2
    # c_1 = 1.5 + 0.25 + (2.25 − 1.875), c_2 = −2 + 0.25 + (2.25 − 3.125)
    assert _variates(run).flatten().tolist() == [2.125, -2.625]
    assert run.state.c.item() == -0.25


def test_server_means_over_three_clients_by_hand() -> None:
    """One step of η = 1 from 0 on f_i = (x − b_i)²/2 lands every client on b_i."""
    task = fl.problems.quadratics(np.ones((3, 1, 1)), [[3.0], [6.0], [12.0]], [0.0])
    run = fl.train(task, fl.Scaffold(lr=1.0), rounds=1)
    assert run.x.item() == 7.0
    assert run.state.c.item() == -7.0


@pytest.mark.parametrize("engine", ["vmap", "loop", "debug"])
def test_toy_with_everyone_reaches_the_optimum(engine: str, device: str) -> None:
    settings = {"rounds": 100, "steps": 10, "engine": engine, "eval_every": 100}
    run = fl.train(toy(device=device), fl.Scaffold(lr=0.05), **settings)
    assert abs(run.x.item() - TOY_OPTIMUM) < 1e-12
    fedavg = fl.train(toy(device=device), fl.FedAvg(lr=0.05), **settings)
    assert 5e-3 < abs(fedavg.x.item() - TOY_OPTIMUM) < 1.2e-2


@pytest.mark.parametrize("option", ["I", "II"])
def test_toy_with_two_of_four_reaches_the_optimum(option: str) -> None:
    settings = {"rounds": 600, "steps": 10, "cohort": 2, "eval_every": 600}
    run = fl.train(toy(), fl.Scaffold(lr=0.05, option=option), **settings)
    assert abs(run.x.item() - TOY_OPTIMUM) < 1e-12
    fedavg = fl.train(toy(), fl.FedAvg(lr=0.05), **settings)
    assert abs(fedavg.x.item() - TOY_OPTIMUM) > 1e-2


def test_a_larger_server_step_has_the_same_fixed_point() -> None:
    run = fl.train(toy(), fl.Scaffold(lr=0.02, server_lr=2.0), rounds=600, steps=10, eval_every=600)
    assert abs(run.x.item() - TOY_OPTIMUM) < 1e-12


def test_fixed_point_is_the_optimum_of_the_weighted_objective() -> None:
    weights = [4.0, 1.0, 2.0, 3.0]
    run = fl.train(
        toy(),
        fl.Scaffold(lr=0.05),
        rounds=800,
        steps=10,
        cohort=3,
        weighting=weights,
        eval_every=800,
    )
    w = np.array(weights)
    assert abs(run.x.item() - (w * TOY_A * TOY_B).sum() / (w * TOY_A).sum()) < 1e-11


@pytest.mark.parametrize("weighting", ["uniform", "size"])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("option", ["I", "II"])
def test_c_is_the_mean_of_c_i_after_every_round(
    option: str, warm: bool, weighting: str, device: str
) -> None:
    """Under sampling, dropouts, uneven clients and a schedule."""
    task = uneven(device)
    method = fl.Scaffold(lr=fl.schedules.Exponential(0.3, 0.8), option=option, warm_start=warm)
    p = torch.tensor(task.client_weights(weighting), device=device)
    for rounds in range(1, 7):
        run = fl.train(
            task, method, rounds=rounds, cohort=3, dropout=0.3, batch_size=4, epochs=2,
            weighting=weighting, seed=5, objective=False,
        )  # fmt: skip
        torch.testing.assert_close(run.state.c, p @ _variates(run), rtol=0, atol=1e-14)
    assert run.counters.lost > 0


def test_one_step_makes_c_i_the_gradient_at_x() -> None:
    task = uneven()
    x = task.start(0)[0]
    run = fl.train(task, fl.Scaffold(lr=0.3), rounds=1)  # one step on all data
    for i in range(task.clients):
        g = Gradients(task).full_single(i, x, task.start(0)[1], limit=100)[0]
        torch.testing.assert_close(_variates(run)[i], g, rtol=0, atol=1e-14)


def test_option_1_keeps_the_gradient_at_the_rounds_starting_point() -> None:
    task = uneven()
    run = fl.train(task, fl.Scaffold(lr=0.3, option="I"), rounds=1, steps=4, batch_size=2)
    for i in range(task.clients):
        g = Gradients(task).full_single(i, task.start(0)[0], task.start(0)[1], limit=100)[0]
        torch.testing.assert_close(_variates(run)[i], g, rtol=0, atol=1e-14)


@dataclass(frozen=True)
class Watched(fl.Scaffold):
    """SCAFFOLD that also sums its gradients, weighted by the steps really applied."""

    def local_steps(self, client, x, c):
        y, c_i, total, weight = x, client.memory.c, torch.zeros_like(x), 0.0
        for step in client.steps(self.lr):
            g = step.grad(y)
            total, weight = total + step.lr * g, weight + step.lr
            y = y - step.lr * (g - c_i + c)
        c_new = c_i - c + (x - y) / client.moved
        torch.testing.assert_close(c_new, total / weight, rtol=1e-9, atol=1e-11)
        return Deltas(dy=y - x, dc=c_new - c_i), Kept(c=c_new, slots={})


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_uneven_clients_with_a_schedule_keep_the_step_weighted_mean_gradient(engine: str) -> None:
    rate = fl.schedules.Exponential(0.3, 0.9, per="step")
    fl.train(uneven(), Watched(lr=rate), rounds=3, batch_size=4, epochs=3, engine=engine)
    fl.train(
        uneven(), Watched(lr=rate), rounds=3, steps=[7, 1, 2, 5, 3], batch_size=4, engine=engine
    )


def test_control_variates_start_at_zero_and_late_joiners_too() -> None:
    task = uneven()
    cohorts = [[0, 1], [0, 1], [2, 3]]
    two = fl.train(task, fl.Scaffold(lr=0.3), rounds=2, steps=2, cohort=cohorts)
    assert not _variates(two)[2:].any()
    three = fl.train(task, fl.Scaffold(lr=0.3), rounds=3, steps=1, cohort=cohorts, batch_size=None)
    two = fl.train(task, fl.Scaffold(lr=0.3), rounds=2, steps=1, cohort=cohorts, batch_size=None)
    g = Gradients(task).full_single(2, two.x, task.start(0)[1], limit=100)[0]
    torch.testing.assert_close(_variates(three)[2], g, rtol=0, atol=1e-14)


def test_it_is_not_fedavg_when_clients_differ() -> None:
    settings = {"rounds": 2, "steps": 3, "batch_size": 4}
    a = fl.train(uneven(), fl.Scaffold(lr=0.3), **settings)
    b = fl.train(uneven(), fl.FedAvg(lr=0.3), **settings)
    assert (a.x - b.x).abs().max() > 1e-4
    assert _variates(a).abs().max() > 1e-3


def test_first_cold_round_is_fedavg() -> None:
    settings = {"rounds": 1, "epochs": 2, "batch_size": 4, "cohort": 3}
    a = fl.train(uneven(), fl.Scaffold(lr=0.3), **settings)
    b = fl.train(uneven(), fl.FedAvg(lr=0.3), **settings)
    torch.testing.assert_close(a.x, b.x, rtol=0, atol=1e-15)


def test_homogeneous_clients_make_it_fedavg() -> None:
    task = fl.problems.quadratics([[[2.0]]] * 3, [[1.0]] * 3, [5.0])
    a = fl.train(task, fl.Scaffold(lr=0.1), rounds=9, steps=4)
    b = fl.train(task, fl.FedAvg(lr=0.1), rounds=9, steps=4)
    torch.testing.assert_close(a.x, b.x, rtol=0, atol=1e-14)


def test_one_full_batch_step_with_everyone_is_gradient_descent() -> None:
    task = uneven()
    a = fl.train(task, fl.Scaffold(lr=0.3), rounds=6, steps=1)
    b = fl.train(task, fl.FedSGD(lr=0.3), rounds=6)
    torch.testing.assert_close(a.x, b.x, rtol=0, atol=1e-14)


def test_one_client_one_step_option_1_is_saga() -> None:
    task = toy(start=2.0)
    order = [0, 2, 1, 3, 3, 0, 2, 1, 0]
    run = fl.train(
        task, fl.Scaffold(lr=0.1, option="I"), rounds=len(order), cohort=[[i] for i in order]
    )
    x, table = 2.0, np.zeros(4)
    for i in order:
        g = TOY_A[i] * (x - TOY_B[i])
        x, table[i] = x - 0.1 * (g - table[i] + table.mean()), g
    assert abs(run.x.item() - x) < 1e-13


def test_warm_start_is_the_gradient_at_the_start() -> None:
    task = uneven()
    x, buffers = task.start(0)
    warm = fl.train(task, fl.Scaffold(lr=1e-9, warm_start=True), rounds=1, cohort=[[0]])
    for i in range(1, task.clients):
        g = Gradients(task).full_single(i, x, buffers, limit=100)[0]
        torch.testing.assert_close(_variates(warm)[i], g, rtol=0, atol=1e-14)
    assert warm.counters.exchanges == 2


def test_momentum_and_unknown_options_are_refused() -> None:
    with pytest.raises(fl.FairleadError, match="does not support momentum"):
        fl.Scaffold(lr=0.1, momentum=0.9)
    with pytest.raises(fl.FairleadError, match="no option"):
        fl.Scaffold(lr=0.1, option="III")


def test_control_variates_of_a_model_with_buffers_have_d_entries() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    )
    x, y = torch.randn(12, 3), torch.randint(2, (12,))
    task = fl.Task(model, "cross_entropy", (x, y), [range(6), range(6, 12)])
    run = fl.train(task, fl.Scaffold(lr=0.1), rounds=2, steps=2, batch_size=3)
    assert _variates(run).shape == (2, task.dim)
    assert task.dim == sum(p.numel() for p in model.parameters())


@pytest.mark.slow
def test_fig3_shape_of_the_paper() -> None:
    """000 §7.2: FedAvg slows down with K and with G; SCAFFOLD does not feel G."""

    def rounds(gradient: float, method: fl.Algorithm, steps: int, goal: float) -> float:
        task = fl.problems.theorem2(gradient=gradient)
        run = fl.train(task, method, rounds=200, steps=steps, target={"gap": goal})
        return run.rounds_to("gap", goal) or np.inf

    def fedavg(gradient: float, steps: int) -> float:
        return min(rounds(gradient, fl.FedAvg(lr=lr), steps, 1e-2) for lr in (0.1, 0.01, 0.003))

    sgd = rounds(1, fl.FedSGD(lr=0.1), 1, 1e-6)
    for steps, faster in ((2, 1.9), (10, 4.0)):
        scaffold = [
            rounds(g, fl.Scaffold(lr=0.1, warm_start=True), steps, 1e-6) for g in (1, 10, 100)
        ]
        assert max(scaffold) <= 1.2 * min(scaffold)
        assert sgd >= faster * max(scaffold)
    slow = {steps: [fedavg(g, steps) for g in (1, 10, 100)] for steps in (2, 10)}
    for few, many in zip(slow[2], slow[10], strict=True):
        assert few < many or few == many == np.inf
    assert slow[2][0] < slow[2][1] < slow[2][2]
    assert slow[10][0] < slow[10][1] < slow[10][2]
