"""Spectra by Lanczos, their constants, and the noise of gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import uneven

import fairlead as fl
from fairlead.probe.lanczos import lanczos
from fairlead.task.samples import losses_of, output_of


def _hessians(task: fl.Task, x: torch.Tensor) -> torch.Tensor:
    """Every client's Hessian, by autograd."""
    found = []
    for client in range(task.clients):
        owned = torch.from_numpy(task.split[client])
        block = tuple(t[owned] for t in task.data)

        def loss(x: torch.Tensor, block: tuple[torch.Tensor, ...] = block) -> torch.Tensor:
            output = output_of(task, task.model, task.state_dict(x), block)
            flip = torch.ones_like(x) if task.flip is None else task.flip
            return losses_of(task, output, block).mean() + task.l2 / 2 * (flip * x) @ x

        found.append(torch.autograd.functional.hessian(loss, x))
    return torch.stack(found)


def _ends(h: torch.Tensor) -> tuple[float, float]:
    values = torch.linalg.eigvalsh(h)
    return float(values[..., 0].min()), float(values[..., -1].max())


@pytest.mark.parametrize("seed", range(6))
def test_random_quadratics_have_their_constants(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mu, beta, delta, zeta = 0.02 + rng.random(4) * np.array([0.5, 0, 0.5, 3])
    beta = mu + 1 + rng.random()
    n, d = int(rng.integers(2, 9)), int(rng.integers(2, 15))
    task = fl.problems.random_quadratics(n, d, mu, beta, delta, zeta, seed)
    hessians = _hessians(task, task.start()[0])
    found = fl.measure.constants(task)
    expected = {
        "L": beta, "mu": mu, "delta": delta, "zeta_star": zeta, "beta": _ends(hessians)[1],
        "weak_convexity": -_ends(hessians)[0], "kappa": _ends(hessians)[1] / mu, "sigma": 0.0,
        "D": float(task.optimum.norm()),
    }  # fmt: skip
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-2, abs=1e-12), name
        assert found[name] == pytest.approx(value, rel=1e-8, abs=1e-8), name


@pytest.mark.parametrize("seed", range(3))
def test_random_games_have_their_constants(seed: int) -> None:
    task = fl.problems.quadratic_game(5, 4, mu=0.3, beta=1.5, delta=0.2, seed=seed, l2=0.1)
    x = task.start()[0]
    hessians, (first, second) = _hessians(task, x), task.players
    found = fl.measure.curvature(task)
    mean = hessians.mean(0)
    mu = min(_ends(mean[first, first])[0], _ends(-mean[second, second])[0])
    norms = [
        torch.linalg.matrix_norm(hessians[:, a, b], 2).max()
        for a in task.players
        for b in task.players
    ]
    assert found["mu"] == pytest.approx(mu, rel=1e-8)
    assert found["mu"] == pytest.approx(0.4, rel=1e-8)
    assert found["beta"] == pytest.approx(float(max(norms)), rel=1e-8)
    assert found["kappa"] == pytest.approx(found["beta"] / mu)
    largest = float(torch.linalg.matrix_norm(hessians, 2).max())
    assert found["lipschitz"] == pytest.approx(largest, rel=1e-8)
    assert found["lipschitz"] <= 2 * found["beta"]
    with pytest.raises(fl.FairleadError, match="SaddleCurvature"):
        fl.measure.take(task, fl.measure.Curvature())


def test_a_network_and_a_part_of_it() -> None:
    task = uneven()
    x = task.start(2)[0]
    hessians, weights = _hessians(task, x), torch.tensor(task.client_weights("size"))
    mean = torch.einsum("n,nij->ij", weights, hessians)
    part = task.layers["3.weight"]
    how = {"part": part, "weighting": "size"}
    found = fl.measure.curvature(task, x, steps=task.dim, **how)
    apart = torch.linalg.matrix_norm(hessians - mean, 2).max()
    reduced = torch.linalg.matrix_norm(hessians[:, part], 2).max()
    expected = {
        "beta": _ends(hessians)[1], "L": _ends(mean)[1], "mu": _ends(mean)[0],
        "weak_convexity": -_ends(hessians)[0], "delta": float(apart), "beta_p": float(reduced),
    }  # fmt: skip
    assert dict(found.values) == pytest.approx(expected, rel=1e-7)
    few = {"steps": 6, "samples": 8, "deviants": 2, **how}
    one, other = (fl.measure.curvature(task, x, engine=e, **few) for e in ("vmap", "loop"))
    assert dict(one.values) == pytest.approx(dict(other.values), rel=1e-9)
    assert (one.gradients, one.bits) == (other.gradients, other.bits)


def test_ranges_contain_the_exact_values() -> None:
    """Ritz values are lower bounds, and after enough products the ranges reach the exact values."""
    task = fl.problems.random_quadratics(clients=6, dim=24, mu=0.1, beta=1.0, delta=0.3)
    exact = fl.measure.curvature(task, steps=24)
    for steps in (3, 6, 12):
        found = fl.measure.curvature(task, steps=steps)
        for name in ("beta", "L", "delta", "weak_convexity"):
            low, high = found.ranges[name]
            assert found[name] == low
            assert low <= exact[name] * (1 + 1e-9)
            assert steps < 12 or exact[name] <= high * (1 + 1e-9), (name, steps)
        assert found.ranges["mu"][1] * (1 + 1e-9) >= exact["mu"]
        assert steps < 12 or found.ranges["mu"][0] <= exact["mu"]


def test_the_clients_that_differ_most_are_found() -> None:
    task = fl.problems.random_quadratics(clients=12, dim=6, delta=0.5, seed=3)
    exact = fl.measure.curvature(task)
    few = fl.measure.curvature(task, deviants=3)
    assert few["delta"] <= exact["delta"] * (1 + 1e-9)
    assert few["delta"] >= 0.8 * exact["delta"]
    low, high = few.ranges["delta"]
    assert low <= exact["delta"] <= high
    assert few.gradients < exact.gradients
    assert "δ is from the 3 of 12 clients" in few.notes[-1]
    some = fl.measure.curvature(task, clients=4)
    assert some["beta"] <= exact["beta"] * (1 + 1e-9)
    assert some.ranges["beta"][1] == np.inf


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_an_eigenvalue_lies_within_the_residual_of_a_ritz_value(steps: int) -> None:
    draw = torch.Generator().manual_seed(steps)
    a = torch.randn(50, 20, 20, generator=draw, dtype=torch.float64)
    a = a + a.mT
    start = torch.randn(50, 20, generator=draw, dtype=torch.float64)
    ends = lanczos(lambda v: torch.einsum("sij,sj->si", a, v), start, steps)
    values = torch.linalg.eigvalsh(a)
    for ritz, residual in ((ends.low, ends.low_residual), (ends.high, ends.high_residual)):
        nearest = (values - ritz[:, None]).abs().min(1).values
        assert (nearest <= residual + 1e-9).all()
    assert (ends.low >= values[:, 0] - 1e-9).all()
    assert (ends.high <= values[:, -1] + 1e-9).all()


def test_lanczos_on_spaces_that_end_early() -> None:
    """Operators whose Krylov spaces have one, two and three dimensions, at once."""
    diagonals = torch.tensor([[-2.0] * 5, [-3.0, -1, -1, -3, -1], [4, -5, 4, 1, 1]]).double()
    ends = lanczos(lambda v: diagonals * v, torch.ones(3, 5, dtype=torch.float64), 5)
    torch.testing.assert_close(ends.low, torch.tensor([-2.0, -3, -5]).double())
    torch.testing.assert_close(ends.high, torch.tensor([-2.0, -1, 4]).double())
    assert float(ends.residual.max()) < 1e-10


def test_lanczos_without_room_for_its_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairlead.probe import lanczos as module

    monkeypatch.setattr(module, "KEPT", 0)
    values = torch.linspace(-1, 2, 300, dtype=torch.float64)
    start = torch.randn(300, generator=torch.Generator().manual_seed(0)).double()
    ends = module.lanczos(lambda v: values * v, start, 60)
    assert float(ends.high) == pytest.approx(2, rel=1e-3)
    assert float(ends.low) == pytest.approx(-1, rel=1e-3)
    assert abs(float(ends.high) - 2) <= float(ends.high_residual) + 1e-9


@pytest.mark.parametrize("model", [fl.models.resnet8(classes=3), fl.models.femnist_cnn(3, side=8)])
def test_products_of_convolutional_networks(model) -> None:
    """By forward over reverse mode, against reverse over reverse."""
    torch.manual_seed(0)
    side = 8
    channels = 3 if "resnet8" in model.__qualname__ else 1
    x, y = torch.randn(6, channels, side, side), torch.randint(3, (6,))
    task = fl.Task(model, "cross_entropy", (x, y), [range(2), range(2, 6)], dtype=torch.float64)
    from fairlead.gradients.oracle import Gradients
    from fairlead.gradients.second import Local

    at, buffers = task.start(0)
    rows = np.array([0, 1])
    local = Local(Gradients(task), rows, buffers.expand(2, -1), 1 << 10)
    v = torch.randn(2, task.dim, dtype=torch.float64)
    v = v / v.norm(dim=1, keepdim=True)
    found = local.products(at[None], v[:, None])[:, 0]
    for client, owned in enumerate((slice(0, 2), slice(2, 6))):
        inputs, target = x[owned].double(), y[owned]

        def loss(at: torch.Tensor, inputs=inputs, target=target) -> torch.Tensor:
            output = torch.func.functional_call(task.model, task.state_dict(at), (inputs,))
            return task.loss(output, target).mean()

        expected = torch.autograd.functional.hvp(loss, at, v[client])[1]
        torch.testing.assert_close(found[client], expected, rtol=1e-8, atol=1e-8)


def test_noise_by_hand_and_of_batches() -> None:
    task = uneven().replace(noise=0.1)
    x = task.start(0)[0]
    found = fl.measure.noise(task, x, part="3")
    squares = []
    for client in range(task.clients):
        rows = []
        for sample in task.split[client]:
            leaf = x.clone().requires_grad_()
            named = task.state_dict(leaf)
            one = torch.tensor([sample])
            output = torch.func.functional_call(task.model, named, (task.data[0][one],))
            loss = task.loss(output, task.data[1][one]).mean()
            rows.append(torch.autograd.grad(loss, leaf)[0])
        g = torch.stack(rows)
        apart = (g - g.mean(0)) ** 2
        part = slice(task.layers["3.weight"].start, task.dim)
        width = task.dim - part.start
        squares.append(
            [
                float(apart.sum(1).mean()) + 0.01 * task.dim,
                float(apart[:, part].sum(1).mean()) + 0.01 * width,
            ]
        )
    most = np.max(squares, 0)
    assert found["sigma2"] == pytest.approx(most[0], rel=1e-9)
    assert found["sigma2_p"] == pytest.approx(most[1], rel=1e-9)
    assert found["sigma2_mean"] == pytest.approx(np.mean(squares, 0)[0], rel=1e-9)
    loop = fl.measure.noise(task, x, part="3", engine="loop")
    assert dict(loop.values) == pytest.approx(dict(found.values), rel=1e-9)
    with pytest.raises(fl.FairleadError, match="the batch is 5"):
        fl.measure.batch_noise(1.0, 5, 4)


def test_the_noise_of_batches_without_replacement() -> None:
    """σ²/b·(n − b)/(n − 1), against all pairs of six numbers."""
    values = np.array([0.0, 1.0, 4.0, -2.0, 7.0, 3.0])
    sigma2 = values.var()
    pairs = [(values[i] + values[j]) / 2 for i in range(6) for j in range(i)]
    assert fl.measure.batch_noise(sigma2, 2, 6) == pytest.approx(np.var(pairs))


def test_batch_norm_has_no_noise_of_single_samples() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    )
    x, y = torch.randn(8, 3), torch.randint(2, (8,))
    task = fl.Task(model, "cross_entropy", (x, y), [range(4), range(4, 8)])
    with pytest.raises(fl.FairleadError, match="use GroupNorm"):
        fl.measure.noise(task)
    assert fl.measure.curvature(task, steps=3)["beta"] > 0
