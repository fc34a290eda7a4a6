"""What makes methods win or lose: heterogeneity, curvature, noise, drift, and conformal prediction.

>>> import fairlead as fl
>>> task = fl.problems.random_quadratics(clients=6, delta=0.2, gradient=2.0)
>>> round(fl.measure.curvature(task)["delta"], 6), round(fl.measure.zeta_star(task), 6)
(0.2, 2.0)
"""

from fairlead.measure.against import Against, against
from fairlead.measure.bounds import Bounds, dissimilarity_bounds
from fairlead.measure.conformal import Conformal, Coverage, conformal, plot_coverage, probabilities
from fairlead.measure.functions import (
    alpha,
    cka,
    compression,
    constants,
    control_lag,
    curvature,
    dissimilarity,
    local_points,
    noise,
    take,
    zeta_star,
)
from fairlead.measure.known import known
from fairlead.measure.record import record
from fairlead.probe import (
    CKA,
    Alpha,
    ClientDrift,
    CompressionError,
    ControlLag,
    Curvature,
    Dissimilarity,
    DriftDiversity,
    Found,
    GradientNoise,
    LocalPoints,
    Measure,
    OnClients,
    Place,
    Probe,
    ProbedClient,
    SaddleCurvature,
    batch_noise,
)
from fairlead.probe.local import linear_cka
from fairlead.run.measuring import Measured
from fairlead.theory.dissimilarity import smallest_bounds

PROBES: dict[str, type[Probe]] = {
    probe.name: probe
    for probe in (
        Dissimilarity, Curvature, SaddleCurvature, GradientNoise, ControlLag, LocalPoints, Alpha,
        CompressionError, CKA, OnClients,
    )
}  # fmt: skip
"""The probes by name, as the command line knows them."""

__all__ = [
    "CKA",
    "PROBES",
    "Against",
    "Alpha",
    "Bounds",
    "ClientDrift",
    "CompressionError",
    "Conformal",
    "ControlLag",
    "Coverage",
    "Curvature",
    "Dissimilarity",
    "DriftDiversity",
    "Found",
    "GradientNoise",
    "LocalPoints",
    "Measure",
    "Measured",
    "OnClients",
    "Place",
    "Probe",
    "ProbedClient",
    "SaddleCurvature",
    "against",
    "alpha",
    "batch_noise",
    "cka",
    "compression",
    "conformal",
    "constants",
    "control_lag",
    "curvature",
    "dissimilarity",
    "dissimilarity_bounds",
    "known",
    "linear_cka",
    "local_points",
    "noise",
    "plot_coverage",
    "probabilities",
    "record",
    "smallest_bounds",
    "take",
    "zeta_star",
]
