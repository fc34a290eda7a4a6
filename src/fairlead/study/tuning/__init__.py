"""Tuning: searching for a method's best settings with Optuna.

space.py      the search space, and methods with settings from it
objective.py  a trial's objective value: rounds, bits or a metric, and the penalty for missing the target
studies.py    trials in a storage that processes share
search.py     the search
result.py     the results; files.py writes them, figure.py plots them
"""

from fairlead.study.tuning.result import Tuning
from fairlead.study.tuning.search import tune
from fairlead.study.tuning.space import GRID, Range

__all__ = ["GRID", "Range", "Tuning", "tune"]
