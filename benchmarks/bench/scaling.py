"""How a round's time grows: with the cohort, the population, the model and the local steps.

Each curve moves one number and leaves the others: a cohort of 10 clients × 5 steps × batch 20 of a
network with 10⁵ parameters. The population's curve has a tiny model, so that nothing hides what it
costs to have a million clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from bench.machine import Machine
from bench.turns import Say, own, take_turns
from bench.workloads import Workload


def network(dim: float, clients: int = 10, steps: int = 5) -> Workload:
    """Two hidden layers that make about so many parameters.

    >>> network(1e5).dim
    99915
    """
    width = round((math.sqrt(112**2 + 4 * dim) - 112) / 2)  # h² + 112 h + 10 = d
    name = f"MLP 100-{width}-{width}-10"
    return Workload(name, name, "mlp", (100, width, width, 10), (100,), 10, clients, steps, 20)


def population(clients: int) -> Workload:
    """A cohort of 10 out of so many clients with two samples each, and a model of 210 parameters."""
    return Workload(
        "softmax", "softmax 20→10", "mlp", (20, 10), (20,), 10, 10, 2, 1, population=clients
    )


@dataclass(frozen=True)
class Curve:
    """What is moved, and where to."""

    name: str
    values: tuple[int, ...]
    make: Callable[[int], Workload]


CURVES = (
    Curve("cohort", (1, 3, 10, 30, 100, 300, 1000), lambda s: network(1e5, clients=s)),
    Curve("population", (100, 1000, 10**4, 10**5, 10**6), population),
    Curve("parameters", (10**4, 3 * 10**4, 10**5, 3 * 10**5, 10**6, 3 * 10**6, 10**7), network),
    Curve("local steps", (1, 3, 10, 30, 100), lambda k: network(1e5, steps=k)),
)


def scaling(
    machine: Machine,
    repeats: int,
    engine: str,
    say: Say,
    curves: tuple[Curve, ...] = CURVES,
    seconds: float = 0.5,
) -> list[dict[str, Any]]:
    """Each point of each curve, timed in turns."""
    contestants = [
        own("bare loop", machine.device),
        own("fairlead", machine.device, "FedAvg", engine),
        own("SCAFFOLD", machine.device, "SCAFFOLD", engine),
    ]
    found = []
    with ExitStack() as stack:
        for contestant in contestants:
            stack.enter_context(contestant)
        for curve, value in ((c, value) for c in curves for value in c.values):
            work = curve.make(value)
            say(f"{curve.name} {value:,}")
            times = take_turns(contestants, work.asked(), repeats, seconds)
            point = {"curve": curve.name, "value": value, "floor": max(machine.floor(work))}
            point |= {t.group: None if t.failed else t.median for t in times}
            about = {"title": work.title, "contestants": [asdict(t) for t in times]}
            found.append({**point, **about})
    return found
