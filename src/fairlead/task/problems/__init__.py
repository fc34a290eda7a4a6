"""Problems with known solutions, toy problems from the papers, and saddle problems from data."""

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
