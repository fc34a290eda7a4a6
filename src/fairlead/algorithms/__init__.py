"""The methods. One file a family; a new method needs its file and one line here."""

from typing import Any

from fairlead.algorithms.catalyst import Catalyst
from fairlead.algorithms.fedavg import FedAvg, FedPAQ, FedProx
from fairlead.algorithms.fedcomgate import FedCOMGATE
from fairlead.algorithms.feddyn import FedDyn
from fairlead.algorithms.fedglomo import FedGLOMO, FedLOMO
from fairlead.algorithms.fednova import FedNova
from fairlead.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from fairlead.algorithms.fedpvr import FedPVR
from fairlead.algorithms.mime import Mime, MimeLite
from fairlead.algorithms.minimax import ExtraStep, MirrorDescent, MirrorProx, ScaffoldS
from fairlead.algorithms.scaffnew import Scaffnew
from fairlead.algorithms.scaffold import Scaffold
from fairlead.algorithms.scaffold_m import ScaffoldM
from fairlead.algorithms.sgd import FedSGD, MinibatchSGD

METHODS: dict[str, Any] = {
    "fedsgd": FedSGD,
    "minibatch-sgd": MinibatchSGD,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fedpvr": FedPVR,
    "fedpaq": FedPAQ,
    "fedlomo": FedLOMO,
    "fedglomo": FedGLOMO,
    "mime": Mime,
    "mime-lite": MimeLite,
    "fedcomgate": FedCOMGATE,
    "feddyn": FedDyn,
    "scaffnew": Scaffnew,
    "scaffold-m": ScaffoldM,
    "fednova": FedNova,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "mirror-descent": MirrorDescent,
    "mirror-prox": MirrorProx,
    "extra-step": ExtraStep,
    "scaffold-s": ScaffoldS,
    "catalyst": Catalyst,
}

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg-m": ("fedavg", {"momentum": 0.9}),
    "fedpaq-m": ("fedpaq", {"momentum": 0.9}),
    "fedpaq-scm": ("fedpaq", {"momentum": 0.9, "server": "momentum"}),
    "fedavg-s": ("fedavg", {"schedule": "sqrt-decay/step"}),
    "scaffold-catalyst-s": ("catalyst", {"method": "scaffold-s"}),
    "scaffold-catalyst": ("catalyst", {"method": "scaffold"}),
    "mime-mvr": ("mime", {"optimizer": "mvr"}),
    "mime-lite-mvr": ("mime-lite", {"optimizer": "mvr"}),
}
"""Names of the papers for settings of a method."""

__all__ = [
    "METHODS",
    "PRESETS",
    "Catalyst",
    "ExtraStep",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedCOMGATE",
    "FedDyn",
    "FedGLOMO",
    "FedLOMO",
    "FedNova",
    "FedPAQ",
    "FedPVR",
    "FedProx",
    "FedSGD",
    "FedYogi",
    "Mime",
    "MimeLite",
    "MinibatchSGD",
    "MirrorDescent",
    "MirrorProx",
    "Scaffnew",
    "Scaffold",
    "ScaffoldM",
    "ScaffoldS",
]  # fmt: skip
