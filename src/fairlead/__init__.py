"""fairlead: federated optimization when clients' data differ.

>>> import fairlead as fl
>>> task = fl.problems.random_quadratics(clients=8, gradient=10.0)
>>> run = fl.train(task, fl.Scaffold(lr=0.5), rounds=200, steps=5)
>>> run.history.last("distance") < 1e-6
True
"""

from fairlead import models, problems, schedules
from fairlead.algorithm import (
    Algorithm,
    Client,
    Cohort,
    Memory,
    Record,
    Replies,
    State,
    Step,
    Upload,
)
from fairlead.algorithms import METHODS, FedAvg, FedProx, FedSGD, MinibatchSGD, Scaffold
from fairlead.compare import Comparison, compare
from fairlead.data import sources, splits
from fairlead.data.batches import Batches
from fairlead.engine.simulate import Simulate
from fairlead.errors import Diverged, FairleadError
from fairlead.history import History
from fairlead.sampling import Everyone, Replay, Uniform, Weighted
from fairlead.task import Task
from fairlead.train import Run, train

__version__ = "0.1.0"

__all__ = [
    "METHODS", "Algorithm", "Batches", "Client", "Cohort", "Comparison", "Diverged", "Everyone",
    "FairleadError", "FedAvg", "FedProx", "FedSGD", "History", "Memory", "MinibatchSGD", "Record",
    "Replay", "Replies", "Run", "Scaffold", "Simulate", "State", "Step", "Task", "Uniform",
    "Upload", "Weighted", "compare", "models", "problems", "schedules", "sources", "splits", "train",
]  # fmt: skip
