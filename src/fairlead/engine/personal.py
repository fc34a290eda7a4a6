"""Metrics of every client: with the server's model, and personalised, after a few local steps from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead.data.batches import Batches, Draw
from fairlead.engine.api import Ids
from fairlead.engine.clients import Single, Stacked, Work
from fairlead.engine.executors import unstackable
from fairlead.engine.session import Session
from fairlead.gradients.deferred import settled
from fairlead.gradients.oracle import Gradients
from fairlead.rng import Purpose
from fairlead.schedules import rate_at
from fairlead.task.evaluation import judge_of
from fairlead.task.per_client import (
    CLIENT,
    PERSONAL,
    ClientMetrics,
    PerClient,
    client_sums,
    gathered,
    per_sample,
    personal_sums,
    split_of_test,
)
from fairlead.task.task import Task


def client_metrics(session: Session, x: Tensor, setting: PerClient, task: Task) -> ClientMetrics:
    """The metrics of every client on its own test data. The run's processes share the work; `task` has the data of
    all of its clients, or of those of this process."""
    judge, spread = judge_of(task), session.group.spread
    own = session.buffers[: judge.buffer_dim]
    with torch.no_grad():
        sums = {CLIENT: client_sums(judge, x[: judge.dim], own, spread)}
        if setting.steps:
            found = _personal(session, x, setting, task)
            sums[PERSONAL] = found if spread is None else spread.ranks.sum_(found)
    return gathered(judge, sums)


def _personal(session: Session, x: Tensor, setting: PerClient, task: Task) -> Tensor:
    """Sums over the test samples of this process's clients, each with its own model: (measures, clients)."""
    sizes = split_of_test(task).sizes
    ids = session.group.evaluates(np.flatnonzero(sizes))
    ids = ids[np.argsort(-sizes[ids], kind="stable")]  # clients of similar size are tested together
    steps = _Steps(session, setting, task)
    total = x.new_zeros(len(per_sample(task)), task.clients)
    for part in np.array_split(ids, -(-len(ids) // steps.room)) if len(ids) else ():
        for some, draw in steps.drawn(part):
            y, buffers = steps.taken(some, draw, x)
            found = personal_sums(task, some, y, buffers)
            total[:, torch.from_numpy(some).to(task.device)] = found
    return total


class _Steps:
    """Plain local steps, executed as the run is: chunks of clients as matrices, or one client at a time."""

    def __init__(self, session: Session, setting: PerClient, task: Task) -> None:
        self.session, self.task = session, task
        lr: Any = session.method
        self.lr = rate_at(lr.lr, 0, 0) if setting.lr is None else setting.lr
        gradients = session.gradients if session.task is task else Gradients(task)
        self.work = Work(
            gradients, session.seed, 0, 0, session.buffers, session.identities,
            check=session.mode == "debug",
        )  # fmt: skip
        self.batches = Batches(setting.batch_size, setting.steps)
        self.room = max(1, session.settled.room)

    def drawn(self, ids: Ids) -> Iterable[tuple[Ids, Draw]]:
        """The batches of some clients, in pieces that are executed at once."""
        session, task = self.session, self.task
        who, purpose = session.identities[ids], Purpose.PERSONAL
        draw = self.batches.draw(
            session.seed, 0, who, task.sizes[ids], purpose, task.store, rows=ids
        )
        if session.mode == "vmap" and not unstackable(task, draw):
            return [(ids, draw)]
        return (
            (ids[k : k + 1], Draw(draw.index[k : k + 1], draw.count[k : k + 1]))
            for k in range(len(ids))
        )

    def taken(self, ids: Ids, draw: Draw, x: Tensor) -> tuple[Tensor, Tensor]:
        """The models (S, d) and buffers of clients after their steps."""
        outbox = self.session.outbox(0, 0, ids)
        if len(ids) > 1:
            client = Stacked(self.work, ids, draw, None, outbox)
        else:
            client = Single(self.work, int(ids[0]), draw, None, outbox)
        y: Any = x
        for step in client.steps(self.lr):
            y = y - step.lr * step.grad(y)
        y = settled(y)
        return (y, client.buffers) if y.dim() == 2 else (y[None], client.buffers[None])
