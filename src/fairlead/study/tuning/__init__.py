"""Tuning: the settings with which a method does best, searched with Optuna.

space.py      what is searched, and a method with some of it
worth.py      what a trial is worth: rounds, bits or a metric, and what missing the target costs
studies.py    trials in a storage that processes share
search.py     the search
result.py     what came out; files.py writes it, figure.py draws it
"""

from fairlead.study.tuning.result import Tuning
from fairlead.study.tuning.search import tune
from fairlead.study.tuning.space import GRID, Range

__all__ = ["GRID", "Range", "Tuning", "tune"]
