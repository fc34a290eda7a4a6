"""The theorems of Das et al. 2022 (FedGLOMO) for smooth functions, convex or not, whose minima are not negative.

n, r: clients, clients per round     E: local steps     K: rounds     η: local step size     α: Assumption 4
q: relative variance of the compressor     L: smoothness of every f_i, `beta`     f(w_0): `f0`
"""

from __future__ import annotations

import math

from fairlead.theory.bound import Bound, Condition, Constants, Settings, total

PAPER = "Das et al. 2022"


def fedglomo(constants: Constants, settings: Settings, rounds: int) -> Bound:
    """Theorem 1: the mean of E‖∇f(w_k)‖² with η = 1/(6LE(KΛ)^{1/3}), from (20); `momentum(…)` is its β.

    What the proof needs is 8ηLE² ≤ 1 and β < 1. The printed range of E is not that: 8ηLE² grows with E, so it is
    no lower bound on E, and the upper one is far too strict (the paper's Figure 2 breaks it).

    >>> figure2 = Constants(beta=1.0, alpha=1.0, q=0.0, f0=1.0)
    >>> bound = fedglomo(figure2, Settings(clients=50, cohort=25, steps=10), rounds=300)
    >>> [round(c.left, 2) for c in bound.conditions[:2]], bound.holds
    ([0.08, 0.15], True)
    """
    smooth, alpha, q, f0 = constants.need("beta", "alpha", "q", "f0")
    n, r, e = settings.clients, settings.sampled, settings.steps
    spread = q / n + (1 + q) * _share(n, r)
    factor = (alpha + 4 / e) / n + 800 * math.e**2 * (1 + q) * (e + 1) ** 2 * spread
    stated = 1 / (6 * smooth * e * (rounds * factor) ** (1 / 3))
    lr = stated if settings.lr is None else settings.lr
    growth = 64 * (lr * smooth * e) ** 3 * rounds * factor
    terms = {
        "start": 4 * f0 / (lr * e * rounds),
        "drift and sampling": 512 * lr**2 * smooth**3 * e**2 * factor * f0,
    }
    return Bound(
        f"{PAPER}, Theorem 1 (FedGLOMO)", "mean_k E‖∇f(w_k)‖²", total(terms),
        (
            Condition("8ηLE² is at most 1", 8 * lr * smooth * e**2, 1.0),
            Condition("the momentum β is at most 1", _momentum(lr, smooth, e, q), 1.0),
            Condition("64η³L³E³KΛ is at most 1/2", growth, 0.5),
        ),
        lr, terms, 0.0,
        printed=39 * smooth * f0 * rounds ** (-2 / 3) * factor ** (1 / 3),
        note="all clients take part in round 0 (fl.AllFirst)",
    )  # fmt: skip


def momentum(constants: Constants, settings: Settings, rounds: int) -> float:
    """FedGLOMO's β = 160e²(1+q)η²L²E²(E+1)² for the step size of Theorem 1."""
    smooth, q = constants.need("beta", "q")
    lr = fedglomo(constants, settings, rounds).lr
    return _momentum(lr, smooth, settings.steps, q)


def _momentum(lr: float, smooth: float, e: int, q: float) -> float:
    return 160 * math.e**2 * (1 + q) * (lr * smooth * e * (e + 1)) ** 2


def _share(n: int, r: int) -> float:
    """(n−r)/(r(n−1)), 0 for a single client."""
    return (n - r) / (r * (n - 1)) if n > 1 else 0.0


def fedlomo(constants: Constants, settings: Settings, rounds: int) -> Bound:
    """Theorem 2: E‖∇f(w_k)‖² for k drawn with probability ∝ (1+ζ)^{−k}, from (100), with η = 1/(8LE√(BK)). Where
    B = 0 (all clients, no compression) η is that of FedGLOMO, whose rate it then has.

    The printed condition K > X/(64B³), X = (α + 4/E)/n, should have X², which matters where X > 1; here it is
    ζK ≤ 3/4 itself. 64√B·L·f(w_0)/√K is printed."""
    smooth, alpha, q, f0 = constants.need("beta", "alpha", "q", "f0")
    n, r, e = settings.clients, settings.sampled, settings.steps
    b = q / n + 4 * (1 + q) * _share(n, r)
    drift = (alpha + 4 / e) / n
    stated = (
        1 / (8 * smooth * e * math.sqrt(b * rounds))
        if b > 0
        else _slow(constants, settings, rounds)
    )
    lr = stated if settings.lr is None else settings.lr
    reach = lr * smooth * e
    zeta = 32 * reach**3 * drift + 16 * b * reach**2
    value = 2 * f0 / (lr * e) * zeta / -math.expm1(-rounds * math.log1p(zeta))
    return Bound(
        f"{PAPER}, Theorem 2 (FedLOMO)", "E‖∇f(w_k)‖², k ∝ (1+ζ)^(−k)", value,
        (
            Condition("ηLE is at most 1/4", reach, 0.25),
            Condition("ζK is at most 3/4", zeta * rounds, 0.75),
        ),
        lr, rate=-zeta,
        printed=64 * math.sqrt(b) * smooth * f0 / math.sqrt(rounds) if b > 0 else None,
    )  # fmt: skip


def _slow(constants: Constants, settings: Settings, rounds: int) -> float:
    return fedglomo(constants, Settings(settings.clients, settings.steps), rounds).lr


def fedavg_alpha(constants: Constants, settings: Settings, rounds: int) -> Bound:
    """Theorem 3: FedAvg without bounded dissimilarity, E‖∇f(w_k)‖² for k drawn with probability ∝ (1+ζ)^{−k}.

    Lemma 13 prints (n−r)/(6r(n−1)) where Lemma 15 gives 8 times as much, and (114) forgets the 2 of
    ‖∇f_i‖² ≤ 2Lf_i: with a = 4(n−r)/(3r(n−1)) + 4α/(9n) the growth is ζ = 2η²L²E²a, and η = 1/(LE√(6aK)).
    `printed` is (119) with the step size printed there."""
    smooth, alpha, sigma, f0 = constants.need("beta", "alpha", "sigma", "f0")
    n, r, e = settings.clients, settings.sampled, settings.steps
    share = _share(n, r)
    a, a_printed = 4 / 3 * share + 4 * alpha / (9 * n), share / 6 + 4 * alpha / (9 * n)
    stated = 1 / math.sqrt(6 * a * rounds) if a > 0 else 0.5
    lr = min(stated, 0.5) / (smooth * e) if settings.lr is None else settings.lr
    reach = lr * smooth * e
    zeta = 2 * reach**2 * a
    grown = zeta / -math.expm1(-rounds * math.log1p(zeta)) if zeta > 0 else 1 / rounds
    terms = {
        "start": 2 * f0 / (lr * e) * grown,
        "noise": reach * (1 / (r * e) + share / 3) * sigma**2,
        "noise drift": reach**2 / n * (1 / e + 8 * alpha / 9) * sigma**2,
    }
    printed = None
    if a_printed > 0:
        root = math.sqrt(3 * a_printed * rounds)
        printed = 3 * smooth * f0 * root / rounds + (1 / (r * e) + share / 3) * sigma**2 / root
        printed += (1 / e + 8 * alpha / 9) * sigma**2 / root**2
    return Bound(
        f"{PAPER}, Theorem 3 (FedAvg)", "E‖∇f(w_k)‖², k ∝ (1+ζ)^(−k)", total(terms),
        (
            Condition("ηLE is at most 1/2", reach, 0.5),
            Condition("the server's step is 1", abs(settings.server_lr - 1), 0.0),
        ),
        lr, terms, -zeta, printed=printed,
    )  # fmt: skip
