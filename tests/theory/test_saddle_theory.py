"""The saddle-point bounds hold where their conditions hold, on random quadratic games with exact expectations
over the random synchronization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from exact_moments import Array, Columns, Quadratics, Step, second_moments, state

from fairlead.theory import (
    Bound,
    Constants,
    Settings,
    catalyst,
    catalyst_plan,
    catalyst_theta,
    fedavg_s,
    scaffold_s,
    scaffold_s_anchor,
    scaffold_s_similar,
)

SETTINGS, COUNT = 25, 40
both = pytest.mark.parametrize(
    "blocks",
    [pytest.param(False, id="lipschitz"), pytest.param(True, id="blocks", marks=pytest.mark.slow)],
)


def games(
    rng: np.random.Generator, clients: int, apart: float | None = None
) -> tuple[Quadratics, Array]:
    """G_i(z) = M_i z − b_i with one coordinate per player, and μ. apart: the clients' matrices differ by at most
    this share of μ; by default they are independent."""
    beta = 10 ** rng.uniform(-1, 1, (COUNT, 1))
    mu = beta * 10 ** rng.uniform(-1, 0, (COUNT, 1))
    a, c = mu + (beta - mu) * rng.random((2, COUNT, clients))
    b = beta * rng.uniform(-1, 1, (COUNT, clients))
    m = np.stack([np.stack([a, b], -1), np.stack([-b, c], -1)], -2)
    if apart is not None:
        off = m - m.mean(1, keepdims=True)
        size = np.linalg.norm(off, 2, axis=(2, 3)).max(1)
        m = (
            m.mean(1, keepdims=True)
            + off * np.minimum(apart * mu[:, 0] / size, 1)[:, None, None, None]
        )
    v = rng.normal(size=(COUNT, clients, 2)) * 10 ** rng.uniform(-2, 1, (COUNT, 1, 1))
    z = rng.normal(size=(COUNT, 2)) * 10 ** rng.uniform(-1, 1, (COUNT, 1))
    q = Quadratics(m, v - v.mean(1, keepdims=True), z)
    return q, np.minimum(m[..., 0, 0], m[..., 1, 1]).min(1)


def smoothness(q: Quadratics, blocks: bool) -> Array:
    """How fast a client's mapping changes; `blocks`: the largest block instead, the paper's Definition 2."""
    return np.abs(q.a).max((1, 2, 3)) if blocks else np.linalg.norm(q.a, 2, axis=(2, 3)).max(1)


def gap_of(q: Quadratics, moments: Array, clients: int) -> Array:
    """E Gap of the mean of the clients' points, with which the state begins."""
    mean = np.zeros((2, moments.shape[1]))
    for i in range(clients):
        mean[:, 2 * i : 2 * i + 2] = np.eye(2) / clients
    inner = mean @ moments @ mean.T
    return 0.5 * np.einsum("pii,pii->p", q.mean, inner)


def local_rounds(
    q: Quadratics, lr: Array, p: float, sigma: Array, corrected: bool
) -> tuple[Array, list[Step]]:
    """FedAvg-S, or `corrected` SCAFFOLD-S: the state is (z_1, …, z_n, anchor, 1); after a step all synchronize
    with probability p."""
    n = q.a.shape[1]
    c = Columns(q, n + 1, sigma, n)
    *own, anchor = c.vectors
    pull = sum(c.grad(i, anchor, noisy=False) for i in range(n)) / n
    moved = []
    for i, z in enumerate(own):
        g = c.grad(i, z)
        g = g - c.grad(i, anchor, noisy=False) + pull if corrected else g
        moved.append(z - lr[:, None, None] * g)
    together = sum(moved) / n
    stay, sync = c.step(*moved, anchor), c.step(*([together] * n), together)
    stay.weight, sync.weight = 1 - p, p
    return state(*([q.x] * (n + 1))), [stay, sync]


def check(bounds: list[Bound], gaps: Array) -> float:
    """The bounds hold; the largest share of one that was measured."""
    for bound, values in zip(bounds, gaps.T, strict=True):
        assert bound.holds, str(bound)
        assert 0 <= bound.average(values) <= bound.value * (1 + 1e-9), str(bound)
    return max(b.average(v) / b.value for b, v in zip(bounds, gaps.T, strict=True))


@both
@pytest.mark.parametrize("theorem", [fedavg_s, scaffold_s_similar, scaffold_s])
def test_local_steps(theorem: Callable[..., Bound], blocks: bool) -> None:
    """ζ is bounded over a ball that no client leaves."""
    rng, largest = np.random.default_rng(0), 0.0
    for _ in range(SETTINGS):
        n, p = int(rng.integers(2, 4)), float(rng.choice([1.0, 0.5, 0.25]))
        q, mu = games(rng, n, None if theorem is scaffold_s else 0.5)
        beta, steps = smoothness(q, blocks), int(rng.choice([4, 200]))
        most = mu / (4 * beta**2) if theorem is not scaffold_s else p * mu / (80 * beta**2)
        lr = most * rng.choice([1.0, 0.3], COUNT)
        noisy = rng.random(COUNT) < 0.5
        sigma = np.where(noisy, 10 ** rng.uniform(-2, 1, COUNT), 0.0)
        # noise drives clients out of any ball: then all have the same matrix, and ζ is the same everywhere
        q.a = np.where(
            noisy[:, None, None, None] & (theorem is not scaffold_s), q.a.mean(1)[:, None], q.a
        )
        known = _known(q, mu, beta, sigma, lr)
        s = [Settings(n, lr=float(e), sync=p) for e in lr]
        bounds = [theorem(c, one, steps * p) for c, one in zip(known, s, strict=True)]
        start, rounds = local_rounds(q, lr, p, sigma, corrected=theorem is not fedavg_s)
        gaps = [gap_of(q, m, n) for m in second_moments(start, rounds, steps)]
        largest = max(largest, check(bounds, np.array(gaps)))
    assert largest > (0.04 if theorem is scaffold_s else 0.4)


def _known(q: Quadratics, mu: Array, beta: Array, sigma: Array, lr: Array) -> list[Constants]:
    kept = np.linalg.norm(np.eye(2) - lr[:, None, None, None] * q.a, 2, axis=(2, 3)).max(1)
    assert (kept < 1).all()
    push = np.linalg.norm(q.b, axis=2).max(1)
    start = np.linalg.norm(q.x, axis=1)
    ball = np.maximum(start, lr * push / (1 - kept))
    apart = q.a[:, :, None] - q.a[:, None]
    matrices = np.linalg.norm(apart, 2, axis=(3, 4)).max((1, 2))
    offsets = np.linalg.norm(q.b[:, :, None] - q.b[:, None], axis=3).max((1, 2))
    first = (np.einsum("pnij,pj->pni", q.a, q.x) ** 2).sum(2).mean(1)
    columns = {
        "mu": mu, "beta": beta, "sigma": sigma, "D": start, "sigma0": first,
        "zeta_pair": matrices * ball + offsets,
    }  # fmt: skip
    return [Constants(**{k: float(v[i]) for k, v in columns.items()}) for i in range(COUNT)]


@both
def test_anchor_steps(blocks: bool) -> None:
    """Theorem 5, with the moments of z^k split by τ, the steps since the last synchronization."""
    rng, largest = np.random.default_rng(1), 0.0
    for _ in range(SETTINGS):
        n, p, steps = 2, float(rng.choice([1.0, 0.5, 0.2])), int(rng.choice([5, 60]))
        q, mu = games(rng, n)
        beta = smoothness(q, blocks)
        s = Settings(n, sync=p)
        known = [
            Constants(mu=float(m), beta=float(b), D=float(np.linalg.norm(z)))
            for m, b, z in zip(mu, beta, q.x, strict=True)
        ]
        bounds = [scaffold_s_anchor(c, s, steps * p) for c in known]
        lr = np.array([b.lr for b in bounds])
        waits = np.arange(1, steps + 2)
        maps = np.eye(2) - lr[:, None, None, None] * waits[None, :, None, None] * q.mean[:, None]
        moments = np.zeros((COUNT, steps + 1, 2, 2))
        moments[:, 0] = np.einsum("pi,pj->pij", q.x, q.x)
        gaps = []
        for _ in range(steps + 1):
            everywhere = moments.sum(1)
            gaps.append(0.5 * np.einsum("pii,pii->p", q.mean, everywhere))
            synced = (maps @ moments @ maps.swapaxes(2, 3)).sum(1)
            moments = np.concatenate([p * synced[:, None], (1 - p) * moments[:, :-1]], 1)
        largest = max(largest, check(bounds, np.array(gaps)))
        for bound, m, values in zip(bounds, mu, np.array(gaps).T, strict=True):
            stated = replace(
                bound, rate=bound.lr * m
            )  # as printed, with the weights of the statement
            assert bound.printed is not None
            assert stated.average(values) <= bound.printed
    assert largest > 0.1


def test_catalyst_reaches_its_accuracy_in_the_planned_rounds() -> None:
    """Theorem 8 with p = 1: an inner round is z ← z − γ(G(z) + θ(z − z̄)), its result their weighted mean."""
    rng = np.random.default_rng(2)
    for _ in range(SETTINGS):
        q, mu = games(rng, 2)
        beta = smoothness(q, blocks=False)
        accuracy, c = float(10 ** rng.uniform(-6, -1)), rng.choice([None, 0.0, 1.0])
        for i in range(COUNT):
            known = Constants(mu=float(mu[i]), beta=float(beta[i]), D=float(np.linalg.norm(q.x[i])))
            plan = catalyst_plan(known, Settings(2), accuracy, c)
            m = q.mean[i] + plan.theta * np.eye(2)
            inner = np.eye(2) - plan.inner_lr * m
            prox = plan.theta * np.linalg.inv(m)
            # z^k − prox = inner^k (z̄ − prox), so the weighted mean is a geometric sum
            grown = inner / (1 - plan.inner_lr * (mu[i] + plan.theta) / 2)
            # Σ_{k ≤ K} inner^k w_k / Σ w_k, with w_k = (1 − γμ'/2)^{−k}
            weight = 1 / (1 - plan.inner_lr * (mu[i] + plan.theta) / 2)
            k = plan.inner_rounds + 1
            total = (weight**k - 1) / (weight - 1)
            power = np.linalg.matrix_power(grown, k)
            mean = np.linalg.solve(np.eye(2) - grown, np.eye(2) - power) / total
            once = prox + mean @ (np.eye(2) - prox)
            z = q.x[i]
            for _ in range(plan.centres):
                wanted = prox @ z
                z = once @ z
                assert ((z - wanted) ** 2).sum() <= plan.inner_accuracy * (1 + 1e-9)
            assert (z**2).sum() <= accuracy


def test_catalyst_with_inexact_centres() -> None:
    rng = np.random.default_rng(3)
    for _ in range(SETTINGS):
        q, mu = games(rng, 2)
        for i in range(COUNT):
            theta, centres = float(mu[i] * 10 ** rng.uniform(-1, 2)), int(rng.integers(1, 60))
            accuracy = float(10 ** rng.uniform(-8, 0))
            known = Constants(mu=float(mu[i]), D=float(np.linalg.norm(q.x[i])))
            prox = theta * np.linalg.inv(q.mean[i] + theta * np.eye(2))
            z = q.x[i]
            for _ in range(centres):
                away = rng.normal(size=2)
                z = prox @ z
                push = (
                    z if rng.random() < 0.5 and z.any() else away
                )  # half of the errors lead straight away
                z = z + np.sqrt(accuracy) * push / np.linalg.norm(push)
            bound = catalyst(known, Settings(2), centres, theta, accuracy)
            assert bound.holds
            assert (z**2).sum() <= bound.value * (1 + 1e-9)


def test_the_plan_meets_its_own_bound() -> None:
    known = Constants(mu=0.05, beta=2.0, D=3.0)
    for c in (None, 0.0, 2.0):
        plan = catalyst_plan(known, Settings(4, steps=5), 1e-3, c)
        bound = catalyst(known, Settings(4), plan.centres, plan.theta, plan.inner_accuracy)
        assert bound.value <= 1e-3 * (1 + 1e-9)
        assert plan.rounds == plan.centres * plan.inner_rounds
    assert catalyst_theta(known) == pytest.approx(1.95)
