"""What a theorem promises of a run, beside what the run did."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.errors import FairleadError
from fairlead.measure.known import known
from fairlead.methods import FedAvg, FedPVR, Scaffold
from fairlead.probe import batch_noise
from fairlead.run.train import Run
from fairlead.theory import Bound, Constants, Settings, fedavg, fedpvr, scaffold

THEOREMS: dict[type, Callable[[Constants, Settings, int], Bound]] = {
    FedAvg: fedavg,
    Scaffold: scaffold,
    FedPVR: fedpvr,
}
"""The theorems on f(x̄) − f*, by the method that they are about."""
FREE = ("lr", "server_lr", "layers", "part", "momentum_reset")
"""Settings of a method that do not take it out of its theorem."""
POINTS = 400
"""The most rounds at which a bound is computed."""


@dataclass(frozen=True)
class Against:
    """A theorem's bound after some rounds of a run, the mean over iterates that it bounds, and the error itself."""

    theorem: str
    of: str
    """What is bounded, in symbols."""
    rounds: NDArray[np.int64]
    bound: NDArray[np.float64] = field(repr=False)
    mean: NDArray[np.float64] = field(repr=False)
    """The theorem's mean of the errors of all iterates up to then."""
    error: NDArray[np.float64] = field(repr=False)
    """f(x^r) − f*."""
    conditions: tuple[str, ...]
    """The theorem's conditions, in words with both sides."""
    broken: tuple[str, ...]
    """Those that do not hold: the theorem then promises nothing."""
    notes: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The largest share of the bound that was measured."""
        return float((self.mean / self.bound).max())


def against(run: Run, constants: Constants | None = None) -> Against:
    """The bound of the theorem about a run's method, for its own step size, beside the errors in its history.

    constants: those of the problem; by default the task's own where they are known, and otherwise measured at the starting
        point and the optimum.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=5, dim=4, mu=0.2, delta=0.1)
    >>> run = fl.train(task, fl.Scaffold(lr=0.002), rounds=50, steps=5)
    >>> found = fl.measure.against(run)
    >>> found.broken, bool((found.mean <= found.bound).all())
    ((), True)
    """
    theorem = _theorem(run)
    settings, errors = _settings(run), _errors(run)
    notes: list[str] = []
    if constants is None:
        constants = run.task.constants
    part = getattr(run.algorithm, "part", None)
    if constants is None or (part is not None and constants.zeta_rest is None):
        constants = known(run.task, part=part, seed=run.plan.seed)
        notes.append(
            "constants are measured at the starting point and the optimum: no bounds for all points, unless f is quadratic"
        )
    constants = dataclasses.replace(constants, sigma=_noise(run, constants.sigma))
    if constants.sigma:
        notes.append("the bound is on the mean over runs, of which this is one")
    last = len(errors) - 1
    rounds = np.unique(np.linspace(1, last, min(POINTS, last)).round().astype(np.int64))
    bounds = [theorem(constants, settings, int(r)) for r in rounds]
    means = [b.average(errors[: r + 1]) for r, b in zip(rounds, bounds, strict=True)]
    final = bounds[-1]
    return Against(
        final.theorem, final.of, rounds, np.array([b.value for b in bounds]), np.array(means), errors[rounds],
        tuple(map(str, final.conditions)), tuple(str(c) for c in final.conditions if not c.holds), tuple(notes),
    )  # fmt: skip


def _theorem(run: Run) -> Callable[[Constants, Settings, int], Bound]:
    method = run.algorithm
    theorem = THEOREMS.get(type(method))
    names = ", ".join(kind.__name__ for kind in THEOREMS)
    if theorem is None:
        raise FairleadError(
            f"there is no bound here for {type(method).__name__}: train {names}, or use fl.theory.bound_figure"
        )
    fields: Any = dataclasses.fields(method)  # pyright: ignore[reportArgumentType]
    for one in fields:
        value = getattr(method, one.name)
        if one.name not in FREE and one.init and value is not None and value != one.default:
            raise FairleadError(
                f"{one.name} is {value!r}, of which the theorem about {type(method).__name__} knows nothing: leave it out"
            )
    return theorem


def _errors(run: Run) -> NDArray[np.float64]:
    """f − f* after 0, 1, 2, … rounds."""
    if "gap" not in run.history:
        raise FairleadError(
            "a bound is on f − f*, and the optimum of the task is not known: set task.replace(optimum=…)"
        )
    if run.history["round"].tolist() != list(range(run.rounds + 1)):
        raise FairleadError(
            "a bound is on a mean over all rounds: evaluate each, with eval_every=1"
        )
    return np.maximum(run.history["gap"], 0.0)


def _settings(run: Run) -> Settings:
    method, task, batches = run.algorithm, run.task, run.session.batches
    rates = (getattr(method, "lr", None), getattr(method, "server_lr", 1.0))
    if not all(isinstance(rate, int | float) for rate in rates):
        raise FairleadError("the theorem is for constant step sizes: use numbers, not schedules")
    if not np.allclose(run.session.weights, run.session.weights[0]):
        raise FairleadError('the theorem is for clients of equal weight: use weighting="uniform"')
    if run.rounds == 0:
        raise FairleadError("the run has no rounds: train it first")
    cohorts = set(run.history["clients"][1:].astype(int).tolist())
    ids = np.arange(task.clients)
    steps = set(batches.steps_of(task.sizes, ids).tolist()) if batches.ahead else set()
    if len(cohorts) != 1 or len(steps) != 1:
        raise FairleadError(
            "the theorem is for rounds of equally many clients with equally many steps: set cohort and steps to numbers"
        )
    lr, up = rates
    return Settings(task.clients, steps.pop(), cohorts.pop(), lr=lr, server_lr=up)


def _noise(run: Run, sigma: float | None) -> float:
    """σ of a minibatch, from that of a single sample; where that is not known, it is measured."""
    task, batches = run.task, run.session.batches
    own = task.dim * task.noise**2  # of every gradient, whatever its batch
    sizes = batches.sizes_of(task.sizes)
    if not batches.replacement and bool((sizes >= task.sizes).all()):
        return math.sqrt(own)
    if sigma is None:
        from fairlead.measure.functions import noise

        sigma = noise(task, seed=run.plan.seed)["sigma"]
    single = max(0.0, sigma**2 - own)
    if batches.replacement:
        return math.sqrt(own + float((single / sizes).max()))
    pairs = zip(sizes.tolist(), task.sizes.tolist(), strict=True)
    return math.sqrt(own + max(batch_noise(single, b, n) for b, n in pairs))
