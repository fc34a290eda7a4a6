"""What is measured on clients: sums inside rounds, and probes at a point; knows no engine."""

from fairlead.probe.base import Measure
from fairlead.probe.curvature import Curvature, SaddleCurvature
from fairlead.probe.drift import ClientDrift, DriftDiversity
from fairlead.probe.heterogeneity import Dissimilarity
from fairlead.probe.local import CKA, Alpha, CompressionError, LocalPoints
from fairlead.probe.noise import ControlLag, GradientNoise, batch_noise
from fairlead.probe.on_clients import OnClients
from fairlead.probe.place import Found, Place, Probe, ProbedClient

__all__ = [
    "CKA",
    "Alpha",
    "ClientDrift",
    "CompressionError",
    "ControlLag",
    "Curvature",
    "Dissimilarity",
    "DriftDiversity",
    "Found",
    "GradientNoise",
    "LocalPoints",
    "Measure",
    "OnClients",
    "Place",
    "Probe",
    "ProbedClient",
    "SaddleCurvature",
    "batch_noise",
]
