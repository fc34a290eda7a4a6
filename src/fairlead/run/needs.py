"""The memory a run will need, before it starts."""

from __future__ import annotations

import dataclasses
from typing import Any

from fairlead.core.method import Algorithm
from fairlead.engine.resources import Needs
from fairlead.engine.simulate import Mode, Preparation, Simulate
from fairlead.engine.state.tiers import release
from fairlead.run.train import planned, prepared
from fairlead.task.task import Task


def needs(
    task: Task,
    algorithm: Algorithm[Any, Any],
    *,
    rounds: int,
    engine: Mode | Simulate = "auto",
    workers: Any = "auto",
    **settings: Any,
) -> Needs:
    """The memory that a run with these settings of `train` will need; with several processes, per process.

    >>> import fairlead as fl
    >>> task = fl.problems.synthetic_logistic(clients=1000, samples=20)
    >>> found = fl.needs(task, fl.Scaffold(lr=0.1), rounds=10, cohort=20, steps=5, batch_size=5)
    >>> found.memories == 200 * task.dim * 8, found.tier
    (True, 'device')
    """
    plan, local = planned(rounds=rounds, **settings)
    given = engine if isinstance(engine, Simulate) else Simulate(engine)
    names = [field.name for field in dataclasses.fields(Simulate)]
    alone = Simulate(**{name: getattr(given, name) for name in names})
    session = prepared(task, algorithm, plan, local, alone).session
    first = plan.sampler.cohort(plan.seed, 0, task.clients)
    for store in session.stores():
        release(store)
    return Preparation(alone, session, first, rounds).needs
