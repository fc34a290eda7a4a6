"""Theorem II of Li et al. 2023 (FedPVR): variance reduction on a part p of the coordinates."""

from __future__ import annotations

from fairlead.theory.bound import Bound, Condition, Constants, Settings, inverse_weight, total

PAPER = "Li et al. 2023 (FedPVR), Theorem II"


def fedpvr(constants: Constants, settings: Settings, rounds: int) -> Bound:
    """Convex: E f(x̄) − f* for the step η̃ = K·η_l·η_g, from (B.32).

    Lemma 11 replaces the factor of f − f* there, −η̃·s with s = 2 − 8βη̃ − 144β_pη̃ − 7/(800η_g²), by −η̃. At
    the largest step that it allows, η̃ = 1/(80β), s is only 0.09 where β_p = β; s ≥ 1 needs η̃ of about
    1/(154β). So the value is the printed one divided by s where s < 1, and `lr` is by default the largest with
    s ≥ 1. (The condition η̃ ≤ 26/(20μ) should be 13/(180μ); it always holds, as β ≥ μ.)"""
    mu, beta, sigma, d, c0, zeta = constants.need("mu", "beta", "sigma", "D", "C0", "zeta_rest")
    n, k, up = settings.clients, settings.steps, settings.server_lr
    beta_p = beta if constants.beta_p is None else constants.beta_p
    constant = 7 / (800 * up**2)
    lr, step = settings.effective((1 - constant) / (8 * beta + 144 * beta_p))
    slope = 2 - (8 * beta + 144 * beta_p) * step - constant
    weight = inverse_weight(mu * step / 2, rounds + 1) / step
    terms = {
        "start": d * d * weight,
        "controls": 18 * step**2 * c0 * weight,
        "heterogeneity": 36 * step * zeta**2,
        "noise": step * sigma**2 / (k * n) * (24 + 117 * n / (80 * up**2)),
    }
    printed = total(terms)
    share = min(1.0, slope)
    return Bound(
        f"{PAPER} (convex)", "E f(x̄) − f*", printed / share if share > 0 else float("inf"),
        (
            Condition("the server's step η_g is at least 1", 1.0, up),
            Condition("η̃ is at most 1/(80β)", step, 1 / (80 * beta)),
            Condition("all clients take part", n, settings.sampled),
        ),
        lr, {name: term / share for name, term in terms.items()} if share > 0 else {},
        mu * step / 2, printed=printed,
    )  # fmt: skip


def fedpvr_nonconvex(constants: Constants, settings: Settings, rounds: int) -> Bound:
    """Non-convex: the mean of E‖∇f(x^{r−1})‖² over rounds, for a warm start c_i = p ⊙ ∇f_i(x⁰).

    Lemma 14 as printed is false, and so is the sum of (B.53), `printed`, over these points: on f = x²/2 gradient
    descent has a mean of F/(η̃R)/(1 − η̃/2). In the proof the factor of ‖∇f‖² is at best −0.32η̃ instead of −η̃, and
    Θ is bounded where a round begins but used where it ends. With ‖x^r − x^{r−1}‖² added to Θ_r and a potential of
    13βη̃²Θ for 9βη̃²Θ, the same lemmas give the value, where h = βη̃, A = 1/2 + 4h + 13h(2 + 16h²) and
    s = 1/2 − 4h − 208h³ − 15Ah²/η_g² ≥ 0.29."""
    beta, sigma, f, zeta = constants.need("beta", "sigma", "F", "zeta_hat_rest")
    n, k, up = settings.clients, settings.steps, settings.server_lr
    lr, step = settings.effective(1 / (26 * beta))
    h = beta * step
    a = 0.5 + 4 * h + 13 * h * (2 + 16 * h**2)
    slope = 0.5 - 4 * h - 208 * h**3 - 15 * a * h**2 / up**2
    printed = {
        "start": f / (step * rounds),
        "noise": h * sigma**2 / (k * n) * (63 * n / (26 * up**2) + 9),
        "heterogeneity": 15 * h * zeta**2 / (26 * up**2),
    }
    terms = {
        "start": f / (step * rounds) / slope,
        "noise": h * sigma**2 / k * ((9 + 468 * h**2) / n + 63 * a * h / up**2) / slope,
        "heterogeneity": 15 * a * h**2 * zeta**2 / up**2 / slope,
    }
    return Bound(
        f"{PAPER} (non-convex)", "mean_r E‖∇f(x^{r−1})‖²", total(terms) if slope > 0 else float("inf"),
        (
            Condition("the server's step η_g is at least 1", 1.0, up),
            Condition("η̃ is at most 1/(26β)", step, 1 / (26 * beta)),
            Condition("all clients take part", n, settings.sampled),
        ),
        lr, terms if slope > 0 else {}, 0.0, printed=total(printed),
        note="for a warm start, c_i = p ⊙ ∇f_i(x⁰); the printed bound is false",
    )  # fmt: skip
