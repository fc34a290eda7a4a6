"""Optimizers of clients: the steps of torch.optim, fresh or kept, and what they reduce to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import uneven

import fairlead as fl
from fairlead.gradients.oracle import Gradients
from fairlead.methods.local import LocalOptimizer

linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forks")
LR = 0.03
Factory = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
PAIRS: dict[str, tuple[LocalOptimizer, Factory]] = {
    "sgd": (
        fl.local.SGD(momentum=0.8, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, LR, momentum=0.8, weight_decay=0.1),
    ),
    "adam": (
        fl.local.Adam(beta1=0.8, beta2=0.95, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, LR, (0.8, 0.95), weight_decay=0.1),
    ),
    "adam-as-it-comes": (fl.local.Adam(), lambda p: torch.optim.Adam(p, LR)),
    "adamw": (
        fl.local.AdamW(weight_decay=0.2, eps=1e-6),
        lambda p: torch.optim.AdamW(p, LR, eps=1e-6, weight_decay=0.2),
    ),
    "adamw-as-it-comes": (fl.local.AdamW(), lambda p: torch.optim.AdamW(p, LR)),
    "rmsprop": (
        fl.local.RMSprop(alpha=0.9, momentum=0.5, weight_decay=0.1),
        lambda p: torch.optim.RMSprop(p, LR, alpha=0.9, momentum=0.5, weight_decay=0.1),
    ),
    "rmsprop-as-it-comes": (fl.local.RMSprop(), lambda p: torch.optim.RMSprop(p, LR)),
}


def problem() -> fl.Task:
    return fl.problems.random_quadratics(clients=3, dim=5, gradient=4.0, seed=1)


def by_torch(
    task: fl.Task,
    factory: Factory,
    rounds: list[list[int]],
    steps: list[int],
    keep: bool,
    clip: float | None = None,
) -> torch.Tensor:
    """FedAvg with a torch optimizer per client, kept between its rounds or made anew."""
    x, oracle = task.start(0)[0], Gradients(task)
    made: dict[int, tuple[torch.nn.Parameter, torch.optim.Optimizer]] = {}
    for cohort in rounds:
        ends = []
        for i in cohort:
            if i not in made or not keep:
                p = torch.nn.Parameter(x.clone())
                made[i] = p, factory([p])
            p, optimizer = made[i]
            p.data.copy_(x)
            for _ in range(steps[i]):
                p.grad = oracle.full_single(i, p.detach(), x[:0], 9)[0].clone()
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_([p], clip)
                optimizer.step()
            ends.append(p.detach().clone())
        x = torch.stack(ends).mean(0)
    return x


@pytest.mark.parametrize("name", PAIRS)
def test_each_step_is_that_of_torch(name: str) -> None:
    task, (own, factory) = problem(), PAIRS[name]
    for steps in range(1, 6):
        expected = by_torch(task, factory, [[0]], [steps], keep=False)
        run = fl.train(
            task, fl.FedAvg(LR, local=own), rounds=1, cohort=[[0]], steps=steps, engine="vmap"
        )
        torch.testing.assert_close(run.x, expected, rtol=0, atol=1e-13)
        assert not torch.equal(expected, task.start(0)[0])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "rmsprop"])
def test_state_is_fresh_per_round_or_kept_per_client(name: str, keep: bool) -> None:
    """Clients with different numbers of steps, one of which misses a round."""
    task, (own, factory) = problem(), PAIRS[name]
    own = type(own)(**{**own.__dict__, "keep": keep})
    rounds, steps = [[0, 1, 2], [0, 2], [0, 1, 2]], [2, 5, 3]
    expected = by_torch(task, factory, rounds, steps, keep)
    for engine in ("vmap", "loop", "debug", fl.Simulate("vmap", memory=1)):
        run = fl.train(
            task, fl.FedAvg(LR, local=own), rounds=3, cohort=rounds, steps=steps, engine=engine
        )
        torch.testing.assert_close(run.x, expected, rtol=0, atol=1e-12)
    other = by_torch(task, factory, rounds, steps, not keep)
    assert (other - expected).abs().max() > 1e-4
    if name == "adam" and keep:
        assert run.client_states().slots["t"].tolist() == [[6.0], [10.0], [9.0]]


def test_clipping_is_that_of_torch_and_comes_before_weight_decay() -> None:
    task, steps = problem(), [3, 3, 3]
    expected = by_torch(task, PAIRS["adam"][1], [[0, 1, 2]], steps, keep=False, clip=0.5)
    own = fl.local.Adam(beta1=0.8, beta2=0.95, weight_decay=0.1, clip=0.5)
    for engine in ("vmap", "loop"):
        run = fl.train(task, fl.FedAvg(LR, local=own), rounds=1, steps=3, engine=engine)
        torch.testing.assert_close(run.x, expected, rtol=0, atol=1e-13)
    free = by_torch(task, PAIRS["adam"][1], [[0, 1, 2]], steps, keep=False)
    assert (free - expected).abs().max() > 1e-4


def test_bias_correction_is_accurate_in_single_precision() -> None:
    """1 − 0.999^1 has three digits less than 0.999 if it is computed naively."""
    slots = fl.local.Adam().start(torch.zeros(3))
    d, _ = fl.local.Adam().turn(torch.tensor([1.0, -2.0, 1e-3]), slots)
    torch.testing.assert_close(d, torch.tensor([1.0, -1.0, 1 / (1 + 1e-5)]), rtol=3e-7, atol=0)


WORK: dict[str, Any] = {"rounds": 3, "cohort": 3, "batch_size": 4, "epochs": 2, "seed": 2}


def _same(one: fl.Algorithm, two: fl.Algorithm, atol: float = 0.0, task: Any = None) -> None:
    a, b = fl.train(uneven(), one, **WORK), fl.train(task or uneven(), two, **WORK)
    torch.testing.assert_close(a.x, b.x, rtol=0, atol=atol)


def test_plain_sgd_is_no_local_optimizer() -> None:
    _same(fl.FedAvg(0.2, local=fl.local.SGD()), fl.FedAvg(0.2))
    _same(fl.FedYogi(0.2, local=fl.local.SGD()), fl.FedYogi(0.2))
    _same(fl.FedDyn(0.2, local=fl.local.SGD()), fl.FedDyn(0.2))
    _same(fl.FedAvg(0.2, local=fl.local.SGD(0.9)), fl.FedAvg(0.2, momentum=0.9))
    kept = fl.local.SGD(0.9, keep=True)
    _same(fl.FedAvg(0.2, local=kept), fl.FedAvg(0.2, momentum=0.9, momentum_reset=False))


def test_adaptive_steps_that_do_not_adapt_are_sgd() -> None:
    """With a large ε, g/(|g| + ε) is g/ε."""
    eps = 1e6
    _same(fl.FedAvg(0.2 * eps, local=fl.local.Adam(0.0, 0.0, eps)), fl.FedAvg(0.2), 1e-5)
    _same(fl.FedAvg(0.2 * eps, local=fl.local.RMSprop(0.0, eps)), fl.FedAvg(0.2), 1e-5)
    own = fl.local.RMSprop(0.0, eps, momentum=0.9)
    _same(fl.FedAvg(0.2 * eps, local=own), fl.FedAvg(0.2, momentum=0.9), 1e-5)


def test_decay_of_zero_is_none_and_decay_of_sgd_is_the_tasks_own() -> None:
    _same(
        fl.FedAvg(0.02, local=fl.local.AdamW(weight_decay=0.0)),
        fl.FedAvg(0.02, local=fl.local.Adam()),
    )
    heavier = uneven().replace(l2=0.01 + 0.3)
    _same(fl.FedAvg(0.2, local=fl.local.SGD(weight_decay=0.3)), fl.FedAvg(0.2), 1e-14, task=heavier)
    _same(fl.FedAvg(0.2, local=fl.local.SGD(clip=1e6)), fl.FedAvg(0.2), 1e-14)


def test_fedpvr_has_the_optimizer_on_the_layers_it_does_not_correct() -> None:
    adam = fl.local.Adam(eps=1e-3)
    _same(fl.FedPVR(0.02, layers=0, local=adam), fl.FedAvg(0.02, local=adam), 1e-14)
    _same(fl.FedPVR(0.02, layers=-2, local=adam), fl.Scaffold(0.02), 1e-13)


def test_scaffold_with_option_i_and_an_optimizer() -> None:
    """By hand: the first round is that of FedAvg, as c = 0; then Adam's first step is lr·sign(g − c_i + c)."""
    adam = fl.local.Adam(eps=1e-3)
    scaffold = fl.Scaffold(0.02, option="I", local=adam)
    one, two = (
        fl.train(uneven(), m, **{**WORK, "rounds": 1})
        for m in (scaffold, fl.FedAvg(0.02, local=adam))
    )
    torch.testing.assert_close(one.x, two.x, rtol=0, atol=1e-14)
    _same(fl.Scaffold(0.2, option="I", local=fl.local.SGD()), fl.Scaffold(0.2, option="I"))
    # f_1 = (x − 4)²/2, f_2 = x²/2 from 3 (steps of 0.5): both meet at 3 with c_1 = −1, c_2 = 3, c = 1, so that both
    # directions are ∇f(3) = 1, although client 1 alone would go up
    task = fl.problems.quadratics([[[1.0]], [[1.0]]], [[4.0], [0.0]], [3.0])
    method = fl.Scaffold(0.5, option="I", warm_start=True, local=fl.local.Adam())
    run = fl.train(task, method, rounds=1, steps=1)
    assert run.x.item() == pytest.approx(2.5)
    plain = fl.train(task, fl.FedAvg(0.5, local=fl.local.Adam()), rounds=1, steps=1)
    assert plain.x.item() == pytest.approx(3.0)


def test_one_step_of_feddyn_with_adam_by_hand() -> None:
    """f = x²/2 from x = 2: Adam's first step is lr·sign(g), so y = 1.5, g_i = α/2, h = α/2, x = 1.5 − ½."""
    task = fl.problems.quadratics([[[1.0]]], [[0.0]], [2.0])
    run = fl.train(task, fl.FedDyn(0.5, alpha=0.1, local=fl.local.Adam()), rounds=1, steps=1)
    assert run.x.item() == pytest.approx(1.0)
    assert run.client_states().g.item() == pytest.approx(0.05)


@linux
def test_processes_have_the_state_of_their_clients() -> None:
    method = fl.FedProx(0.02, mu=0.1, local=fl.local.AdamW(eps=1e-3, clip=0.5, keep=True))
    alone = fl.train(uneven(), method, engine="debug", **WORK)
    for workers in (2, 3):
        run = fl.train(uneven(), method, workers=workers, **WORK)
        torch.testing.assert_close(run.x, alone.x, rtol=0, atol=1e-12)
        for name, t in run.client_states().tensors().items():
            torch.testing.assert_close(t, alone.client_states().tensors()[name], rtol=0, atol=1e-12)


ACCEPT = {
    "fedavg", "fedprox", "fedpaq", "fedpvr", "feddyn", "fedadagrad", "fedadam", "fedyogi", "fedexp", "dp-fedavg",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(fl.METHODS) - {"catalyst"}))
def test_methods_take_a_local_optimizer_or_say_why_not(name: str) -> None:
    if name in ACCEPT:
        assert fl.METHODS[name](lr=0.1, local=fl.local.Adam()).optimizer == fl.local.Adam()
        return
    with pytest.raises(fl.FairleadError, match=r"does not support local( with option II)?: .{20,}"):
        fl.METHODS[name](lr=0.1, local=fl.local.Adam())


def test_catalyst_has_that_of_its_inner_method() -> None:
    inner = fl.FedAvg(0.02, local=fl.local.Adam(eps=1e-3, keep=True))
    _same(fl.Catalyst(inner, theta=0.0), inner, 1e-13)


def test_wrong_settings_are_refused() -> None:
    for make, message in (
        (lambda: fl.FedAvg(0.1, local=torch.optim.Adam), "pass an optimizer such as fl.local.Adam"),
        (
            lambda: fl.FedAvg(0.1, local=fl.local.Adam(), momentum=0.9),
            "momentum and local are both",
        ),
        (lambda: fl.local.SGD(keep=True), "no state to keep"),
        (lambda: fl.local.Adam(beta2=1.0), "beta2 is 1.0: must be in"),
        (lambda: fl.local.Adam(eps=0.0), "eps is 0.0"),
        (lambda: fl.local.RMSprop(clip=-1.0), "clip is -1.0"),
        (lambda: fl.local.AdamW(weight_decay=-1.0), "weight_decay is -1.0"),
    ):
        with pytest.raises(fl.FairleadError, match=message):
            make()
    with pytest.raises(fl.FairleadError, match="call the client program `local_steps`"):

        class Old(fl.FedAvg):
            def local(self, client: Any, x: Any) -> Any: ...
