"""When a method pays, by the papers' rates, as sentences with the numbers of a problem."""

from __future__ import annotations

import math

from fairlead.errors import positive
from fairlead.theory.bound import GIVEN_BY, Constants, Settings
from fairlead.theory.scaffold import best_local_steps


def when_it_pays(
    constants: Constants,
    settings: Settings,
    accuracy: float,
    *,
    floor: float | None = None,
    bits: float | None = None,
) -> list[str]:
    """One sentence per comparison of two methods; where a constant is missing, it says what to measure.

    accuracy: ε, the error to reach     floor: the error at which a FedAvg pilot run stopped falling
    bits: what the compressor sends per coordinate, without which nothing is said of compression

    >>> known = Constants(mu=0.01, beta=1.0, delta=0.05)
    >>> when_it_pays(known, Settings(clients=10, steps=5), accuracy=1e-3)[0]
    'SCAFFOLD gains over SGD linearly in its local steps up to K = β/δ = 20: 5 are fewer, so up to 4 times as many \
may still save rounds.'
    """
    positive("accuracy", accuracy)
    sentences = [
        _local_steps(constants, settings),
        _fedavg(constants, settings, accuracy, floor),
        _scaffold_s(constants, accuracy),
        _fedavg_s(constants, settings, accuracy),
        _catalyst(constants, accuracy),
        _fedpvr(constants, settings),
        _glomo(constants, settings),
    ]
    return sentences if bits is None else [*sentences, _compression(constants, bits)]


def _missing(what: str, constants: Constants, *names: str) -> str | None:
    """The sentence that says what to measure, if a constant is not known."""
    lost = [f"{name} ({GIVEN_BY[name]})" for name in names if getattr(constants, name) is None]
    return f"{what}: not known without {' and '.join(lost)}." if lost else None


def _local_steps(c: Constants, s: Settings) -> str:
    lost = _missing("SCAFFOLD over SGD", c, "beta", "delta")
    if lost:
        return lost
    best = best_local_steps(c)
    start = f"SCAFFOLD gains over SGD linearly in its local steps up to K = β/δ = {best:.3g}: "
    if s.steps < best:
        more = f", so up to {best / s.steps:.3g} times as many" if best < math.inf else ", so more"
        return f"{start}{s.steps} are fewer{more} may still save rounds."
    return f"{start}{s.steps} are not fewer, so more of them would be wasted."


def _fedavg(c: Constants, s: Settings, accuracy: float, floor: float | None) -> str:
    by_rate = "By its bounds FedAvg never needs fewer rounds than SGD on different clients"
    if floor is None:
        verdict = "in practice it may until it reaches its floor, which a pilot run shows"
    else:
        side, result = ("above", "it may") if accuracy > floor else ("not above", "it cannot")
        verdict = f"in practice {result}, as the target {accuracy:.3g} is {side} the floor {floor:.3g} of the pilot run"
    if not c.knows("beta", "zeta_max") or s.lr is None:
        return f"{by_rate}; {verdict}."
    beta, zeta = c.need("beta", "zeta_max")
    bound = 18 * (s.steps * s.lr * zeta) ** 2 * beta
    return f"{by_rate}; {verdict} (the bound's floor is 18τ²η²Lζ² = {bound:.3g})."


def _scaffold_s(c: Constants, accuracy: float) -> str:
    lost = _missing("SCAFFOLD-S over FedAvg-S", c, "beta", "zeta_pair")
    if lost:
        return lost
    beta, zeta = c.need("beta", "zeta_pair")
    least = beta * math.sqrt(accuracy)
    return f"SCAFFOLD-S {_verdict('over FedAvg-S', 'ζ', zeta, 'β√ε', least)}"


def _fedavg_s(c: Constants, s: Settings, accuracy: float) -> str:
    lost = _missing("FedAvg-S over mirror descent", c, "beta", "zeta_pair")
    if lost:
        return lost
    beta, zeta = c.need("beta", "zeta_pair")
    most = (1 - s.p) * beta * math.sqrt(accuracy)
    return f"FedAvg-S {_verdict('over mirror descent', '(1−p)β√ε', most, 'ζ', zeta)}"


def _catalyst(c: Constants, accuracy: float) -> str:
    lost = _missing("Catalyst over SCAFFOLD-S", c, "mu", "beta", "zeta_pair")
    if lost:
        return lost
    mu, beta, zeta = c.need("mu", "beta", "zeta_pair")
    if beta <= mu:
        return "Catalyst does not pay over SCAFFOLD-S: the condition number β/μ is 1."
    least = mu * math.sqrt(accuracy)
    verdict = _verdict("over SCAFFOLD-S", "ζ", zeta, "μ√ε", least)
    return f"Catalyst {verdict[:-1]}; its θ is β − μ = {beta - mu:.3g}."


def _fedpvr(c: Constants, s: Settings) -> str:
    lost = _missing("FedPVR against SCAFFOLD", c, "zeta_rest", "sigma")
    if lost:
        return lost
    zeta, sigma = c.need("zeta_rest", "sigma")
    rest, noise = zeta**2, sigma**2 / (s.clients * s.steps)
    good, sign = ("as good as", "<") if rest < noise else ("not as good as", "≥")
    return f"FedPVR is {good} SCAFFOLD: ζ²_(1−p) = {rest:.3g} {sign} σ²/(NK) = {noise:.3g}."


def _glomo(c: Constants, s: Settings) -> str:
    lost = _missing("FedGLOMO over FedLOMO", c, "q")
    if lost:
        return lost
    (q,) = c.need("q")
    n, r = s.clients, s.sampled
    b = q / n + (4 * (1 + q) * (n - r) / (r * (n - 1)) if n > 1 else 0.0)
    if b > 0:
        return f"FedGLOMO pays over FedLOMO: B = q/n + 4(1+q)(n−r)/(r(n−1)) = {b:.3g} is above 0."
    return (
        "FedGLOMO does not pay over FedLOMO: all clients take part without compression, so B = 0."
    )


def _compression(c: Constants, bits: float) -> str:
    lost = _missing("Compression", c, "q")
    if lost:
        return lost
    (q,) = c.need("q")
    cost = bits * (1 + q)
    pays = "pays" if cost < 32 else "does not pay"
    sign = "<" if cost < 32 else "≥"
    return (
        f"Compression {pays} where few clients take part: {bits:.3g} bits times 1 + q = {1 + q:.3g} are "
        f"{cost:.3g} {sign} 32."
    )


def _verdict(over: str, name: str, value: float, other: str, least: float) -> str:
    if value > least:
        return f"pays {over}: {name} = {value:.3g} > {other} = {least:.3g}."
    return f"does not pay {over}: {name} = {value:.3g} ≤ {other} = {least:.3g}."
