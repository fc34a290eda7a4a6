"""What the papers' theorems say of a run: bounds with their conditions, step sizes, rates, and when a method pays.

>>> import fairlead as fl
>>> known = fl.theory.Constants(mu=0.1, beta=1.0, sigma=0.0, D=1.0, C0=0.0)
>>> print(fl.theory.scaffold(known, fl.theory.Settings(clients=10, steps=5), rounds=5000))
Karimireddy et al. 2020, Theorem VII (convex): E f(x̄) − f* ≤ 0.00239 (lr 0.00247)
  the server's step η_g is at least 1: 1 ≤ 1 holds
  η̃ is at most 1/(81β): 0.0123 ≤ 0.0123 holds
  η̃ is at most S/(15μN): 0.0123 ≤ 0.667 holds
"""

from fairlead.theory.advice import when_it_pays
from fairlead.theory.bound import GIVEN_BY, Bound, Condition, Constants, Settings
from fairlead.theory.fedavg_study import fedavg_shadow
from fairlead.theory.fedpvr import fedpvr, fedpvr_nonconvex
from fairlead.theory.glomo import fedavg_alpha, fedglomo, fedlomo, momentum
from fairlead.theory.plot import bound_figure, bounds
from fairlead.theory.rates import TABLES, rate, rates
from fairlead.theory.saddle import (
    CatalystPlan,
    catalyst,
    catalyst_plan,
    catalyst_theta,
    fedavg_s,
    scaffold_s,
    scaffold_s_anchor,
    scaffold_s_similar,
)
from fairlead.theory.scaffold import (
    best_local_steps,
    best_steps,
    fedavg,
    fedavg_lower,
    quadratics_rate,
    scaffold,
    scaffold_nonconvex,
    scaffold_quadratics,
    speed_up,
)

__all__ = [
    "GIVEN_BY",
    "TABLES",
    "Bound",
    "CatalystPlan",
    "Condition",
    "Constants",
    "Settings",
    "best_local_steps",
    "best_steps",
    "bound_figure",
    "bounds",
    "catalyst",
    "catalyst_plan",
    "catalyst_theta",
    "fedavg",
    "fedavg_alpha",
    "fedavg_lower",
    "fedavg_s",
    "fedavg_shadow",
    "fedglomo",
    "fedlomo",
    "fedpvr",
    "fedpvr_nonconvex",
    "momentum",
    "quadratics_rate",
    "rate",
    "rates",
    "scaffold",
    "scaffold_nonconvex",
    "scaffold_quadratics",
    "scaffold_s",
    "scaffold_s_anchor",
    "scaffold_s_similar",
    "speed_up",
    "when_it_pays",
]
