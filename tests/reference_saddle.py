"""The saddle-point methods as their texts read: numpy, float64, a function for one round of each.

Nothing here is shared with the library. z = (x, y), client i holds G_i(z) = (∇x f_i, −∇y f_i), S is
the set of clients of a round that answered, mean(v) the weighted mean over S, and γ_k the step size
of the round's k-th step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float64]
Batch: TypeAlias = Sequence[int]


class Oracle(Protocol):
    """A client: `a` holds one row a sample."""

    a: Vector

    def grad(self, x: Vector, idx: Batch) -> Vector: ...

    def full_grad(self, x: Vector) -> Vector: ...


class Game:
    """f_i is the mean over samples of ½x'Ax + x'By − ½y'Cy + p'x − q'y + sin(p'x + q'y)."""

    def __init__(self, a: Vector, b: Vector, c: Vector, p: Vector, q: Vector) -> None:
        self.a, self.b, self.c, self.p, self.q = a, b, c, p, q

    def grad(self, x: Vector, idx: Batch) -> Vector:
        """The mapping on the samples `idx`."""
        a, b, c, p, q = (t[list(idx)] for t in (self.a, self.b, self.c, self.p, self.q))
        x, y = np.split(x, [p.shape[1]])
        wave = np.cos(p @ x + q @ y)[:, None]
        by_x = (a + a.transpose(0, 2, 1)) @ x / 2 + b @ y + p + wave * p
        by_y = b.transpose(0, 2, 1) @ x - (c + c.transpose(0, 2, 1)) @ y / 2 - q + wave * q
        return np.concatenate([by_x, -by_y], 1).mean(0)

    def full_grad(self, x: Vector) -> Vector:
        """G_i(z)."""
        return self.grad(x, range(len(self.a)))


class Held:
    """f_i + θ/2 ‖x − x̄‖² − θ/2 ‖y − ȳ‖², (14) of the paper: its mapping is G_i(z) + θ(z − z̄)."""

    def __init__(self, f: Oracle, theta: float, centre: Vector) -> None:
        self.f, self.a, self.theta, self.centre = f, f.a, theta, centre

    def grad(self, x: Vector, idx: Batch) -> Vector:
        return self.f.grad(x, idx) + self.theta * (x - self.centre)

    def full_grad(self, x: Vector) -> Vector:
        return self.f.full_grad(x) + self.theta * (x - self.centre)


@dataclass(frozen=True)
class Round:
    """One round with its answering clients, by number."""

    clients: Mapping[int, Oracle]
    batches: Mapping[int, Sequence[Batch]]
    gamma: Sequence[float]
    p: Vector
    """The weights of all clients; they sum to one."""
    server_lr: float = 1.0
    """γ_g/γ_l."""

    def mean(self, vectors: Mapping[int, Vector]) -> Vector:
        weights = np.array([self.p[i] for i in vectors])
        return weights @ np.array(list(vectors.values())) / weights.sum()

    def steps(self, i: int) -> Iterator[tuple[float, Batch]]:
        return zip(self.gamma, self.batches[i], strict=False)


Method: TypeAlias = Callable[[Vector, Round], Vector]


@dataclass(frozen=True)
class Plan:
    """Everything random about a run, given."""

    clients: Sequence[Oracle]
    cohorts: Sequence[Sequence[int]]
    lost: Sequence[Sequence[int]]
    """The clients of each round that do not answer: they do nothing, and keep their state."""
    batches: Mapping[tuple[int, int], Sequence[Batch]]
    """The batches of (round, client), one a local step."""
    gamma: Callable[[int], float]
    per_step: bool = False
    """Whether γ is a function of the step counted over all rounds, not of the round."""
    by_size: bool = False
    server_lr: Callable[[int], float] = lambda r: 1.0

    def rounds(self) -> Iterator[Round]:
        """Rounds in which somebody answers; the others change nothing, and count no steps."""
        raw = np.array([len(f.a) if self.by_size else 1.0 for f in self.clients])
        done = 0
        for r, (cohort, lost) in enumerate(zip(self.cohorts, self.lost, strict=True)):
            s = [i for i in cohort if i not in lost]
            if not s:
                continue
            batches = {i: self.batches[r, i] for i in s}
            longest = max(len(b) for b in batches.values())
            gamma = [self.gamma(done + k if self.per_step else r) for k in range(longest)]
            clients = {i: self.clients[i] for i in s}
            yield Round(clients, batches, gamma, raw / raw.sum(), self.server_lr(r))
            done += longest


def run(z: Vector, plan: Plan, method: Method) -> Vector:
    for now in plan.rounds():
        z = method(z, now)
    return z


def catalyst(
    z: Vector, plan: Plan, method: Method, theta: float, inner: int, extrapolation: float = 0.0
) -> Vector:
    """Algorithm 3: `inner` rounds on (14), then z̄ ← z, or z + β(z − the z before these rounds)."""
    centre = last = z
    for t, now in enumerate(plan.rounds(), 1):
        held = {i: Held(f, theta, centre) for i, f in now.clients.items()}
        z = method(z, replace(now, clients=held))
        if t % inner == 0:
            centre, last = z + extrapolation * (z - last), z
    return z


def mirror_descent(z: Vector, now: Round, total: bool = False, at: Vector | None = None) -> Vector:
    """Section 4.1: every client's mappings at one point, averaged or, as (8) has it, summed."""
    point = z if at is None else at
    moves = {}
    for i, f in now.clients.items():
        taken = [gamma * f.grad(point, idx) for gamma, idx in now.steps(i)]
        moves[i] = np.sum(taken, 0) if total else np.mean(taken, 0)
    return z - now.mean(moves)


def mirror_prox(z: Vector, now: Round, total: bool = False) -> Vector:
    """Section 4.2: z_½ by mirror descent, then the step from z with the mappings at z_½."""
    return mirror_descent(z, now, total, at=mirror_descent(z, now, total))


def fedavg_s(z: Vector, now: Round) -> Vector:
    """Algorithm 4: z_i ← z_i − γ_k Ĝ_i(z_i)."""
    ends = {}
    for i, f in now.clients.items():
        z_i = z
        for gamma, idx in now.steps(i):
            z_i = z_i - gamma * f.grad(z_i, idx)
        ends[i] = z_i
    return now.mean(ends)


def extra_step(z: Vector, now: Round) -> Vector:
    """Appendix A: FedAvg-S with local mirror-prox steps."""
    ends = {}
    for i, f in now.clients.items():
        z_i = z
        for gamma, idx in now.steps(i):
            half = z_i - gamma * f.grad(z_i, idx)
            z_i = z_i - gamma * f.grad(half, idx)
        ends[i] = z_i
    return now.mean(ends)


def scaffold_s(z: Vector, now: Round) -> Vector:
    """Algorithm 2 from one synchronization to the next: the anchor z̃ is the round's start."""
    anchor = now.mean({i: f.full_grad(z) for i, f in now.clients.items()})
    moves = {}
    for i, f in now.clients.items():
        z_i, moves[i] = z, np.zeros_like(z)
        for gamma, idx in now.steps(i):
            g = f.grad(z_i, idx) - f.grad(z, idx) + anchor
            z_i = z_i - gamma * g
            moves[i] = moves[i] + now.server_lr * gamma * g
    return z - now.mean(moves)


class Scaffold:
    """SCAFFOLD with option II, whose control variates live on from round to round."""

    def __init__(self, clients: int, dim: int) -> None:
        self.c_i, self.c = np.zeros((clients, dim)), np.zeros(dim)

    def __call__(self, x: Vector, now: Round) -> Vector:
        ends, new = {}, {}
        for i, f in now.clients.items():
            y, applied = x, 0.0
            for gamma, idx in now.steps(i):
                y = y - gamma * (f.grad(y, idx) - self.c_i[i] + self.c)
                applied += gamma
            ends[i], new[i] = y, self.c_i[i] - self.c + (x - y) / applied
        for i, c in new.items():
            self.c_i[i] = c
        self.c = now.p @ self.c_i
        return now.mean(ends)
