"""The communication rounds of the papers' tables, up to constants and logarithms: only their ratios say something.

ε: `accuracy`, the error f − f* or ‖∇f‖² (saddle points: ‖z − z*‖²) to reach. β, which the tables set to 1, is put
back from the theorems that they sum up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from fairlead.errors import FairleadError, positive, unknown
from fairlead.theory.bound import Constants, Settings

Rate = Callable[[Constants, Settings, float], float]


def _sgd(c: Constants, s: Settings, e: float) -> float:
    mu, beta, sigma = c.need("mu", "beta", "sigma")
    return sigma**2 / (mu * s.clients * s.steps * e) + beta / mu


def _fedavg(c: Constants, s: Settings, e: float) -> float:
    mu, beta, g, b = c.need("mu", "beta", "G", "B")
    return _m2(c, s) / (mu * s.sampled * s.steps * e) + math.sqrt(beta) * g / (
        mu * math.sqrt(e)
    ) + b * b * beta / mu  # fmt: skip


def _m2(c: Constants, s: Settings) -> float:
    """M² = σ² + K(1 − S/N)G²."""
    sigma, g = c.need("sigma", "G")
    return sigma**2 + s.steps * (1 - s.sampled / s.clients) * g * g


def _fedavg_lower(c: Constants, s: Settings, e: float) -> float:
    mu, sigma, g = c.need("mu", "sigma", "G")
    return sigma**2 / (mu * s.clients * s.steps * e) + g / math.sqrt(mu * e)


def _fedprox(c: Constants, s: Settings, e: float) -> float:
    mu, beta, b = c.need("mu", "beta", "B")
    return b * b * beta / mu


def _dane(c: Constants, s: Settings, e: float) -> float:
    mu, delta = c.need("mu", "delta")
    return (delta / mu) ** 2


def _scaffold(c: Constants, s: Settings, e: float) -> float:
    mu, beta, sigma = c.need("mu", "beta", "sigma")
    return sigma**2 / (mu * s.sampled * s.steps * e) + beta / mu + s.clients / s.sampled


def _scaffold_quadratics(c: Constants, s: Settings, e: float) -> float:
    mu, beta, delta, sigma = c.need("mu", "beta", "delta", "sigma")
    return beta * sigma**2 / (mu * s.clients * s.steps * e) + beta / (mu * s.steps) + delta / mu


def _sgd_nonconvex(c: Constants, s: Settings, e: float) -> float:
    beta, sigma, f = c.need("beta", "sigma", "F")
    return beta * sigma**2 * f / (s.clients * s.steps * e * e) + beta * f / e


def _fedavg_nonconvex(c: Constants, s: Settings, e: float) -> float:
    beta, g, b, f = c.need("beta", "G", "B", "F")
    noise = beta * _m2(c, s) * f / (s.sampled * s.steps * e * e)
    return noise + math.sqrt(beta) * g / e**1.5 + b * b * beta * f / e


def _fedprox_nonconvex(c: Constants, s: Settings, e: float) -> float:
    beta, b, f = c.need("beta", "B", "F")
    return b * b * beta * f / e


def _vrl_sgd(c: Constants, s: Settings, e: float) -> float:
    beta, sigma, f = c.need("beta", "sigma", "F")
    return s.clients * beta * f * (sigma**2 / (s.steps * e * e) + 1 / e)


def _scaffold_nonconvex(c: Constants, s: Settings, e: float) -> float:
    beta, sigma, f = c.need("beta", "sigma", "F")
    ratio = (s.clients / s.sampled) ** (2 / 3)
    return beta * sigma**2 * f / (s.sampled * s.steps * e * e) + ratio * beta * f / e


def _scaffold_weakly_convex(c: Constants, s: Settings, e: float) -> float:
    beta, delta, sigma, f = c.need("beta", "delta", "sigma", "F")
    noise = beta * sigma**2 * f / (s.clients * s.steps * e * e)
    return noise + beta * f / (s.steps * e) + delta * f / e


def _mirror_descent(c: Constants, s: Settings, e: float) -> float:
    mu, beta, sigma = c.need("mu", "beta", "sigma")
    return s.p * sigma**2 / (s.clients * mu**2 * e) + (beta / mu) ** 2


def _mirror_prox(c: Constants, s: Settings, e: float) -> float:
    mu, beta = c.need("mu", "beta")
    return beta / mu


def _fedavg_s(c: Constants, s: Settings, e: float) -> float:
    mu, beta, sigma, zeta = c.need("mu", "beta", "sigma", "zeta_pair")
    start, noise = s.p * (beta / mu) ** 2, s.p * sigma**2 / (s.clients * mu**2 * e)
    drift = math.sqrt(s.p) * beta * sigma + beta * zeta
    return start + noise + drift / (mu**2 * math.sqrt(e))


def _scaffold_s(c: Constants, s: Settings, e: float) -> float:
    mu, beta = c.need("mu", "beta")
    return min((beta / mu) ** 2, _fedavg_s(c, s, e))


def _catalyst_s(c: Constants, s: Settings, e: float) -> float:
    mu, beta = c.need("mu", "beta")
    return min(beta / mu, _fedavg_s(c, s, e))


def _fedavg_convex(c: Constants, s: Settings, e: float) -> float:
    mu, beta, sigma, zeta, d = c.need("mu", "beta", "sigma", "zeta_pair", "D")
    p, root, drift = s.p, math.sqrt(e), math.sqrt(beta) * mu**-1.5
    start = min(p * beta * d / (mu * root), p * d * d / (mu * e))
    noise = p * sigma**2 * d * d / (s.clients * mu * e * e)
    return start + noise + drift * (math.sqrt(p) * sigma + zeta) / root


def _scaffold_convex(c: Constants, s: Settings, e: float) -> float:
    mu, beta, sigma = c.need("mu", "beta", "sigma")
    return s.p * sigma**2 / (s.clients * mu**2 * e) + beta / mu


def _participation(s: Settings) -> float:
    n, r = s.clients, s.sampled
    return (n - r) / (r * (n - 1)) if n > 1 else 0.0


def _glomo(c: Constants, s: Settings, e: float) -> float:
    (alpha,) = c.need("alpha")
    return math.sqrt(max(alpha / s.clients, _participation(s))) / e**1.5


TABLES: Mapping[str, Mapping[str, Rate]] = MappingProxyType(
    {
        "strongly convex": {
            "SGD": _sgd, "FedAvg": _fedavg, "FedAvg, at least": _fedavg_lower, "FedProx": _fedprox,
            "DANE": _dane, "SCAFFOLD": _scaffold, "SCAFFOLD, quadratics": _scaffold_quadratics,
        },
        "non-convex": {
            "SGD": _sgd_nonconvex, "FedAvg": _fedavg_nonconvex, "FedProx": _fedprox_nonconvex,
            "VRL-SGD": _vrl_sgd, "SCAFFOLD": _scaffold_nonconvex,
            "SCAFFOLD, quadratics": _scaffold_weakly_convex,
        },
        "saddle": {
            "FedAvg, convex": _fedavg_convex, "SCAFFOLD, convex": _scaffold_convex,
            "MirrorDescent": _mirror_descent, "MirrorProx": _mirror_prox, "FedAvg-S": _fedavg_s,
            "SCAFFOLD-S": _scaffold_s, "SCAFFOLD-Catalyst-S": _catalyst_s,
        },
        "gradient updates": {
            "FedCOMGATE": lambda c, s, e: 1 / (s.clients * e * e),
            "LocalSGD": lambda c, s, e: 1 / (s.clients * e * e),
            "SCAFFOLD": lambda c, s, e: 1 / (s.sampled * e * e),
            "MimeMVR": lambda c, s, e: 1 / (math.sqrt(s.sampled) * e**1.5),
            "FedGLOMO": _glomo,
        },
    }
)  # fmt: skip
"""By table: Karimireddy et al. 2020, Table 2 (two columns), Hou et al. 2021, Table 1, and Das et al. 2022, Table 1."""


def rate(
    table: str, method: str, constants: Constants, settings: Settings, accuracy: float
) -> float:
    """The rounds (in "gradient updates" the local steps) that a table gives a method, up to constants.

    >>> known = Constants(mu=0.01, beta=1.0, delta=0.1, sigma=0.0)
    >>> rounds = [rate("strongly convex", "SCAFFOLD, quadratics", known, Settings(10, k), 1e-3) for k in (1, 10, 100)]
    >>> [round(r) for r in rounds]
    [110, 20, 11]
    """
    positive("accuracy", accuracy)
    if table not in TABLES:
        raise unknown("table", table, TABLES)
    if method not in TABLES[table]:
        raise unknown(f"method in the table '{table}'", method, TABLES[table])
    return TABLES[table][method](constants, settings, accuracy)


def rates(
    table: str, constants: Constants, settings: Settings, accuracy: float
) -> dict[str, float]:
    """All methods of a table whose constants are known, fewest rounds first; methods that need another constant
    are left out.

    >>> list(rates("saddle", Constants(mu=0.1, beta=1.0, sigma=0.0), Settings(10, 5), 1e-3))
    ['SCAFFOLD, convex', 'MirrorProx', 'MirrorDescent']
    """
    if table not in TABLES:
        raise unknown("table", table, TABLES)
    found = {}
    for method, formula in TABLES[table].items():
        try:
            found[method] = formula(constants, settings, accuracy)
        except FairleadError:  # a constant is not known
            continue
    return dict(sorted(found.items(), key=lambda item: item[1]))
