"""What is measured before and during the race, within a share of the budget: how curved and how different the clients'
objectives are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fairlead.errors import FairleadError
from fairlead.measure import Curvature, Dissimilarity, Probe, take
from fairlead.task.task import Task

PRODUCTS = 4
"""Hessian-vector products per spectrum: its upper end needs few."""
CLIENTS = 3
FEWEST = 8
"""Samples of a client below which its curvature is not worth measuring."""


@dataclass(frozen=True)
class Constants:
    """Numbers at one point, and what they cost.

    beta: the largest curvature of a client's objective, β     smooth: that of their mean, L
    different: mean‖∇f_i‖²/‖∇f‖², one if all clients agree
    """

    where: str
    beta: float
    smooth: float
    different: float
    gradients: int
    bits: int


def constants(
    task: Task, where: str, gradients: float, settings: Mapping[str, Any], x: Tensor | None = None
) -> Constants | None:
    """The constants at a point for at most so many gradients, on a sample of clients and of their data; None if that
    is too few to measure anything."""
    each = 2 * 2 * PRODUCTS + 1  # a product is two gradients; β and L are a spectrum each
    clients = max(1, min(task.clients, CLIENTS, int(gradients / (each * FEWEST))))
    samples: int | None = int(gradients / (each * clients)) // 2 * 2
    if samples >= task.sizes.mean():
        samples = None
    elif samples < FEWEST:
        return None
    known = {name: settings[name] for name in ("weighting", "seed") if name in settings}
    probes: list[Probe] = [
        Curvature(clients=clients, samples=samples, steps=PRODUCTS, delta=False),
        Dissimilarity(clients=clients, samples=samples, pairs=False),
    ]
    try:
        curved, apart = (take(task, probe, x, **known) for probe in probes)
    except FairleadError:  # models whose second derivatives cannot be taken
        return None
    different = apart["A"] / apart["b"] if apart["b"] > 0 else float("inf")
    spent, sent = curved.gradients + apart.gradients, curved.bits + apart.bits
    return Constants(where, curved["beta"], curved["L"], different, spent, sent)
