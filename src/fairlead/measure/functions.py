"""Measures on their own: of a task at a point, of a method's next round, or of a finished run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairlead.core.method import Algorithm
from fairlead.core.records import State
from fairlead.engine.session import Session
from fairlead.engine.simulate import Mode, Simulate
from fairlead.errors import FairleadError
from fairlead.probe import (
    CKA,
    Alpha,
    CompressionError,
    ControlLag,
    Curvature,
    Dissimilarity,
    GradientNoise,
    LocalPoints,
    Probe,
    SaddleCurvature,
)
from fairlead.run.measuring import Measured, Standing
from fairlead.run.measuring import take as taken
from fairlead.run.train import Run, planned
from fairlead.task.task import Task


def take(
    of: Task | Run,
    probe: Probe,
    x: Tensor | None = None,
    *,
    method: Algorithm[Any, Any] | None = None,
    buffers: Tensor | None = None,
    engine: Mode | Simulate = "auto",
    weighting: str | Sequence[float] = "uniform",
    seed: int = 0,
    **work: Any,
) -> Measured:
    """Take a probe of a task at `x`, by default its starting point, or of a finished run, by default at its end.

    method: whose round to try, for probes of local points, with its local work as in `train` (batch_size, steps,
        epochs …). A run has its own.
    buffers: the BatchNorm statistics that belong to x.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=5, mu=0.1, beta=1.0, delta=0.2)
    >>> found = fl.measure.take(task, fl.measure.Curvature(), task.optimum)
    >>> round(found["delta"], 6), round(found["L"], 6)
    (0.2, 1.0)
    """
    if isinstance(of, Run):
        if method is not None or work:
            raise FairleadError(
                "a run has its own method and local work: leave method and work out"
            )
        session, state, round, where = *_reopened(of, engine), of.rounds, f"round {of.rounds}"
    else:
        session, state, round = *_opened(of, method, engine, weighting, seed, work), 0
        where = "the starting point"
        if buffers is not None:
            session.buffers = buffers
    try:
        if x is not None:
            point = session.task.cast(x)
            best = session.task.optimum
            where = (
                "the optimum" if best is not None and torch.equal(point, best) else "a given point"
            )
            state = state.filled({**state.tensors(), "x": point})
        return taken(session, state, probe, round, where=where)
    finally:
        session.close()


def _mode(task: Task, engine: Mode | Simulate) -> Simulate:
    if isinstance(engine, Simulate):
        return engine
    if engine != "auto":
        return Simulate(engine)
    convolves = any(isinstance(m, nn.Conv2d) for m in task.model.modules())
    alone = not task.stackable or task.mixes_samples or (convolves and task.device.type == "cpu")
    return Simulate("loop" if alone else "vmap")


def _opened(
    task: Task,
    method: Algorithm[Any, Any] | None,
    engine: Mode | Simulate,
    weighting: str | Sequence[float],
    seed: int,
    work: dict[str, Any],
) -> tuple[Session, State]:
    plan, local = planned(rounds=1, seed=seed, weighting=weighting, **work)
    local.check(task.sizes)
    bound = (method or Standing()).bind(task.layers, task.domain).to(task.device)
    setting = _mode(task, engine)
    session = setting.open(task, bound, local, task.client_weights(weighting), seed)
    setting.prepare(session, np.arange(task.clients), plan.rounds)
    return session, bound.init(task.start(seed)[0])


def _reopened(run: Run, engine: Mode | Simulate) -> tuple[Session, State]:
    old = run.session
    if engine == "auto" and old.mode in ("vmap", "loop", "debug"):
        setting = Simulate(old.mode)  # pyright: ignore[reportArgumentType]
    else:
        setting = _mode(run.task, engine)
    session = setting.open(run.task, run.algorithm, old.batches, old.weights, run.plan.seed)
    session.continue_from(old)
    session.execution = None  # the engine may be another one
    setting.prepare(session, np.arange(run.task.clients), 1)
    return session, run.state


def dissimilarity(of: Task | Run, x: Tensor | None = None, **settings: Any) -> Measured:
    """A, b, A − b and the five things called ζ at x, see `fl.measure.Dissimilarity`, whose settings it takes.

    >>> import fairlead as fl
    >>> found = fl.measure.dissimilarity(fl.problems.theorem2(gradient=3.0, start=0.0))
    >>> found.value, found["zeta_max"], found["zeta_pair"]
    (9.0, 3.0, 6.0)
    """
    return _with(Dissimilarity, of, x, settings)


def zeta_star(task: Task, part: Any = None, **settings: Any) -> float:
    """ζ_* = √mean_i‖∇f_i(x*)‖² (Li et al. 2023, (10)), or with a part ζ_{1−p} on the other coordinates (12); of a task
    whose optimum is known."""
    if task.optimum is None:
        raise FairleadError(
            "the task's optimum is not known: set it, task.replace(optimum=fl.minimize(task))"
        )
    found = dissimilarity(task, task.optimum, part=part, pairs=False, **settings)
    return found["zeta_hat"] if part is None else found["zeta_hat_rest"]


def curvature(of: Task | Run, x: Tensor | None = None, **settings: Any) -> Measured:
    """β, L, μ, κ and δ at x, see `fl.measure.Curvature`; for a saddle task its own, `fl.measure.SaddleCurvature`.

    >>> import fairlead as fl
    >>> found = fl.measure.curvature(fl.problems.quadratic_game(mu=0.2, beta=1.0, delta=0.0))
    >>> round(found["mu"], 6), round(found["beta"], 6)
    (0.2, 1.0)
    """
    task = of.task if isinstance(of, Run) else of
    return _with(SaddleCurvature if task.flip is not None else Curvature, of, x, settings)


def noise(of: Task | Run, x: Tensor | None = None, **settings: Any) -> Measured:
    """σ² of gradients on single samples at x, see `fl.measure.GradientNoise`."""
    return _with(GradientNoise, of, x, settings)


def local_points(of: Task | Run, x: Tensor | None = None, **settings: Any) -> Measured:
    """Client drift, shadow drift and the loss of the clients' mean points in a trial round, see
    `fl.measure.LocalPoints`. For a task, give method=… and its local work.

    >>> import fairlead as fl
    >>> task = fl.problems.theorem2(gradient=10)
    >>> found = fl.measure.local_points(task, method=fl.FedAvg(lr=0.1), steps=5)
    >>> sorted(found.values)
    ['client_drift', 'shadow_drift', 'shadow_loss', 'xi']
    """
    return _with(LocalPoints, of, x, settings)


def alpha(of: Task | Run, x: Tensor | None = None, **settings: Any) -> Measured:
    """α and α/n in a trial round, see `fl.measure.Alpha`. For a task, give method=… and its local work."""
    return _with(Alpha, of, x, settings)


def cka(of: Task | Run, x: Tensor | None = None, **settings: Any) -> Measured:
    """The similarity of the clients' models after a trial round, by layer, see `fl.measure.CKA`."""
    return _with(CKA, of, x, settings)


def compression(of: Task | Run, x: Tensor | None = None, **settings: Any) -> Measured:
    """The error q of the method's compressor on the uploads of a trial round, see `fl.measure.CompressionError`."""
    return _with(CompressionError, of, x, settings)


def control_lag(of: Task | Run, x: Tensor | None = None, **settings: Any) -> Measured:
    """How far control variates are behind the clients' gradients, see `fl.measure.ControlLag`."""
    return _with(ControlLag, of, x, settings)


def _with(kind: type[Any], of: Task | Run, x: Tensor | None, settings: dict[str, Any]) -> Measured:
    own = {n: settings.pop(n) for n in kind.__dataclass_fields__ if n in settings}
    return take(of, kind(**own), x, **settings)


def constants(
    task: Task, x: Tensor | None = None, *, steps: int = 30, **settings: Any
) -> dict[str, float]:
    """The constants that theorems use, by name, measured at x (by default the starting point) and at the optimum
    where it is known: beta, L, mu, kappa, delta, weak_convexity, sigma, zeta_max, zeta_pair, zeta_hat, zeta_star, and
    D = ‖x − x*‖, F = f(x) − f*. Those of a quadratic hold everywhere; of other tasks they are values at one point.

    settings: clients and samples, the budget, and engine, weighting, seed.

    >>> import fairlead as fl
    >>> found = fl.measure.constants(fl.problems.random_quadratics(mu=0.1, beta=1.0, delta=0.1))
    >>> {name: round(found[name], 6) for name in ("L", "mu", "delta", "zeta_star")}
    {'L': 1.0, 'mu': 0.1, 'delta': 0.1, 'zeta_star': 1.0}
    """
    at = task.start(settings.get("seed", 0))[0] if x is None else task.cast(x)
    found: dict[str, float] = dict(curvature(task, at, steps=steps, **settings).values)
    gradients = dissimilarity(task, at, **settings)
    found |= {name: value for name, value in gradients.values.items() if name.startswith("zeta")}
    if not task.mixes_samples:
        found["sigma"] = noise(task, at, **settings)["sigma"]
    if task.optimum is not None:
        found["zeta_star"] = zeta_star(task, **settings)
        found["D"] = float((at - task.optimum).norm())
        if task.flip is None:
            weighting = settings.get("weighting", "uniform")
            with torch.no_grad():
                gap = task.objective(at, weighting) - task.objective(task.optimum, weighting)
            found["F"] = max(0.0, float(gap))
    return {name: value for name, value in found.items() if not math.isnan(value)}
