"""Checks before a run starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fairlead.core.method import Algorithm
from fairlead.data.batches import Batches
from fairlead.data.sampling import check_dropout
from fairlead.errors import FairleadError, unknown
from fairlead.run.loop import Plan
from fairlead.run.measuring import split
from fairlead.run.same import check_same
from fairlead.schedules import check_rate
from fairlead.task.evaluation import recorded
from fairlead.task.per_client import check_per_client, columns
from fairlead.task.task import Task


def check(task: Task, algorithm: Algorithm[Any, Any], plan: Plan, local: Batches) -> None:
    """Raise an error for anything that can be found wrong before training."""
    if not isinstance(algorithm, Algorithm):
        raise FairleadError(
            f"the method is {algorithm!r}: pass an object such as fl.FedAvg(lr=0.1)"
        )
    for name, count in (("rounds", plan.rounds), ("eval_every", plan.eval_every)):
        if not isinstance(count, int) or count < 1:
            raise FairleadError(f"{name} is {count}: must be a whole number, at least 1")
    if plan.every is not None and (plan.every < 1 or plan.every % plan.eval_every):
        raise FairleadError(
            f"every is {plan.every}: measures are recorded at evaluations, so it must be a multiple of eval_every, "
            f"{plan.eval_every}"
        )
    split(plan.measures)
    local.check(task.sizes)
    single = np.flatnonzero(local.smallest(task.sizes) == 1)
    if task.needs_pairs and len(single):
        raise FairleadError(
            f"client {single[0]} has a batch of one sample, for which BatchNorm1d is undefined: "
            "set drop_last=True or another batch size"
        )
    wrapped = getattr(algorithm, "method", None)
    inner = wrapped if isinstance(wrapped, Algorithm) else algorithm
    why = inner.refuses.get("buffers")
    if why and task.start(plan.seed)[1].numel():
        raise FairleadError(
            f"{type(inner).__name__} cannot train this model, as {why}: use GroupNorm or LayerNorm instead"
        )
    for name, rate in algorithm.rates().items():
        check_rate(name, rate, plan.rounds, local.most_steps(task.sizes, plan.rounds, plan.seed))
    known = recorded(task, plan.weighting, plan.objective)
    if plan.per_client is not None:
        check_per_client(task, plan.per_client, getattr(algorithm, "lr", None))
        known = [*known, *columns(task, plan.per_client)]
    for name in plan.target or {}:
        if name not in known:
            raise unknown("metric for the target", name, known)
    plan.sampler.check(task.clients, plan.rounds)
    check_dropout(plan.dropout, plan.rounds)


def check_resume(run: Any, config: Mapping[str, Any], task: Task, plan: Plan) -> None:
    """Raise an error if a run cannot be resumed with these settings."""
    if run.stopped == "diverged" or run.rounds >= plan.rounds:
        raise FairleadError(
            f"the run to resume diverged or already has {run.rounds} rounds: set rounds higher"
        )
    then = {name: value for name, value in run.config.items() if name != "task"}
    now = {name: value for name, value in config.items() if name != "task"}
    check_same("the run to resume is one", then, now)
    if run.task is not task:
        check_same("the run to resume is one", run.task.fingerprint(), task.fingerprint())
