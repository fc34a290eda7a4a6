"""The saddle-point methods against the plain reference, on everything that makes runs uneven.

Readings where the texts leave one open:
- both mappings of an extragradient step, on a client or over all clients, take the same batches;
- mirror descent and mirror-prox weigh each of a round's mappings by the step size of its own step;
- a client with fewer steps than others averages or sums its own mappings;
- steps over all rounds count the longest answering client of a round, and none if nobody answers;
- the exact G(z̃) of SCAFFOLD-S is the mean over the clients that answer, by the run's weights;
- Catalyst counts rounds in which somebody answers; neither schedules nor control variates restart;
- extrapolation moves the centre only: the next inner round starts where the last one ended.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import reference_saddle as ref
import torch
from test_reference import close, one_thread, problem
from torch import Tensor

import fairlead as fl

__all__ = ["one_thread"]  # a fixture, for this module too

N, ROUNDS, M, D, THETA = 6, 7, 3, 2, 0.7
RATES: list[tuple[fl.schedules.Rate, Callable[[int], float], bool]] = [
    (0.1, lambda k: 0.1, False),
    (fl.schedules.Exponential(0.15, 0.8), lambda k: 0.15 * 0.8**k, False),
    (fl.schedules.SqrtDecay(0.3, per="step"), lambda k: 0.3 / (math.sqrt(k) + 1), True),
]
SERVER = fl.schedules.Exponential(1.3, 0.9)


def plain(method: ref.Method) -> Callable[[ref.Vector, ref.Plan], ref.Vector]:
    return lambda z, plan: ref.run(z, plan, method)


def held(method: ref.Method, *settings: Any) -> Callable[[ref.Vector, ref.Plan], ref.Vector]:
    return lambda z, plan: ref.catalyst(z, plan, method, *settings)


def scaffold(z: ref.Vector, plan: ref.Plan) -> ref.Vector:
    return ref.run(z, plan, ref.Scaffold(N, len(z)))


def held_scaffold(z: ref.Vector, plan: ref.Plan, extrapolation: float) -> ref.Vector:
    method = ref.Scaffold(len(plan.clients), len(z))
    return ref.catalyst(z, plan, method, THETA, 2, extrapolation)


METHODS: dict[str, tuple[Callable[[fl.schedules.Rate], fl.Algorithm], Callable]] = {
    "mirror-descent": (fl.MirrorDescent, plain(ref.mirror_descent)),
    "mirror-descent-total": (
        lambda lr: fl.MirrorDescent(lr, total=True),
        plain(partial(ref.mirror_descent, total=True)),
    ),
    "mirror-prox": (fl.MirrorProx, plain(ref.mirror_prox)),
    "mirror-prox-total": (
        lambda lr: fl.MirrorProx(lr, total=True),
        plain(partial(ref.mirror_prox, total=True)),
    ),
    "fedavg-s": (fl.FedAvg, plain(ref.fedavg_s)),
    "extra-step": (fl.ExtraStep, plain(ref.extra_step)),
    "scaffold-s": (fl.ScaffoldS, plain(ref.scaffold_s)),
    "scaffold-s-server": (
        lambda lr: fl.ScaffoldS(lr, server_lr=SERVER),
        lambda z, plan: ref.run(z, replace(plan, server_lr=lambda r: 1.3 * 0.9**r), ref.scaffold_s),
    ),
    "scaffold": (fl.Scaffold, scaffold),
    "catalyst-s": (
        lambda lr: fl.Catalyst(fl.ScaffoldS(lr), THETA, 3),
        held(ref.scaffold_s, THETA, 3),
    ),
    "catalyst-s-extrapolated": (
        lambda lr: fl.Catalyst(fl.ScaffoldS(lr), THETA, 1, 0.4),
        held(ref.scaffold_s, THETA, 1, 0.4),
    ),
    "catalyst-fedavg": (
        lambda lr: fl.Catalyst(fl.FedAvg(lr), THETA, 2),
        held(ref.fedavg_s, THETA, 2),
    ),
    "catalyst-scaffold": (
        lambda lr: fl.Catalyst(fl.Scaffold(lr), THETA, 2),
        partial(held_scaffold, extrapolation=0.0),
    ),
    "catalyst-scaffold-extrapolated": (
        lambda lr: fl.Catalyst(fl.Scaffold(lr), THETA, 2, 0.4),
        partial(held_scaffold, extrapolation=0.4),
    ),
}


def value(x: Tensor, y: Tensor, a: Tensor, b: Tensor, c: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """The game of the reference, on one sample."""
    quadratic = x @ a @ x / 2 + x @ b @ y - y @ c @ y / 2
    return quadratic + p @ x - q @ y + torch.sin(p @ x + q @ y)


def game(rng: np.random.Generator) -> tuple[fl.SaddleTask, list[ref.Game], ref.Vector]:
    """A task, the same clients in numpy, and the start: 1 to 7 samples a client, out of order."""
    sizes = rng.integers(2, 8, N)
    sizes[rng.integers(N)] = 1
    total = int(sizes.sum())
    owners = np.split(rng.permutation(total), np.cumsum(sizes)[:-1])
    shapes = [(M, M), (M, D), (D, D), (M,), (D,)]
    data = [rng.normal(scale=0.5, size=(total, *shape)) for shape in shapes]
    data[0] += np.eye(M)
    data[2] += np.eye(D)
    x, y = rng.normal(size=M), rng.normal(size=D)
    tensors, owned = [torch.from_numpy(t) for t in data], [own.tolist() for own in owners]
    task = fl.SaddleTask.of(value, tensors, torch.from_numpy(x), torch.from_numpy(y), clients=owned)
    clients = [ref.Game(*(t[own] for t in data)) for own in owners]
    return task, clients, np.concatenate([x, y])


def plan_of(clients: Sequence[ref.Oracle], rng: np.random.Generator, seed: int) -> ref.Plan:
    """Random cohorts, losses and batches. In one round nobody answers, in one everybody does.

    Seeds take turns at step sizes, at weights, and at steps: with odd ones all clients of a round
    take equally many, as in random synchronization. Otherwise those that are lost would take most.
    """
    n = len(clients)
    cohorts = [rng.permutation(n)[: rng.integers(2, n)].tolist() for _ in range(ROUNDS)]
    lost = [[i for i in cohort[1:] if rng.random() < 0.3] for cohort in cohorts]
    nobody, everybody = 1 + rng.permutation(ROUNDS - 3)[:2]
    lost[nobody] = cohorts[nobody]
    cohorts[everybody], lost[everybody] = list(range(n)), []
    batches = {}
    for r in range(ROUNDS):
        together = rng.integers(1, 5)
        for i, f in enumerate(clients):
            steps = 5 if i in lost[r] else rng.integers(1, 5)
            lengths = rng.integers(1, 5, together if seed % 2 else steps)
            batches[r, i] = [rng.integers(len(f.a), size=k).tolist() for k in lengths]
    _, gamma, per_step = RATES[seed % 3]
    return ref.Plan(clients, cohorts, lost, batches, gamma, per_step, by_size=seed in (2, 3))


def train(task: fl.Task, algorithm: fl.Algorithm, plan: ref.Plan, **work: Any) -> fl.Run:
    return fl.train(
        task,
        algorithm,
        rounds=len(plan.cohorts),
        cohort=plan.cohorts,
        dropout=plan.lost,
        weighting="size" if plan.by_size else "uniform",
        eval_every=len(plan.cohorts),
        objective=False,
        progress=False,
        **work,
    )


def agree(found: fl.Run, z: ref.Vector, start: ref.Vector) -> None:
    close(found.x, z)
    assert np.abs(z - start).max() > 1e-2


@pytest.mark.parametrize(("method", "seed"), list(itertools.product(METHODS, range(6))))
def test_method(method: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task, clients, z = game(rng)
    plan = plan_of(clients, rng, seed)
    make, reference = METHODS[method]
    found = train(task, make(RATES[seed % 3][0]), plan, batches=plan.batches)
    agree(found, reference(z, plan), z)


@pytest.mark.parametrize("engine", ["loop", "debug"])
@pytest.mark.parametrize("method", METHODS)
def test_engines(method: str, engine: str) -> None:
    seed = 1 if "mirror" in method else 2
    rng = np.random.default_rng(seed)
    task, clients, z = game(rng)
    plan = plan_of(clients, rng, seed)
    make, reference = METHODS[method]
    found = train(task, make(RATES[seed][0]), plan, batches=plan.batches, engine=engine)
    agree(found, reference(z, plan), z)


@pytest.mark.parametrize("method", METHODS)
def test_random_synchronization(method: str) -> None:
    """Full local data and a drawn number of steps a round, which the reference is told."""
    seed = 3 if "mirror" in method else 5
    rng = np.random.default_rng(seed)
    task, clients, z = game(rng)
    plan, often = plan_of(clients, rng, seed), fl.Geometric(0.4)
    taken = [often.draw(seed, r) for r in range(ROUNDS)]
    pairs = itertools.product(range(ROUNDS), range(N))
    full = {(r, i): [range(len(clients[i].a))] * taken[r] for r, i in pairs}
    plan = replace(plan, batches=full)
    make, reference = METHODS[method]
    found = train(task, make(RATES[seed % 3][0]), plan, steps=often, seed=seed)
    assert found.counters.steps == sum(len(now.gamma) for now in plan.rounds())
    assert len(set(taken)) > 2
    agree(found, reference(z, plan), z)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", ["ridge", "softmax"])
def test_catalyst_minimizes(name: str, seed: int) -> None:
    """Around SCAFFOLD on a minimization task, extrapolated: θ/2 ‖x − x̄‖² is added to every f_i."""
    rng = np.random.default_rng(seed)
    task, clients, x = problem(name, rng)
    plan = plan_of(clients, rng, seed)
    make, reference = METHODS["catalyst-scaffold-extrapolated"]
    found = train(task, make(RATES[seed % 3][0]), plan, batches=plan.batches)
    agree(found, reference(x, plan), x)


# -- the reference itself -------------------------------------------------------------------------


def test_mapping() -> None:
    """The hand-written mapping against autograd on f, without the library's oracle."""
    _, clients, z = game(np.random.default_rng(0))
    for f in clients:
        leaf = torch.from_numpy(z).requires_grad_()
        samples = zip(*(torch.from_numpy(t) for t in (f.a, f.b, f.c, f.p, f.q)), strict=True)
        values = [value(leaf[:M], leaf[M:], *sample) for sample in samples]
        (g,) = torch.autograd.grad(torch.stack(values).mean(), leaf)
        close(torch.cat([g[:M], -g[M:]]), f.full_grad(z))


def games(a: list[float], b: list[float], q: list[float]) -> list[ref.Game]:
    """Clients with f_i = a/2 x² + b xy − a/2 y² + q(x − y) + sin(q(x + y))."""
    columns = [np.array(t)[:, None, None, None] for t in (a, b, a)]
    last = np.array(q)[:, None, None]
    return [ref.Game(u, v, w, t, t) for u, v, w, t in zip(*columns, last, strict=True)]


def fixed(clients: list[ref.Game], rounds: int, steps: int, gamma: float) -> ref.Plan:
    n = len(clients)
    batches = {(r, i): [[0]] * steps for r in range(rounds) for i in range(n)}
    return ref.Plan(clients, [range(n)] * rounds, [[]] * rounds, batches, lambda k: gamma)


def test_mirror_prox_contracts_where_mirror_descent_expands() -> None:
    """f = xy: a step of size γ turns, and scales by 1 + γ² or (1 − γ²)² + γ² in the square."""
    plan = fixed(games([0.0], [1.0], [0.0]), 3, 1, 0.5)
    z = np.array([0.6, -0.8])
    for method, scale in ((ref.mirror_descent, 1.25), (ref.mirror_prox, 0.8125)):
        assert np.abs(np.sum(ref.run(z, plan, method) ** 2) - scale**3) < 1e-14


def test_only_corrected_local_steps_reach_the_saddle_point() -> None:
    clients = games([1.0, 3.0, 0.5, 2.0], [2.0, -1.0, 0.3, 1.0], [0.2, -0.5, 0.9, 0.1])
    plan = fixed(clients, 100, 5, 0.1)
    start, methods = np.ones(2), (ref.scaffold_s, ref.Scaffold(4, 2), ref.fedavg_s, ref.extra_step)
    ends = [ref.run(start, plan, method) for method in methods]
    ends.append(ref.catalyst(start, plan, ref.scaffold_s, 0.5, 3))
    residuals = [np.abs(np.mean([f.full_grad(z) for f in clients], 0)).max() for z in ends]
    assert max(residuals[0], residuals[1], residuals[4]) < 1e-12
    assert min(residuals[2:4]) > 1e-3
