"""The theorems of Karimireddy et al. 2020 (SCAFFOLD): FedAvg from above and below, SCAFFOLD, and local steps
on quadratics. Bounds are unrolled from the one-round lemmas.

η̃ = K·η_l·η_g     W = Σ_{r=1}^{R+1} (1 − μη̃/2)^{1−r}     D = ‖x⁰ − x*‖     x̄: x^{r−1}, r = 1 … R+1, drawn
with probability (1 − μη̃/2)^{1−r}/W (by convexity also the mean with these weights)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fairlead.errors import FairleadError, positive
from fairlead.theory.bound import Bound, Condition, Constants, Settings, inverse_weight, total

PAPER = "Karimireddy et al. 2020"


def fedavg(constants: Constants, settings: Settings, rounds: int) -> Bound:
    """Theorem V, convex: FedAvg on clients with dissimilarity (G, B) in the convex form (14).

    Unrolled from "Adding the statements of Lemmas 7 and 8". The paper's closed form 3μD²·exp(−μη̃R/2) +
    η̃(2σ² …, 8G² …) + 36βη̃²G² is too small by 3/2 throughout: 4.5, 3, 12 and 54 follow, for R ≥ 1/(μη̃).

    >>> known = Constants(mu=0.1, beta=1.0, sigma=0.0, G=1.0, B=1.5, D=2.0)
    >>> bound = fedavg(known, Settings(clients=10, steps=5), rounds=1000)
    >>> bound.holds, round(bound.value, 3)
    (True, 0.182)
    """
    mu, beta, sigma, g, b, d = constants.need("mu", "beta", "sigma", "G", "B", "D")
    s, n, k, up = settings.sampled, settings.clients, settings.steps, settings.server_lr
    largest = 1 / (8 * (1 + b * b) * beta)
    lr, step = settings.effective(largest)
    noise = sigma**2 / (k * s) * (1 + s / up**2)
    sampling, drift = 4 * g * g / s * (1 - s / n), 18 * beta * step * g * g
    terms = {
        "start": 3 * d * d / step * inverse_weight(mu * step / 2, rounds + 1),
        "noise": 3 * step * noise,
        "sampling": 3 * step * sampling,
        "drift": 3 * step * drift,
    }
    closed = 3 * mu * d * d * math.exp(-step * mu * rounds / 2)
    return Bound(
        f"{PAPER}, Theorem V", "E f(x̄) − f*", total(terms),
        (
            Condition("the server's step η_g is at least 1", 1.0, up),
            Condition("B is at least 1", 1.0, b),
            Condition("η̃ is at most 1/(8(1+B²)β)", step, largest),
        ),
        lr, terms, mu * step / 2,
        printed=closed + step * 2 * (noise + sampling + drift) if mu > 0 else None,
        note=f"the closed form needs R ≥ 1/(μη̃) = {1 / (mu * step):.3g}" if mu > 0 else "",
    )  # fmt: skip


LOWER = (1 - math.exp(-1 / 8)) / 32
"""c of Theorem VI, about 1/272: the constant that the proof of Lemma 9 gives."""


def fedavg_lower(constants: Constants, settings: Settings, rounds: int) -> Bound:
    """Theorem VI: on the pair f_1 = μx² + Gx, f_2 = −Gx from x⁰ = D, no step sizes η_r ≤ 1/μ bring FedAvg with
    K ≥ 2 local steps below this error (`fl.problems.theorem2` is the pair, with G as `gradient`).

    The paper leaves c open: its proof gives x^R ≥ min(x⁰/2, cG/(μR)) with c = (1 − e^(−1/8))/32.
    """
    mu, g, d = constants.need("mu", "G", "D")
    positive("mu", mu)
    lr = 1 / mu if settings.lr is None else settings.lr
    least = min(d / 2, LOWER * g / (mu * rounds))
    return Bound(
        f"{PAPER}, Theorem VI", "f(x^R) − f*", mu / 2 * least**2,
        (
            Condition("the server's step η_g is 1", abs(settings.server_lr - 1), 0.0),
            Condition("there are at least 2 local steps", 2.0, settings.steps),
            Condition("the step η is at most 1/μ", lr, 1 / mu),
            Condition("all clients take part", settings.clients, settings.sampled),
        ),
        lr, lower=True,
    )  # fmt: skip


def best_steps(
    mu: float, gradient: float, start: float, steps: int, rounds: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The step sizes η_r ≤ 1/μ that bring FedAvg closest to the optimum of Theorem VI's pair, and the points x^r.

    x^r grows with x^{r−1} ≥ 0, so the best step of every round is the best sequence.

    >>> lr, x = best_steps(mu=1.0, gradient=10.0, start=1.0, steps=10, rounds=100)
    >>> bool(0 < x[-1] < x[0] <= 1.0)
    True
    """
    if steps < 2 or mu <= 0 or start < 0:
        raise FairleadError(
            f"steps is {steps}, mu {mu} and start {start}: they need steps ≥ 2, mu > 0 and start ≥ 0"
        )

    def after(x: float, lr: NDArray[np.float64]) -> NDArray[np.float64]:
        shrunk = (1 - 2 * mu * lr[:, None]) ** np.arange(steps + 1)
        drift = lr / 2 * gradient * (1 - shrunk[:, :steps]).sum(1)
        return x * (shrunk[:, steps] + 1) / 2 + drift

    x, points, sizes, found = start, [], [], 1 / mu
    for _ in range(rounds):
        grid = np.unique(np.r_[np.geomspace(1e-12, 1, 400), np.linspace(0.01, 1, 400)]) / mu
        for _ in range(8):
            at = int(np.argmin(after(x, grid)))
            found = float(grid[at])
            grid = np.linspace(grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)], 41)
        x = float(after(x, np.array([found]))[0])
        points.append(x)
        sizes.append(found)
    return np.array(sizes), np.array(points)


def scaffold(constants: Constants, settings: Settings, rounds: int) -> Bound:
    """Theorem VII, convex: SCAFFOLD with option II, unrolled from Lemma 13."""
    mu, beta, sigma, d, c0 = constants.need("mu", "beta", "sigma", "D", "C0")
    s, n, k, up = settings.sampled, settings.clients, settings.steps, settings.server_lr
    by_sampling = s / (15 * mu * n) if mu > 0 else math.inf
    lr, step = settings.effective(min(1 / (81 * beta), by_sampling))
    weight = inverse_weight(mu * step / 2, rounds + 1) / step
    terms = {
        "start": d * d * weight,
        "controls": 9 * n * step**2 * c0 / s * weight,
        "noise": 12 * step * sigma**2 / (k * s) * (1 + s / up**2),
    }
    return Bound(
        f"{PAPER}, Theorem VII (convex)", "E f(x̄) − f*", total(terms),
        (
            Condition("the server's step η_g is at least 1", 1.0, up),
            Condition("η̃ is at most 1/(81β)", step, 1 / (81 * beta)),
            Condition("η̃ is at most S/(15μN)", step, by_sampling),
        ),
        lr, terms, mu * step / 2,
    )  # fmt: skip


def scaffold_nonconvex(constants: Constants, settings: Settings, rounds: int) -> Bound:
    """Theorem VII, non-convex: the mean of E‖∇f(x^{r−1})‖² over rounds, unrolled from Lemma 17.

    For a warm start, c_i = ∇f_i(x⁰): with other controls Ξ_0 is not defined, as its proof needs every c_i to be
    a gradient of f_i at some points."""
    beta, sigma, f = constants.need("beta", "sigma", "F")
    s, n, k, up = settings.sampled, settings.clients, settings.steps, settings.server_lr
    largest = (s / n) ** (2 / 3) / (24 * beta)
    lr, step = settings.effective(largest)
    terms = {
        "start": 14 * f / (step * rounds),
        "noise": 70 * beta * step * sigma**2 / (k * s) * (1 + s / up**2),
    }
    return Bound(
        f"{PAPER}, Theorem VII (non-convex)", "mean_r E‖∇f(x^{r−1})‖²", total(terms),
        (
            Condition("the server's step η_g is at least 1", 1.0, up),
            Condition("η̃ is at most (S/N)^(2/3)/(24β)", step, largest),
        ),
        lr, terms, 0.0, note="for a warm start, c_i = ∇f_i(x⁰)",
    )  # fmt: skip


def scaffold_quadratics(constants: Constants, settings: Settings, rounds: int) -> Bound:
    """Theorem VIII, strongly convex, without noise: SCAFFOLD's update (28), `fl.ScaffoldS` on a minimization task,
    on quadratics with Hessian dissimilarity δ; the step size is min(1/(10β), 1/(22δK), 1/(10μK)).

    From Lemmas 19 and 22: every local step multiplies the potential by 1 − μη/6, so f(x^R) − f* ≤
    F·(1 − μη/6)^(KR). The paper's display exp(−μRK/(20β + 44δK + 20μK)) has 1 − μη/2 instead."""
    mu, beta, delta, f = constants.need("mu", "beta", "delta", "F")
    k = settings.steps
    limits = {"1/(10β)": 1 / (10 * beta), "1/(10μK)": 1 / (10 * mu * k) if mu > 0 else math.inf}
    limits["1/(22δK)"] = 1 / (22 * delta * k) if delta > 0 else math.inf
    lr = min(limits.values()) if settings.lr is None else settings.lr
    value = f * math.exp(k * rounds * math.log1p(-mu * lr / 6))
    steps = tuple(Condition(f"η is at most {name}", lr, most) for name, most in limits.items())
    return Bound(
        f"{PAPER}, Theorem VIII", "f(x^R) − f*", value,
        (
            *steps,
            Condition("the server's step η_g is 1", abs(settings.server_lr - 1), 0.0),
            Condition("all clients take part", settings.clients, settings.sampled),
            Condition("gradients have no noise", constants.sigma or 0.0, 0.0),
        ),
        lr, printed=f * quadratics_rate(constants, settings) ** rounds,
    )  # fmt: skip


def quadratics_rate(constants: Constants, settings: Settings) -> float:
    """exp(−μK/(20β + 44δK + 20μK)): the factor by which a round reduces the error in Theorem VIII's display."""
    mu, beta, delta = constants.need("mu", "beta", "delta")
    k = settings.steps
    return math.exp(-mu * k / (20 * beta + 44 * delta * k + 20 * mu * k))


def best_local_steps(constants: Constants) -> float:
    """K* = β/δ: more local steps than that no longer reduce the number of rounds (section 6).

    >>> best_local_steps(Constants(beta=1.0, delta=0.05))
    20.0
    """
    beta, delta = constants.need("beta", "delta")
    return beta / delta if delta > 0 else math.inf


def speed_up(constants: Constants, steps: int) -> float:
    """How many times fewer rounds K local steps need than large-batch SGD, by (β/μ) ÷ ((β + δK)/(μK)); at most
    min(K, β/δ).

    >>> speed_up(Constants(beta=1.0, delta=0.05), steps=20)
    10.0
    """
    beta, delta = constants.need("beta", "delta")
    return beta * steps / (beta + delta * steps)
