"""Taking probes: in a run, of a finished run, or at any point of a task."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead.core.method import Algorithm
from fairlead.core.records import State
from fairlead.engine.probing import SessionExchanges
from fairlead.engine.session import Session
from fairlead.errors import Absent, FairleadError
from fairlead.probe import Measure, Probe
from fairlead.probe.place import Found, Ids, Place
from fairlead.task.per_client import tests_of
from fairlead.task.samples import load
from fairlead.task.task import Task

HELD_OUT = 512
"""How many held-out inputs probes may use."""


@dataclass(frozen=True)
class Measured:
    """What a probe found, and what it cost.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=4, gradient=2.0)
    >>> found = fl.measure.dissimilarity(task, task.optimum)
    >>> round(found["A"], 6), found.clients, found.samples
    (4.0, 4, 4)
    """

    probe: Probe
    values: Mapping[str, float]
    """Numbers by name; the one without a name is the probe's own."""
    ranges: Mapping[str, tuple[float, float]]
    """From what is certain to what is likely: a Ritz value bounds an end of a spectrum on one side, and an eigenvalue lies
    within its residual on the other; the end itself may lie beyond after few products. Infinite where nothing is known."""
    notes: tuple[str, ...]
    """What was left out, and what this means."""
    where: str
    """The point."""
    clients: int
    samples: int
    """Samples used, over all clients."""
    seconds: float
    gradients: int
    """Gradients of single samples; a Hessian-vector product counts as two."""
    bits: int
    """Bits sent both ways."""
    vectors: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Results that are not single numbers, such as one per client."""

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    @property
    def value(self) -> float:
        """The probe's own number; the first if it has none."""
        return self.values.get("", next(iter(self.values.values())))

    @property
    def name(self) -> str:
        """The probe's name."""
        return self.probe.name

    @property
    def leaves(self) -> str:
        """What left a client, in words."""
        return self.probe.leaves

    def columns(self) -> dict[str, float]:
        """The numbers by column of a history."""
        return {self.probe.column(name): value for name, value in self.values.items()}

    def to_json(self) -> dict[str, Any]:
        """All but the vectors, as JSON takes it; infinite numbers are None."""
        ranges = {
            self.probe.column(name): [_finite(end) for end in ends]
            for name, ends in self.ranges.items()
        }
        return {
            "measure": self.name, "values": {n: _finite(v) for n, v in self.columns().items()},
            "ranges": ranges, "where": self.where, "clients": self.clients, "samples": self.samples,
            "seconds": self.seconds, "gradients": self.gradients, "bits": self.bits,
            "notes": list(self.notes), "leaves": self.leaves,
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.name} at {self.where}, {self.clients} clients, {self.samples:,} samples"]
        for name, value in self.values.items():
            low, high = self.ranges.get(name, (value, value))
            exact = name not in self.ranges or (low == value == high)
            known = (
                "" if exact else f"   in [{low:.6g}, {'∞' if high == np.inf else f'{high:.6g}'}]"
            )
            lines.append(f"  {name or self.name:<16} {value:.6g}{known}")
        lines += [f"  {note}" for note in self.notes]
        cost = f"{self.gradients:,} gradients, {self.bits:,} bits, {self.seconds:.2f} s"
        return "\n".join([*lines, f"  cost: {cost}; what leaves a client: {self.leaves}"])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def take(
    session: Session,
    state: State,
    probe: Probe,
    round: int,
    x: Tensor | None = None,
    where: str = "x",
) -> Measured:
    """Take a probe with the clients of a session; the session goes on as if it had not been taken."""
    accounts = session.accounts
    before = accounts.counters.measured, accounts.ledger.measured
    begin = time.perf_counter()
    point = state.x if x is None else x
    with torch.no_grad():
        found = _found(session, state, point, probe, round)
    if session.task.device.type == "cuda":
        torch.cuda.synchronize(session.task.device)
    return Measured(
        probe, dict(found.values), dict(found.ranges), tuple(found.notes), where, found.clients,
        found.samples, time.perf_counter() - begin, accounts.counters.measured - before[0],
        accounts.ledger.measured - before[1], dict(found.vectors),
    )  # fmt: skip


def _found(session: Session, state: State, x: Tensor, probe: Probe, round: int) -> Found:
    """What a probe finds with the clients that answer."""
    present: Ids | None = None
    while True:
        try:
            return probe.take(_place(session, state, x, probe.name, round, present))
        except Absent as away:
            present = away.left
            if not len(away.left):
                raise FairleadError(
                    f"no client has answered the measure {probe.name}: bring clients back, and measure again"
                ) from None


def _place(
    session: Session, state: State, x: Tensor, name: str, round: int, present: Ids | None
) -> Place:
    task = session.task
    return Place(
        x=x, exchanges=SessionExchanges(session, round, name), clients=task.clients, sizes=task.sizes,
        weights=session.weights, layers=task.layers, flip=task.flip, optimum=task.optimum,
        held_out=_held_out(task), state=state, method=session.method, seed=session.seed, round=round,
        tests=tests_of(task), present=present,
    )  # fmt: skip


def _held_out(task: Task) -> Tensor | None:
    data = task.test if task.test is not None else task.valid
    if data is None or task.arrangement.inputs != 0:
        return None
    return load(task, data, torch.arange(min(HELD_OUT, len(data[0])), device=data[0].device))[0]


def split(measures: Sequence[Measure | Probe]) -> tuple[tuple[Measure, ...], tuple[Probe, ...]]:
    """Measures inside rounds, and probes; anything else is refused."""
    for given in measures:
        if not isinstance(given, Measure | Probe):
            raise FairleadError(
                f"measures contains {given!r}: pass objects such as fl.measure.Dissimilarity()"
            )
    names = [given.name for given in measures]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise FairleadError(f"the measure {min(twice)} is given twice: keep one")
    inside = tuple(m for m in measures if isinstance(m, Measure))
    return inside, tuple(m for m in measures if isinstance(m, Probe))


@dataclass(frozen=True)
class Standing(Algorithm[State, Any]):
    """A method that does nothing, for probes at a point of a task that is not trained."""

    def init(self, x: Tensor) -> State:
        return State(x=x)

    def round(self, s: State, cohort: Any) -> State:
        raise FairleadError("this measure listens to a method's local steps: pass method=…")

    def bind(self, layers: Any, domain: Any = None) -> Standing:
        return self
