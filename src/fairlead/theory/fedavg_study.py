"""The bound (1) of the FedAvg heterogeneity study, for convex functions and full participation."""

from __future__ import annotations

from fairlead.theory.bound import Bound, Condition, Constants, Settings, total


def fedavg_shadow(constants: Constants, settings: Settings, rounds: int) -> Bound:
    """F above its minimum, averaged over the shadow sequence x̄^(t,k), the mean of the clients' points after
    local step k of round t.

    The proof uses the smoothness of every F_i, so L is β = max_i L_i here, and ζ = max_i‖∇F_i − ∇F‖ at the
    clients' points of the run. With two of twenty clients per round, as in the study's experiments, the mean
    of a round's clients is not the mean of all, and the theorem does not apply.

    >>> known = Constants(beta=0.19, sigma=0.0, zeta_max=0.407, D=2.0)
    >>> two_of_twenty = Settings(clients=20, cohort=2, steps=5, lr=0.2)
    >>> print(fedavg_shadow(known, two_of_twenty, rounds=100).conditions[1])
    all clients take part in every round: 20 ≤ 2 does not hold
    """
    beta, sigma, zeta, d = constants.need("beta", "sigma", "zeta_max", "D")
    tau, m = settings.steps, settings.clients
    lr = 1 / (4 * beta) if settings.lr is None else settings.lr
    terms = {
        "start": d * d / (2 * lr * tau * rounds),
        "noise": lr * sigma**2 / m,
        "noise drift": 4 * tau * lr**2 * beta * sigma**2,
        "drift": 18 * tau**2 * lr**2 * beta * zeta**2,
    }
    return Bound(
        "FedAvg study, (1)", "mean_{t,k} E F(x̄^(t,k)) − F*", total(terms),
        (
            Condition("η is at most 1/(4L)", lr, 1 / (4 * beta)),
            Condition("all clients take part in every round", m, settings.sampled),
            Condition("the server's step is 1", abs(settings.server_lr - 1), 0.0),
        ),
        lr, terms, 0.0,
    )  # fmt: skip
