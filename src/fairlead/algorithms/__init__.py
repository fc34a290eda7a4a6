"""The methods. One file a family; a new method needs its file and one line here."""

from fairlead.algorithms.fedavg import FedAvg, FedProx
from fairlead.algorithms.scaffold import Scaffold
from fairlead.algorithms.sgd import FedSGD, MinibatchSGD

METHODS = {
    "fedsgd": FedSGD,
    "minibatch-sgd": MinibatchSGD,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
}

__all__ = ["METHODS", "FedAvg", "FedProx", "FedSGD", "MinibatchSGD", "Scaffold"]
