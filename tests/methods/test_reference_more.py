"""The further methods against the plain reference, on everything that makes federated runs uneven."""

from functools import partial

import numpy as np
import pytest
import reference as ref
import reference_more as more
import torch
from test_reference import CLASSES, ROUNDS, N, close, one_thread, problem, run

import fairlead as fl

__all__ = ["one_thread"]  # a fixture, for this module too

SGDM = partial(torch.optim.SGD, lr=0.7, momentum=0.6)
OPT = {"server_lr": 0.3, "beta1": 0.8, "beta2": 0.9, "tau": 0.05}


def mask_of(x):
    """Some coordinates, in no order that layers have."""
    return np.arange(len(x)) % 3 != 1


def pvr(lr, x, **settings):
    return fl.FedPVR(lr, torch.from_numpy(mask_of(x)), server_lr=1.3, **settings)


# name: what the method allows, the method for a schedule and a start, the reference.
# "uneven": cohorts, losses, and each client its own number of steps; "equal": one number of steps for
# all clients of a round; "all": every client answers, and the number of steps never changes.
METHODS = {
    "fedavg-m": (
        "uneven",
        lambda lr, x: fl.FedAvg(lr, momentum=0.8, server_lr=1.3),
        lambda x, plan: more.fedavg(x, plan, 1.3, momentum=0.8),
    ),
    "fedavg-m-kept": (
        "uneven",
        lambda lr, x: fl.FedAvg(lr, momentum=0.8, server_lr=1.3, momentum_reset=False),
        lambda x, plan: more.fedavg(x, plan, 1.3, momentum=0.8, reset=False),
    ),
    "server-momentum": (
        "uneven",
        lambda lr, x: fl.FedAvg(lr, server=SGDM),
        lambda x, plan: more.fedavg(x, plan, 0.7, server_momentum=0.6),
    ),
    "fedavg-scm": (
        "uneven",
        lambda lr, x: fl.FedAvg(lr, momentum=0.8, server=SGDM),
        lambda x, plan: more.fedavg(x, plan, 0.7, 0.8, 0.6),
    ),
    "fedpvr": (
        "uneven",
        pvr,
        lambda x, plan: more.fedpvr(x, plan, mask_of(x), 1.3),
    ),
    "fedpvr-m": (
        "uneven",
        partial(pvr, momentum=0.9),
        lambda x, plan: more.fedpvr(x, plan, mask_of(x), 1.3, 0.9),
    ),
    "fedpvr-m-kept": (
        "uneven",
        partial(pvr, momentum=0.9, momentum_reset=False),
        lambda x, plan: more.fedpvr(x, plan, mask_of(x), 1.3, 0.9, reset=False),
    ),
    "fedlomo": (
        "uneven",
        lambda lr, x: fl.FedLOMO(lr),
        lambda x, plan: more.fedlomo(x, plan),
    ),
    "fedlomo-damped": (
        "uneven",
        lambda lr, x: fl.FedLOMO(lr, damping=0.8),
        lambda x, plan: more.fedlomo(x, plan, 0.8),
    ),
    "fedglomo": (
        "uneven",
        lambda lr, x: fl.FedGLOMO(lr, beta=0.2),
        lambda x, plan: more.fedglomo(x, plan, 0.2),
    ),
    "fedglomo-damped": (
        "uneven",
        lambda lr, x: fl.FedGLOMO(lr, beta=0.6, damping=0.8),
        lambda x, plan: more.fedglomo(x, plan, 0.6, 0.8),
    ),
    "fedglomo-schedule": (
        "uneven",
        lambda lr, x: fl.FedGLOMO(lr, beta=lambda k: 0.7 * 0.8**k),
        lambda x, plan: more.fedglomo(x, plan, lambda k: 0.7 * 0.8**k),
    ),
    "mime-sgdm": (
        "uneven",
        lambda lr, x: fl.Mime(lr, beta=0.7),
        lambda x, plan: more.mime_sgdm(x, plan, 0.7),
    ),
    "mime-mvr": (
        "uneven",
        lambda lr, x: fl.Mime(lr, "mvr", a=0.3),
        lambda x, plan: more.mime_mvr(x, plan, 0.3),
    ),
    "mimelite-sgdm": (
        "uneven",
        lambda lr, x: fl.MimeLite(lr, beta=0.7),
        lambda x, plan: more.mime_sgdm(x, plan, 0.7, lite=True),
    ),
    "mimelite-mvr": (
        "uneven",
        lambda lr, x: fl.MimeLite(lr, "mvr", a=0.3),
        lambda x, plan: more.mime_mvr(x, plan, 0.3, lite=True),
    ),
    "fedcomgate": (
        "equal",
        lambda lr, x: fl.FedCOMGATE(lr, gamma=1.2),
        lambda x, plan: more.fedcomgate(x, plan, 1.2),
    ),
    "feddyn": (
        "uneven",
        lambda lr, x: fl.FedDyn(lr, alpha=0.9),
        lambda x, plan: more.feddyn(x, plan, 0.9),
    ),
    "scaffnew": (
        "all",
        lambda lr, x: fl.Scaffnew(lr),
        more.scaffnew,
    ),
    "scaffold-m": (
        "uneven",
        lambda lr, x: fl.ScaffoldM(lr, beta=0.3, server_lr=1.3),
        lambda x, plan: more.scaffold_m(x, plan, 0.3, 1.3),
    ),
    "fednova": (
        "uneven",
        lambda lr, x: fl.FedNova(lr, server_lr=1.3),
        lambda x, plan: more.fednova(x, plan, 1.3),
    ),
    "fedadagrad": (
        "uneven",
        lambda lr, x: fl.FedAdagrad(lr, **OPT),
        lambda x, plan: more.fedopt(x, plan, "adagrad", **OPT),
    ),
    "fedadam": (
        "uneven",
        lambda lr, x: fl.FedAdam(lr, **OPT),
        lambda x, plan: more.fedopt(x, plan, "adam", **OPT),
    ),
    "fedyogi": (
        "uneven",
        lambda lr, x: fl.FedYogi(lr, **OPT),
        lambda x, plan: more.fedopt(x, plan, "yogi", **OPT),
    ),
}


def plan_of(kind, clients, rng, by_size):
    """Random cohorts, losses and batches of 1 to 4 samples; somebody answers in round 0.

    In one later round nobody answers, in another everybody does.
    """
    cohorts = [rng.permutation(N)[: rng.integers(2, N)].tolist() for _ in range(ROUNDS)]
    lost = [[i for i in cohort if rng.random() < 0.3] for cohort in cohorts]
    lost[0] = cohorts[0][1:2]
    nobody, everybody = 1 + rng.choice(ROUNDS - 1, 2, replace=False)
    lost[nobody] = cohorts[nobody]
    cohorts[everybody], lost[everybody] = list(range(N)), []
    if kind == "all":
        cohorts, lost = [list(range(N))] * ROUNDS, [[]] * ROUNDS
    steps = np.repeat(rng.integers(2, 6, ROUNDS)[:, None], N, 1)
    if kind == "uneven":
        steps = rng.integers(1, 6, (ROUNDS, N))
    elif kind == "all":
        steps[:] = 4
    batches = {
        (r, i): [rng.integers(len(f.a), size=n).tolist() for n in rng.integers(1, 5, steps[r, i])]
        for r in range(ROUNDS)
        for i, f in enumerate(clients)
    }
    return ref.Plan(clients, cohorts, lost, batches, fl.schedules.Exponential(0.1, 0.8), by_size)


def case(kind, name, seed, by_size):
    rng = np.random.default_rng(seed)
    task, clients, x = problem(name, rng)
    return task, plan_of(kind, clients, rng, by_size), x


def compare(task, method, plan, engine, expected):
    found = run(task, method, plan, engine)
    x, server, client = expected
    close(found.x, x)
    for key, value in server.items():
        close(getattr(found.state, key), value)
    for key, value in client.items():
        kept = found.client_states().tensors()
        close(kept[key if key in kept else f"slots/{key}"], value)
    return found.x.numpy()


@pytest.mark.parametrize("engine", ["vmap", "debug"])
@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("name", ["softmax", "ridge"])
@pytest.mark.parametrize("method", METHODS)
def test_method(method, name, weights, engine):
    by_size = weights == "size"
    seed = int(by_size == (name == "softmax"))  # both seeds for each problem and each weighting
    kind, make, reference = METHODS[method]
    task, plan, x = case(kind, name, seed, by_size)
    found = compare(task, make(plan.eta, x), plan, engine, reference(x, plan))
    assert np.abs(found - x).max() > 1e-3


@pytest.mark.parametrize("engine", ["vmap", "debug"])
def test_fedpvr_on_a_named_layer(engine):
    """The bias is the last of the parameters."""
    task, plan, x = case("uneven", "softmax", 0, False)
    method = fl.FedPVR(plan.eta, ["bias"], momentum=0.9)
    part = np.arange(len(x)) >= len(x) - CLASSES
    compare(task, method, plan, engine, more.fedpvr(x, plan, part, momentum=0.9))


# -- the reference itself -------------------------------------------------------------------------


def same(found, expected):
    assert np.abs(found - expected).max() < 1e-12


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("by_size", [False, True], ids=["uniform", "size"])
def test_reference_identities(by_size, seed):
    """What the papers say of each other's special cases."""
    _, plan, x = case("uneven", "softmax", seed, by_size)
    fedavg = ref.fedavg(x, plan, 1.3)
    all_, none = np.ones(len(x), bool), np.zeros(len(x), bool)
    scaffold = ref.scaffold(x, plan, "II", server_lr=1.3)
    same(more.fedpvr(x, plan, all_, 1.3, 0.9)[0], scaffold[0])
    same(more.fedpvr(x, plan, all_, 1.3, 0.9)[1]["c"], scaffold[1])
    same(more.fedpvr(x, plan, none, 1.3)[0], fedavg)
    same(more.fedpvr(x, plan, none, 1.3, 0.9)[0], more.fedavg(x, plan, 1.3, 0.9)[0])
    same(more.scaffold_m(x, plan, 1.0, 1.3)[0], scaffold[0])
    same(more.scaffold_m(x, plan, 1.0, 1.3)[1]["c"], scaffold[1])
    same(more.fedglomo(x, plan, 1.0, 0.8)[0], more.fedlomo(x, plan, 0.8)[0])
    same(more.fedlomo(x, one_step(plan))[0], ref.fedsgd(x, plan))
    same(more.mime_sgdm(x, plan, 0.0, lite=True)[0], ref.fedavg(x, plan))
    same(more.mime_mvr(x, plan, 1.0)[0], more.mime_sgdm(x, plan, 0.0)[0])
    same(more.mime_mvr(x, plan, 1.0, lite=True)[0], ref.fedavg(x, plan))
    _, equal, _ = case("equal", "softmax", seed, by_size)
    same(more.fednova(x, equal, 1.3)[0], ref.fedavg(x, equal, 1.3))
    _, every, _ = case("all", "softmax", seed, by_size)
    same(more.scaffnew(x, every)[0], ref.scaffold(x, every, "II")[0])
    same(more.fedcomgate(x, every)[0], ref.scaffold(x, every, "II")[0])


def one_step(plan):
    """The plan with the first step of every client alone."""
    batches = {key: steps[:1] for key, steps in plan.batches.items()}
    return ref.Plan(plan.clients, plan.cohorts, plan.lost, batches, plan.eta, plan.by_size)


@pytest.mark.parametrize("by_size", [False, True], ids=["uniform", "size"])
def test_reference_keeps_the_mean_linear_term(by_size):
    _, plan, x = case("uneven", "softmax", 0, by_size)
    _, server, client = more.feddyn(x, plan, 0.9)
    assert np.abs(plan.p @ client["g"] - server["h"]).max() < 1e-14


def test_reference_converges_on_four_clients():
    """f_i = a_i/2 (x − b_i)²: what removes the drift reaches the optimum of the mean."""
    a, b = np.array([1, 3, 0.5, 2]), np.array([-1, 1, 4, -3.0])
    clients = [
        ref.Ridge(np.array([[s]]), np.array([s * t])) for s, t in zip(a**0.5, b, strict=True)
    ]
    batches = {(r, i): [[0]] * 10 for r in range(300) for i in range(4)}
    plan = ref.Plan(clients, [list(range(4))] * 300, [[]] * 300, batches, lambda r: 0.05)
    optimum, x = a @ b / a.sum(), np.zeros(1)
    every = np.ones(1, bool)
    for found, *_ in (
        more.fedpvr(x, plan, every),
        more.mime_sgdm(x, plan, 0.5),
        more.fedcomgate(x, plan),
        more.feddyn(x, plan, 1.0),
        more.scaffnew(x, plan),
        more.scaffold_m(x, plan, 0.5),
    ):
        assert abs(found - optimum)[0] < 1e-10
