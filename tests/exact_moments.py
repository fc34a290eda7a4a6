"""Expected errors of federated methods on quadratics, exactly: on f_i = ½x'A_i x − b_i'x a round is an affine
map of the server's and clients' vectors, so E[s s'] of the state s = (vectors, 1) follows a linear recursion,
also over the choice of clients, the noise of gradients and a compressor. No method's code is used here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Quadratics:
    """P problems of N clients in d dimensions; the optimum of every mean is 0."""

    a: Array  # (P, N, d, d)
    b: Array  # (P, N, d), mean zero
    x: Array  # (P, d), the start

    @property
    def mean(self) -> Array:
        return self.a.mean(1)

    @property
    def beta(self) -> Array:
        return np.abs(np.linalg.eigvalsh(self.a)).max((1, 2))

    @property
    def mu(self) -> Array:
        return np.linalg.eigvalsh(self.a).min((1, 2))

    @property
    def delta(self) -> Array:
        return np.abs(np.linalg.eigvalsh(self.a - self.mean[:, None])).max((1, 2))

    def excess(self, x: Array) -> Array:
        """f(x) − f*."""
        return 0.5 * np.einsum("pi,pij,pj->p", x, self.mean, x)


def random_quadratics(
    rng: np.random.Generator, problems: int, clients: int, dim: int = 2, convex: bool = True
) -> Quadratics:
    """Random sizes, condition numbers and dissimilarities; without `convex` clients may curve downwards while
    their mean does not."""
    scale = 10 ** rng.uniform(-1, 1, (problems, 1, 1, 1))
    least = 10 ** rng.uniform(-2, 0, (problems, 1, 1))
    spectrum = least + (1 - least) * rng.random((problems, clients, dim))
    q = np.linalg.qr(rng.normal(size=(problems, clients, dim, dim)))[0]
    q = np.where(rng.random((problems, 1, 1, 1)) < 0.5, q, q[:, :1])  # half share their axes
    a = np.einsum("pnij,pnj,pnkj->pnik", q, spectrum, q)
    if not convex:
        away = rng.normal(size=a.shape)
        away = away + away.swapaxes(-1, -2)
        a = a + rng.uniform(0, 1, (problems, 1, 1, 1)) * (away - away.mean(1, keepdims=True))
    b = rng.normal(size=(problems, clients, dim)) * 10 ** rng.uniform(-2, 1, (problems, 1, 1))
    x = rng.normal(size=(problems, dim)) * 10 ** rng.uniform(-1, 1, (problems, 1))
    return Quadratics(a * scale, b - b.mean(1, keepdims=True), x)


@dataclass
class Step:
    """One possible round: s ← map·s + noise, plus maps that enter with independent factors of mean zero."""

    map: Array
    noise: Array
    factors: list[Array] = field(default_factory=list)
    weight: float = 1.0


def second_moments(start: Array, steps: list[Step], rounds: int) -> Iterator[Array]:
    """E[s s'] after 0, 1, … rounds, one of `steps` at random in each."""
    total = sum(step.weight for step in steps)
    moments = np.einsum("pi,pj->pij", start, start)
    for _ in range(rounds):
        yield moments
        after = np.zeros_like(moments)
        for step in steps:
            for one in (step.map, *step.factors):
                after += step.weight / total * (one @ moments @ one.swapaxes(1, 2))
            after += step.weight / total * step.noise
        moments = after
    yield moments


class Columns:
    """The identity's columns, which local programs transform as they would the state's vectors, and further ones
    for each coordinate of noise."""

    def __init__(self, q: Quadratics, vectors: int, sigma: Array, draws: int) -> None:
        self.q, self.sigma, self.d = q, sigma, q.x.shape[1]
        self.problems, self.size = len(q.x), vectors * self.d + 1
        self.width, self.used = self.size + draws * self.d, 0
        eye = np.broadcast_to(np.eye(self.size, self.width), (self.problems, self.size, self.width))
        self.vectors = [eye[:, k * self.d : (k + 1) * self.d] for k in range(vectors)]
        self.one = eye[:, -1:]

    def grad(self, client: int, y: Array, noisy: bool = True) -> Array:
        g = self.q.a[:, client] @ y - self.q.b[:, client, :, None] * self.one
        if noisy and self.sigma.any():
            first = self.size + self.used * self.d
            self.used += 1
            spread = np.eye(self.d, self.width, first) / np.sqrt(self.d)
            g = g + self.sigma[:, None, None] * spread
        return g

    def step(self, *vectors: Array) -> Step:
        """The round whose results these are."""
        after = np.concatenate([*vectors, self.one], 1)
        made = after[:, :, self.size :]
        return Step(after[:, :, : self.size], made @ made.swapaxes(1, 2))


def state(*vectors: Array) -> Array:
    return np.concatenate([*vectors, np.ones((len(vectors[0]), 1))], 1)


def cohorts(clients: int, size: int) -> list[tuple[int, ...]]:
    return list(combinations(range(clients), size))


def excess_of(q: Quadratics, moments: Array) -> Array:
    """E f(x) − f* from the moments of a state that begins with x."""
    d = q.x.shape[1]
    return 0.5 * np.einsum("pij,pij->p", q.mean, moments[:, :d, :d])


def squared_gradient_of(q: Quadratics, moments: Array) -> Array:
    """E‖∇f(x)‖² from the moments of a state that begins with x."""
    d = q.x.shape[1]
    return np.einsum("pij,pij->p", q.mean @ q.mean, moments[:, :d, :d])


def fedavg_rounds(
    q: Quadratics, lr: Array, k: int, cohort: int, server_lr: float, sigma: Array
) -> tuple[Array, list[Step]]:
    """The start of FedAvg's state (x, 1) and its possible rounds."""
    n, steps = q.a.shape[1], []
    for chosen in cohorts(n, cohort):
        c = Columns(q, 1, sigma, k * cohort)
        (x,) = c.vectors
        moves = [_local(c, i, x, lr, k, lambda i, y, c=c: c.grad(i, y)) - x for i in chosen]
        steps.append(c.step(x + server_lr * sum(moves) / cohort))
    return state(q.x), steps


def _local(
    c: Columns, client: int, x: Array, lr: Array, k: int, grad: Callable[[int, Array], Array]
) -> Array:
    y = x
    for _ in range(k):
        y = y - lr[:, None, None] * grad(client, y)
    return y


def scaffold_rounds(
    q: Quadratics,
    lr: Array,
    k: int,
    cohort: int,
    server_lr: float,
    sigma: Array,
    mask: Array | None = None,
    warm: bool = False,
) -> tuple[Array, list[Step]]:
    """SCAFFOLD with option II, or FedPVR with controls on a mask: the state is (x, c_1, …, c_N, 1)."""
    n, d = q.a.shape[1], q.x.shape[1]
    part = np.ones(d)[:, None] if mask is None else mask[:, None]
    steps = []
    for chosen in cohorts(n, cohort):
        c = Columns(q, n + 1, sigma, k * cohort)
        x, *own = c.vectors
        mean = sum(own) / n
        moved, after = [], list(own)
        for i in chosen:
            y = _local(c, i, x, lr, k, lambda i, y, c=c, own=own, m=mean: c.grad(i, y) - own[i] + m)
            after[i] = own[i] - mean + part * (x - y) / (k * lr[:, None, None])
            moved.append(y - x)
        steps.append(c.step(x + server_lr * sum(moved) / cohort, *after))
    first = np.einsum("pnij,pj->pni", q.a, q.x) - q.b if warm else np.zeros_like(q.b)
    return state(q.x, *(first[:, i] * part[:, 0] for i in range(n))), steps


def glomo_rounds(
    q: Quadratics, lr: Array, e: int, cohort: int, momentum: Array, noise: float
) -> tuple[Array, list[Step]]:
    """FedGLOMO with full gradients after its round 0, with momentum 1 FedLOMO: the state is (w_k, w_{k−1}, u, 1).
    The compressor multiplies by 1 + √q·(±1), which is unbiased with relative variance q."""
    n, steps = q.a.shape[1], []
    beta = momentum[:, None, None]
    for chosen in cohorts(n, cohort):
        c = Columns(q, 3, np.zeros(len(q.x)), 0)
        w, before, u = c.vectors

        def travelled(i: int, x: Array, c: Columns = c) -> Array:
            return x - _local(c, i, x, lr, e, lambda i, y: c.grad(i, y))

        a = [travelled(i, w) for i in chosen]
        change = [one - travelled(i, before) for i, one in zip(chosen, a, strict=True)]
        mixed = [beta * one + (1 - beta) * two for one, two in zip(a, change, strict=True)]
        u_after = (1 - beta) * u + sum(mixed) / cohort
        step = c.step(w - u_after, w, u_after)
        for sent in [*(beta * one for one in a), *((1 - beta) * two for two in change)]:
            part = np.sqrt(noise) / cohort * sent
            rows = np.concatenate([-part, 0 * part, part, 0 * c.one], 1)
            step.factors.append(rows[:, :, : c.size])
        steps.append(step)
    return state(q.x, q.x, 0 * q.x), steps


def first_round_of_all(q: Quadratics, lr: Array, e: int) -> Array:
    """FedGLOMO's state after a round 0 with all clients and no compression."""
    x, moved = q.x, []
    for i in range(q.a.shape[1]):
        y = x
        for _ in range(e):
            y = y - lr[:, None] * (np.einsum("pij,pj->pi", q.a[:, i], y) - q.b[:, i])
        moved.append(x - y)
    u = sum(moved) / len(moved)
    return state(x - u, x, u)
