"""What a theorem takes and returns: a problem's constants, a run's settings, and a bound with its conditions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairlead.errors import FairleadError

GIVEN_BY = {
    "mu": "the smallest curvature of the clients' objectives (for a game the smaller of λ_min ∇²_xx f and λ_min −∇²_yy f)",
    "beta": "the largest curvature of the clients' objectives, max_i λ_max(∇²f_i)",
    "delta": "the Hessian dissimilarity max_i‖∇²f_i − ∇²f‖",
    "sigma": "the noise of minibatch gradients, σ² = max_i E‖g_i − ∇f_i‖²",
    "G": "the gradient dissimilarity (G, B)",
    "B": "the gradient dissimilarity (G, B)",
    "zeta_max": "ζ = max_i‖∇f_i − ∇f‖ at the points of a run",
    "zeta_pair": "ζ = max_ij‖G_i − G_j‖",
    "zeta_rest": "ζ_{1−p}, the heterogeneity at the optimum of the part that is not variance-reduced",
    "zeta_hat_rest": "the bound ζ̂_{1−p} on mean_i‖∇f_i‖² of the part that is not variance-reduced, at all points",
    "beta_p": "the curvature on the variance-reduced part",
    "alpha": "α of Assumption 4, the agreement of the clients' gradient errors",
    "q": "the relative variance q of the compressor",
    "D": "the distance ‖x⁰ − x*‖ from the start to the optimum",
    "F": "f(x⁰) − f*, the objective at the start above its minimum",
    "f0": "the objective at the start, whose clients' minima are not negative",
    "C0": "the control lag mean_i‖c_i − ∇f_i(x*)‖² at the start",
    "sigma0": "mean_i‖G_i(z⁰) − G_i(z*)‖², squared, at the start",
}
"""The constants of a problem and where each comes from."""


@dataclass(frozen=True)
class Constants:
    """What is known of a problem, as plain numbers; a theorem names what it needs and does not find.

    mu, beta: strong convexity and smoothness of every f_i     delta: δ, Hessian dissimilarity
    sigma: σ, not squared     G, B: gradient dissimilarity     D: ‖x⁰ − x*‖, not squared
    F: f(x⁰) − f*     f0: f(x⁰)     the other letters: see `GIVEN_BY`

    For games beta must bound how fast each G_i changes, ‖G_i(z) − G_i(z′)‖ ≤ β‖z − z′‖, which is what
    the proofs use; the largest of the four block norms, the paper's Definition 2, can be smaller by a factor
    of up to 2.

    >>> Constants(mu=0.1, beta=1.0).need("mu", "delta")
    Traceback (most recent call last):
    ...
    fairlead.errors.FairleadError: delta is not known: measure the Hessian dissimilarity max_i‖∇²f_i − ∇²f‖, \
or give it as Constants(delta=…)
    """

    mu: float | None = None
    beta: float | None = None
    delta: float | None = None
    sigma: float | None = None
    G: float | None = None
    B: float | None = None
    zeta_max: float | None = None
    zeta_pair: float | None = None
    zeta_rest: float | None = None
    zeta_hat_rest: float | None = None
    beta_p: float | None = None
    alpha: float | None = None
    q: float | None = None
    D: float | None = None
    F: float | None = None
    f0: float | None = None
    C0: float | None = None
    sigma0: float | None = None

    def __post_init__(self) -> None:
        for name in GIVEN_BY:
            value = getattr(self, name)
            if value is not None and not (0 <= value < math.inf):
                raise FairleadError(f"{name} is {value}: it must be finite and at least 0")
        if self.mu is not None and self.beta is not None and self.mu > self.beta:
            raise FairleadError(f"mu is {self.mu} and beta is {self.beta}: mu is at most beta")

    def need(self, *names: str) -> tuple[float, ...]:
        """These constants; an error if one of them is not known."""
        for name in names:
            if getattr(self, name) is None:
                raise FairleadError(
                    f"{name} is not known: measure {GIVEN_BY[name]}, or give it as Constants({name}=…)"
                )
        return tuple(getattr(self, name) for name in names)

    def knows(self, *names: str) -> bool:
        """Whether all of these are known."""
        return all(getattr(self, name) is not None for name in names)


@dataclass(frozen=True)
class Settings:
    """How a run is set up, as far as theorems ask.

    clients: N     cohort: S, all clients by default     steps: K local steps per round
    lr: the local step size; by default the largest that the theorem allows
    server_lr: η_g     sync: the probability p of synchronizing after a step, 1/steps by default

    >>> Settings(clients=10, steps=5).sampled
    10
    """

    clients: int
    steps: int = 1
    cohort: int | None = None
    lr: float | None = None
    server_lr: float = 1.0
    sync: float | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or not 1 <= self.sampled <= self.clients:
            raise FairleadError(
                f"steps is {self.steps} and the cohort {self.sampled} of {self.clients}: steps must be at "
                "least 1, and the cohort between 1 and all clients"
            )
        if (self.lr is not None and self.lr <= 0) or self.server_lr <= 0 or not 0 < self.p <= 1:
            raise FairleadError(
                f"lr is {self.lr}, server_lr {self.server_lr} and sync {self.p}: step sizes must be "
                "positive, and sync in (0, 1]"
            )

    @property
    def sampled(self) -> int:
        """S, the clients of a round."""
        return self.clients if self.cohort is None else self.cohort

    @property
    def p(self) -> float:
        """The probability of synchronizing after a step."""
        return 1 / self.steps if self.sync is None else self.sync

    def effective(self, largest: float) -> tuple[float, float]:
        """The local step size and η̃ = K·η_l·η_g; the largest η̃ where no step size is set."""
        scale = self.steps * self.server_lr
        lr = largest / scale if self.lr is None else self.lr
        return lr, lr * scale


@dataclass(frozen=True)
class Condition:
    """left ≤ right, in words.

    >>> print(Condition("the step η̃ is at most 1/(81β)", 0.02, 0.0123))
    the step η̃ is at most 1/(81β): 0.02 ≤ 0.0123 does not hold
    """

    words: str
    left: float
    right: float

    @property
    def holds(self) -> bool:
        """Whether left ≤ right, up to rounding."""
        return self.left <= self.right * (1 + 1e-9) + 1e-300

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "does not hold"
        return f"{self.words}: {self.left:.3g} ≤ {self.right:.3g} {verdict}"


@dataclass(frozen=True)
class Bound:
    """What a theorem says of a run.

    theorem: paper and number     of: the quantity that is at most `value`
    terms: the summands of the value     lr: the local step size that it is for
    rate: the bounded quantity is a mean over iterates k = 0, 1, … with weights ∝ (1 − rate)^(−k); None if it is the
        last one's
    printed: the value as the paper prints it, where that differs from what its proof gives
    note: what else to know, such as a misprint
    """

    theorem: str
    of: str
    value: float
    conditions: tuple[Condition, ...]
    lr: float
    terms: dict[str, float] = field(default_factory=dict)
    rate: float | None = None
    printed: float | None = None
    note: str = ""
    lower: bool = False

    @property
    def holds(self) -> bool:
        """Whether all conditions hold, so that the theorem says something."""
        return all(condition.holds for condition in self.conditions)

    def average(self, values: ArrayLike) -> float:
        """The mean that the theorem speaks of, of the values at iterates 0, 1, …: what `value` bounds.

        >>> Bound("", "", 1.0, (), 0.1, rate=0.5).average([7.0, 1.0, 0.0])
        1.2857142857142858
        """
        given = np.asarray(values, dtype=float)
        if self.rate is None:
            return float(given[-1])
        logs = -np.arange(len(given)) * math.log1p(-self.rate)
        weights = np.exp(logs - logs.max())
        return float(weights @ given / weights.sum())

    def __str__(self) -> str:
        sign = "≥" if self.lower else "≤"
        lines = [f"{self.theorem}: {self.of} {sign} {self.value:.4g} (lr {self.lr:.3g})"]
        lines += [f"  {condition}" for condition in self.conditions]
        return "\n".join([*lines, f"  {self.note}"] if self.note else lines)


def inverse_weight(rate: float, count: float) -> float:
    """1/W for W = Σ_{r=0}^{count−1} (1 − rate)^{−r}, without overflow.

    >>> inverse_weight(0.0, 4), round(1 / inverse_weight(0.5, 3), 12)
    (0.25, 7.0)
    """
    if rate == 0:
        return 1 / count
    last = count * math.log1p(-rate)
    return -rate / (1 - rate) * math.exp(last) / math.expm1(last)


def total(terms: dict[str, Any]) -> float:
    """The sum of a bound's terms."""
    return float(sum(terms.values()))
