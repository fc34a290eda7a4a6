"""Problems with known solutions, toy problems from the papers, and saddle problems from data.

>>> import fairlead as fl
>>> task = fl.problems.random_quadratics(clients=6, mu=0.1, beta=1.0, delta=0.2, gradient=3.0)
>>> known = task.constants
>>> round(known.delta, 6), round(known.C0, 6)  # mean‖∇f_i(x*)‖² = 3²
(0.2, 9.0)
"""

from fairlead.task.problems.convex import (
    logistic_regression,
    quadratics,
    random_quadratics,
    synthetic_logistic,
    theorem2,
    two_gaussians,
)
from fairlead.task.problems.games import (
    agnostic,
    auc_maximization,
    bilinear_game,
    quadratic_game,
    robust_regression,
    saddle_regression,
)

__all__ = [
    "agnostic",
    "auc_maximization",
    "bilinear_game",
    "logistic_regression",
    "quadratic_game",
    "quadratics",
    "random_quadratics",
    "robust_regression",
    "saddle_regression",
    "synthetic_logistic",
    "theorem2",
    "two_gaussians",
]
