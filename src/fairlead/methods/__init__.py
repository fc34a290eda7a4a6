"""The methods, one file per family; a new method needs its file and one line here."""

from typing import Any

from fairlead.methods.catalyst import Catalyst
from fairlead.methods.dp_fedavg import DPFedAvg
from fairlead.methods.fedavg import FedAvg, FedPAQ, FedProx
from fairlead.methods.fedcomgate import FedCOMGATE
from fairlead.methods.feddyn import FedDyn
from fairlead.methods.fedexp import FedExP
from fairlead.methods.fedglomo import FedGLOMO, FedLOMO
from fairlead.methods.fednova import FedNova
from fairlead.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from fairlead.methods.fedpvr import FedPVR
from fairlead.methods.mime import Mime, MimeLite
from fairlead.methods.minimax import ExtraStep, MirrorDescent, MirrorProx, ScaffoldS
from fairlead.methods.scaffnew import Scaffnew
from fairlead.methods.scaffold import Scaffold
from fairlead.methods.scaffold_m import ScaffoldM
from fairlead.methods.sgd import FedSGD, MinibatchSGD

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
    "fedexp": FedExP,
    "dp-fedavg": DPFedAvg,
    "mirror-descent": MirrorDescent,
    "mirror-prox": MirrorProx,
    "extra-step": ExtraStep,
    "scaffold-s": ScaffoldS,
    "catalyst": Catalyst,
}
"""The methods by the name that the command line knows."""

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
"""The papers' names for a method with particular settings."""

__all__ = [
    "METHODS",
    "PRESETS",
    "Catalyst",
    "DPFedAvg",
    "ExtraStep",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedCOMGATE",
    "FedDyn",
    "FedExP",
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
