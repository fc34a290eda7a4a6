"""The theorems of Hou et al. 2021 on federated saddle points: FedAvg-S, SCAFFOLD-S and SCAFFOLD-Catalyst-S.

γ: step size     p: probability of synchronizing after a step, so K = rounds/p steps     ζ: max_ij‖G_i − G_j‖
W = Σ_{k=0}^{K} (1 − cγμ)^{1−k}     z̄: the mean of z^0 … z^K with these weights
Gap(z) = f(x, y*) − f(x*, y)     β: every G_i is β-Lipschitz
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlead.errors import positive
from fairlead.theory.bound import Bound, Condition, Constants, Settings, inverse_weight, total

PAPER = "Hou et al. 2021"


def fedavg_s(constants: Constants, settings: Settings, rounds: float) -> Bound:
    """Theorem 4: FedAvg-S, γ_l = γ_g = γ ≤ μ/(4β²)."""
    return _unscaled(constants, settings, rounds, "Theorem 4 (FedAvg-S)", 4)


def scaffold_s_similar(constants: Constants, settings: Settings, rounds: float) -> Bound:
    """Theorem 7: SCAFFOLD-S with γ_l = γ_g = γ ≤ μ/(4β²), for similar clients."""
    return _unscaled(constants, settings, rounds, "Theorem 7 (SCAFFOLD-S)", 9)


def _unscaled(
    constants: Constants, settings: Settings, rounds: float, theorem: str, c: int
) -> Bound:
    """(32). Its proof puts γ²β² for 2γ²β² in (28), which leaves no contraction at γ = μ/(4β²); with 3 for the α of
    Lemma 2 and ‖a + b‖² ≤ (5/2)‖a‖² + (5/3)‖b‖² in Lemma 4 the same bound follows."""
    mu, beta, sigma, zeta, d = constants.need("mu", "beta", "sigma", "zeta_pair", "D")
    positive("mu", mu)
    p, n = settings.p, settings.clients
    largest = mu / (4 * beta**2)
    lr = largest if settings.lr is None else settings.lr
    rate = lr * mu / 4
    weight = inverse_weight(rate, _steps(rounds, p) + 1) / (1 - rate)
    drift = 2 * beta**2 * lr**2 / mu
    terms = {
        "start": d * d / (2 * lr) * weight,
        "noise": lr * sigma**2 / (2 * n),
        "drift": drift * 4 * c * zeta**2 / p**2,
        "noise drift": drift * 2 * sigma**2 / p,
    }
    return Bound(
        f"{PAPER}, {theorem}", "E Gap(z̄)", total(terms),
        (
            Condition("γ is at most μ/(4β²)", lr, largest),
            Condition("γ_g equals γ_l", abs(settings.server_lr - 1), 0.0),
            Condition("all clients take part", n, settings.sampled),
        ),
        lr, terms, rate,
    )  # fmt: skip


def scaffold_s_anchor(constants: Constants, settings: Settings, rounds: float) -> Bound:
    """Theorem 5: SCAFFOLD-S with γ_l = 0 and γ_g = pμ/(4β²): clients sum their mappings at the anchor,
    `fl.MirrorDescent(total=True)`. `lr` is γ_g.

    (45) and (47) print exp(−γ_g·μ·K), but the weights of (44) are (1 − γ_g·μ/2)^{1−k}: the exponent is half of it.
    (41) puts (Eτ)² for Eτ² ≤ 2/p²; (42) is right again."""
    mu, beta, d = constants.need("mu", "beta", "D")
    positive("mu", mu)
    p = settings.p
    lr = p * mu / (4 * beta**2)
    steps = _steps(rounds, p)
    exponent = p * mu**2 * steps / (8 * beta**2)
    start = 2 * beta**2 * d * d / (p * mu)
    used = lr if settings.lr is None else settings.lr
    return Bound(
        f"{PAPER}, Theorem 5 (SCAFFOLD-S, γ_l = 0)", "E Gap(z̄)", start * math.exp(-exponent),
        (
            Condition("γ_g equals pμ/(4β²)", abs(used / lr - 1), 1e-9),
            Condition("all clients take part", settings.clients, settings.sampled),
            Condition("mappings have no noise", constants.sigma or 0.0, 0.0),
        ),
        lr, rate=lr * mu / 2, printed=start * math.exp(-2 * exponent),
    )  # fmt: skip


def scaffold_s(constants: Constants, settings: Settings, rounds: float) -> Bound:
    """Theorem 6: SCAFFOLD-S with γ_l = γ_g = γ ≤ pμ/(80β²), for any clients: (66)."""
    mu, beta, sigma, d, sigma0 = constants.need("mu", "beta", "sigma", "D", "sigma0")
    positive("mu", mu)
    p, n = settings.p, settings.clients
    largest = p * mu / (80 * beta**2)
    lr = largest if settings.lr is None else settings.lr
    h = 64 * (1 - p) * (2 + p) * (8 + p) / (12 * p**3)
    decay = math.exp(-lr * mu * _steps(rounds, p) / 8)
    terms = {
        "start": d * d / (2 * lr) * decay,
        "controls": 2 * beta**2 / mu * h * lr**2 * sigma0 * decay,
        "noise": lr * sigma**2 / (2 * n),
        "noise drift": 8 * beta**2 * sigma**2 * lr**2 / (p * mu),
    }
    return Bound(
        f"{PAPER}, Theorem 6 (SCAFFOLD-S)", "E Gap(z̄)", total(terms),
        (
            Condition("γ is at most pμ/(80β²)", lr, largest),
            Condition("γ_g equals γ_l", abs(settings.server_lr - 1), 0.0),
            Condition("all clients take part", n, settings.sampled),
        ),
        lr, terms, lr * mu / 8,
    )  # fmt: skip


def _steps(rounds: float, p: float) -> int:
    return round(rounds / p)


@dataclass(frozen=True)
class CatalystPlan:
    """How Theorems 8 to 10 run Catalyst to reach E‖z − z*‖² ≤ ε.

    theta: θ     centres: meta-iterations T     inner_accuracy: E‖z̄^{t+1} − prox(z̄^t)‖² of each
    inner_rounds: rounds of SCAFFOLD-S with Theorem 5's steps for it     inner_lr: γ_g of these
    """

    theta: float
    centres: int
    inner_accuracy: float
    inner_rounds: int
    inner_lr: float

    @property
    def rounds(self) -> int:
        """All rounds together."""
        return self.centres * self.inner_rounds


def catalyst_theta(constants: Constants) -> float:
    """θ = β − μ of Theorems 8 and 9, for clients of any dissimilarity.

    >>> catalyst_theta(Constants(mu=0.25, beta=1.0))
    0.75
    """
    mu, beta = constants.need("mu", "beta")
    return beta - mu


def catalyst_plan(
    constants: Constants, settings: Settings, accuracy: float, c: float | None = None
) -> CatalystPlan:
    """Theorem 8, θ = β − μ; with `c` Theorem 10's θ = cμ. T = ((θ+μ)/μ)·ln(2D/√ε) centres, each to an accuracy of
    (μ/(2(θ+μ)))²·ε, by Theorem 5 on the regularized game, which is (β+θ)-smooth and (μ+θ)-strongly convex-concave
    and starts within D + √ε of its saddle point.

    >>> plan = catalyst_plan(Constants(mu=0.1, beta=1.0, D=1.0), Settings(clients=4), accuracy=1e-4)
    >>> plan.theta, plan.centres
    (0.9, 53)
    """
    mu, beta, d = constants.need("mu", "beta", "D")
    positive("mu", mu)
    positive("accuracy", accuracy)
    theta = catalyst_theta(constants) if c is None else c * mu
    ratio = (theta + mu) / mu
    root = math.sqrt(accuracy)
    centres = max(1, math.ceil(ratio * math.log(max(2 * d / root, 1))))
    inner = (root / (2 * ratio)) ** 2
    strong, smooth = mu + theta, beta + theta
    # E‖z' − prox‖² ≤ (2/μ')·Gap ≤ 4β'²‖z − prox‖²/(pμ'²)·exp(−μ'²·rounds/(8β'²))
    start = 4 * smooth**2 * (d + root) ** 2 / (settings.p * strong**2)
    rounds = 8 * smooth**2 / strong**2 * math.log(max(start / inner, 1))
    lr = settings.p * strong / (4 * smooth**2)
    return CatalystPlan(theta, centres, inner, max(1, math.ceil(rounds)), lr)


def catalyst(
    constants: Constants, settings: Settings, rounds: int, theta: float, inner_accuracy: float
) -> Bound:
    """E‖z̄^T − z*‖² after T = `rounds` centres, each found to E‖z̄^{t+1} − prox(z̄^t)‖² ≤ inner_accuracy: (114)
    unrolled. With T and the accuracy of `catalyst_plan` it is ε. ((115) prints √ε for the √ε/2 of (131).)"""
    mu, d = constants.need("mu", "D")
    positive("mu", mu)
    shrink = theta / (theta + mu)
    kept = shrink**rounds
    error = math.sqrt(inner_accuracy) * (1 - kept) / (1 - shrink)
    return Bound(
        f"{PAPER}, Theorems 8 to 10 (Catalyst)", "E‖z̄^T − z*‖²", (kept * d + error) ** 2,
        (
            Condition("θ is at least 0", 0.0, theta),
            Condition("all clients take part", settings.clients, settings.sampled),
        ),
        settings.p * (mu + theta) / (4 * ((constants.beta or mu) + theta) ** 2),
        {"start": kept * d, "inner accuracy": error},
        note="the terms add up to the root of the value",
    )  # fmt: skip
