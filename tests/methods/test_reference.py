"""The library against the plain reference, on everything that makes federated runs uneven."""

import numpy as np
import pytest
import reference as ref
import torch
from torch import nn

import fairlead as fl

N, ROUNDS, P, CLASSES, L2, MU = 7, 6, 3, 4, 0.05, 0.7
METHODS = {
    "fedsgd": (lambda lr, _: fl.FedSGD(lr), lambda x, plan, _: ref.fedsgd(x, plan)),
    "minibatch": (lambda lr, _: fl.MinibatchSGD(lr), lambda x, plan, _: ref.minibatch_sgd(x, plan)),
    "fedavg": (lambda lr, g: fl.FedAvg(lr, server_lr=g), ref.fedavg),
    "fedprox": (
        lambda lr, g: fl.FedProx(lr, MU, server_lr=g),
        lambda x, plan, g: ref.fedprox(x, plan, MU, g),
    ),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors this small gain nothing from threads, and on busy cores wait long for them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def problem(name, rng):
    """A task, the same clients in numpy, and the start: 1 to 9 samples a client, out of order."""
    sizes = rng.integers(2, 10, N)
    sizes[rng.integers(N)] = 1
    total = int(sizes.sum())
    owners = np.split(rng.permutation(total), np.cumsum(sizes)[:-1])
    a = rng.normal(size=(total, P))
    if name == "softmax":
        y, x = rng.integers(CLASSES, size=total), rng.normal(size=CLASSES * P + CLASSES)
        model, loss = nn.Linear(P, CLASSES), "cross_entropy"
        clients = [ref.Softmax(a[own], y[own], CLASSES, L2) for own in owners]
    else:
        y, x = rng.normal(size=total), rng.normal(size=P)
        model, loss = nn.Linear(P, 1, bias=False), "squared"
        clients = [ref.Ridge(a[own], y[own], L2) for own in owners]
    model.double()
    nn.utils.vector_to_parameters(torch.from_numpy(x), model.parameters())
    target = torch.from_numpy(y if name == "softmax" else y[:, None])
    owners = [own.tolist() for own in owners]
    task = fl.Task(model, loss, (torch.from_numpy(a), target), owners, l2=L2, dtype=torch.float64)
    return task, clients, x


def plan_of(clients, rng, by_size):
    """Random cohorts, losses and batches. In one round nobody answers, in one everybody does."""
    cohorts = [rng.permutation(N)[: rng.integers(1, N)].tolist() for _ in range(ROUNDS)]
    lost = [[i for i in cohort if rng.random() < 0.3] for cohort in cohorts]
    nobody, everybody = rng.choice(ROUNDS, 2, replace=False)
    lost[nobody] = cohorts[nobody]
    cohorts[everybody], lost[everybody] = list(range(N)), []
    batches = {}
    for r in range(ROUNDS):
        for i, f in enumerate(clients):
            lengths = rng.integers(1, 5, rng.integers(1, 6))  # of 1 to 5 steps
            batches[r, i] = [rng.integers(len(f.a), size=n).tolist() for n in lengths]
    eta = fl.schedules.Exponential(0.1, 0.8)
    return ref.Plan(clients, cohorts, lost, batches, eta, by_size)


def run(task, algorithm, plan, engine):
    return fl.train(
        task,
        algorithm,
        rounds=ROUNDS,
        cohort=plan.cohorts,
        dropout=plan.lost,
        batches=plan.batches,
        weighting="size" if plan.by_size else "uniform",
        engine=fl.Simulate(engine, threads=2),
        eval_every=ROUNDS,
        objective=False,
        progress=False,
    )


def case(name, seed, by_size):
    rng = np.random.default_rng(seed)
    task, clients, x = problem(name, rng)
    return task, plan_of(clients, rng, by_size), x, (1.0, 1.4, 0.6)[seed % 3]


def close(ours, reference):
    assert ours.dtype == torch.float64
    assert np.abs(ours.numpy() - reference).max() < 1e-10


grid = [
    pytest.mark.parametrize("engine", ["vmap", "loop", "debug"]),
    pytest.mark.parametrize("by_size", [False, True], ids=["uniform", "size"]),
    pytest.mark.parametrize("seed", range(3)),
    pytest.mark.parametrize("name", ["softmax", "ridge"]),
]


def on_grid(test):
    for mark in grid:
        test = mark(test)
    return test


@pytest.mark.parametrize("method", METHODS)
@on_grid
def test_method(method, name, seed, by_size, engine):
    task, plan, x, server_lr = case(name, seed, by_size)
    make, reference = METHODS[method]
    found = run(task, make(plan.eta, server_lr), plan, engine)
    close(found.x, reference(x, plan, server_lr))
    assert np.abs(found.x.numpy() - x).max() > 1e-3


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("option", ["I", "II"])
@on_grid
def test_scaffold(option, warm, name, seed, by_size, engine):
    task, plan, x, server_lr = case(name, seed, by_size)
    method = fl.Scaffold(plan.eta, option, warm, server_lr=server_lr)
    found = run(task, method, plan, engine)
    x, c, c_i = ref.scaffold(x, plan, option, warm, server_lr)
    close(found.x, x)
    close(found.state.c, c)
    close(found.client_states().c, c_i)


# -- the reference itself -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "ridge"])
def test_gradients(name):
    """The hand-written gradients against autograd on the library's objective, without its oracle."""
    task, clients, x = problem(name, np.random.default_rng(0))
    leaf = torch.from_numpy(x).requires_grad_()
    task.objective(leaf, "size").backward()
    sizes = np.array([len(f.a) for f in clients])
    by_hand = sum(n * f.full_grad(x) for n, f in zip(sizes, clients, strict=True)) / sizes.sum()
    close(leaf.grad, by_hand)


@pytest.mark.parametrize("by_size", [False, True], ids=["uniform", "size"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_reference_keeps_the_mean_control_variate(option, by_size):
    _, plan, x, _ = case("softmax", 0, by_size)
    _, c, c_i = ref.scaffold(x, plan, option)
    assert np.abs(plan.p @ c_i - c).max() < 1e-14


@pytest.mark.parametrize(("sampled", "drift"), [(4, 8e-3), (2, 0.5)])
def test_reference_on_four_clients(sampled, drift):
    """f_i = a_i/2 (x − b_i)², K = 10: SCAFFOLD reaches the optimum, FedAvg drifts."""
    a, b = np.array([1, 3, 0.5, 2]), np.array([-1, 1, 4, -3.0])
    clients = [
        ref.Ridge(np.array([[s]]), np.array([s * t])) for s, t in zip(a**0.5, b, strict=True)
    ]
    rng = np.random.default_rng(0)
    cohorts = [rng.choice(4, sampled, replace=False).tolist() for _ in range(600)]
    batches = {(r, i): [[0]] * 10 for r in range(600) for i in range(4)}
    plan = ref.Plan(clients, cohorts, [[]] * 600, batches, lambda r: 0.05)
    optimum = a @ b / a.sum()
    for option in ("I", "II"):
        assert abs(ref.scaffold(np.zeros(1), plan, option)[0] - optimum)[0] < 1e-12
    assert abs(ref.fedavg(np.zeros(1), plan) - optimum)[0] > drift / 5
