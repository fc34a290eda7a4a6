"""FedSGD, minibatch SGD, FedAvg, FedProx and the server's step."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from conftest import toy, uneven

import fairlead as fl
from fairlead.gradients.oracle import Gradients

SETTINGS = {"rounds": 4, "batch_size": 4, "epochs": 2, "cohort": 3, "seed": 2}


def test_one_round_by_hand() -> None:
    """f_1 = x²/2 and f_2 = (x − 4)², K = 2, η = ½, from x = 2: clients end at ½ and at 4."""
    task = fl.problems.quadratics([[[1.0]], [[2.0]]], [[0.0], [8.0]], [2.0])
    assert fl.train(task, fl.FedAvg(lr=0.5), rounds=1, steps=2).x.item() == 2.25
    assert fl.train(task, fl.FedAvg(lr=0.5, server_lr=2.0), rounds=1, steps=2).x.item() == 2.5
    weighted = fl.train(task, fl.FedAvg(lr=0.5), rounds=1, steps=2, weighting=[3.0, 1.0])
    assert weighted.x.item() == 2 + 0.75 * (0.5 - 2) + 0.25 * (4 - 2)


def test_fedprox_by_hand() -> None:
    """The second step's direction is ∇f(y) + μ(y − x): client 1 goes 2 → 1 → 1 − ½(1 − 1)."""
    task = fl.problems.quadratics([[[1.0]], [[2.0]]], [[0.0], [8.0]], [2.0])
    run = fl.train(task, fl.FedProx(lr=0.5, mu=1.0), rounds=1, steps=2)
    # client 2: 2 → 4 → 4 − ½(0 + (4 − 2)) = 3
    assert run.x.item() == (1.0 + 3.0) / 2


def test_fedprox_without_a_term_is_fedavg_bitwise() -> None:
    a = fl.train(uneven(), fl.FedProx(lr=0.2, mu=0.0), **SETTINGS)
    b = fl.train(uneven(), fl.FedAvg(lr=0.2), **SETTINGS)
    assert torch.equal(a.x, b.x)


def test_fedprox_with_a_large_term_stays_and_two_terms_differ() -> None:
    task = toy(start=1.0)
    held = fl.train(task, fl.FedProx(lr=1e-6, mu=1e5), rounds=1, steps=300)
    free = fl.train(task, fl.FedAvg(lr=1e-6), rounds=1, steps=300)
    assert abs(held.x.item() - 1.0) < 0.05 * abs(free.x.item() - 1.0)
    one, two = (fl.train(uneven(), fl.FedProx(lr=0.2, mu=mu), **SETTINGS) for mu in (0.1, 1.0))
    assert (one.x - two.x).abs().max() > 1e-4


def test_fedavg_with_one_full_batch_step_is_fedsgd() -> None:
    a = fl.train(uneven(), fl.FedAvg(lr=0.2), rounds=5, steps=1)
    b = fl.train(uneven(), fl.FedSGD(lr=0.2), rounds=5)
    torch.testing.assert_close(a.x, b.x, rtol=0, atol=1e-14)


def test_fedsgd_is_gradient_descent_on_the_weighted_objective() -> None:
    task = uneven()
    for weighting in ("uniform", "size"):
        run = fl.train(task, fl.FedSGD(lr=0.3), rounds=3, weighting=weighting)
        x = task.start(0)[0]
        for _ in range(3):
            x = x.detach().requires_grad_()
            (g,) = torch.autograd.grad(task.objective(x, weighting), x)
            x = x.detach() - 0.3 * g
        torch.testing.assert_close(run.x, x, rtol=0, atol=1e-14)


def test_minibatch_sgd_means_its_batches_all_at_x() -> None:
    task = uneven()
    run = fl.train(task, fl.MinibatchSGD(lr=0.3), rounds=1, batch_size=4, epochs=1, cohort=[[0]])
    ids, n = np.array([0]), task.sizes[:1]
    draw = fl.Batches(batch_size=4, epochs=1).draw(0, 0, ids, n)
    x, buffers = task.start(0)
    grads = []
    for k in range(int(draw.steps[0])):
        block = tuple(t[0] for t in task.samples(torch.tensor([0]), draw.of(0, k)[None]))
        grads.append(Gradients(task).plain(x, block, buffers)[0] + task.l2 * x)
    assert len(grads) == 2
    torch.testing.assert_close(run.x, x - 0.3 * torch.stack(grads).mean(0), rtol=0, atol=1e-14)


def test_minibatch_sgd_with_whole_batches_is_fedsgd() -> None:
    a = fl.train(uneven(), fl.MinibatchSGD(lr=0.3), rounds=4, steps=3)
    b = fl.train(uneven(), fl.FedSGD(lr=0.3), rounds=4)
    torch.testing.assert_close(a.x, b.x, rtol=0, atol=1e-14)


def test_plain_server_sgd_is_the_built_in_step_bitwise() -> None:
    a = fl.train(uneven(), fl.FedAvg(lr=0.2, server=partial(torch.optim.SGD, lr=1.0)), **SETTINGS)
    b = fl.train(uneven(), fl.FedAvg(lr=0.2), **SETTINGS)
    assert torch.equal(a.x, b.x)


def test_server_momentum_is_the_pytorch_form() -> None:
    """v ← m·v + Δ, x ← x + v: no factor 1 − m."""
    task = fl.problems.quadratics([[[1.0]]], [[0.0]], [1.0])
    method = fl.FedAvg(lr=0.5, server=partial(torch.optim.SGD, lr=1.0, momentum=0.5))
    run = fl.train(task, method, rounds=3)
    x, v = 1.0, 0.0
    for _ in range(3):
        v = 0.5 * v - 0.5 * x
        x = x + v
    assert run.x.item() == x


def test_server_adam_keeps_its_state_between_rounds() -> None:
    task = toy(start=3.0)
    run = fl.train(task, fl.FedAvg(lr=0.05, server=partial(torch.optim.Adam, lr=0.3)), rounds=4)
    p = torch.nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
    adam = torch.optim.Adam([p], lr=0.3)
    for _ in range(4):
        x = p.detach()
        mean = torch.stack([Gradients(task).full_single(i, x, x[:0], 9)[0] for i in range(4)]).mean(
            0
        )
        p.grad = 0.05 * mean
        adam.step()
    torch.testing.assert_close(run.x, p.detach(), rtol=0, atol=1e-14)
    assert {"slots/exp_avg", "slots/exp_avg_sq", "slots/step"} <= set(run.state.tensors())


def test_contradictions_are_refused() -> None:
    with pytest.raises(fl.FairleadError, match="server and server_lr are both given"):
        fl.FedAvg(lr=0.1, server_lr=0.5, server=torch.optim.SGD)
    with pytest.raises(fl.FairleadError, match="mu is -1"):
        fl.FedProx(lr=0.1, mu=-1)
