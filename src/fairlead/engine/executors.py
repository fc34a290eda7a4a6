"""Executors on one device: chunks of clients as matrices, or one client at a time."""

from __future__ import annotations

import numpy as np
import torch

from fairlead.core.method import is_own
from fairlead.data.batches import Draw
from fairlead.engine.api import Answer, Executor, Request
from fairlead.engine.clients import Single, Stacked
from fairlead.engine.session import Session
from fairlead.errors import FairleadError
from fairlead.gradients.deferred import settled
from fairlead.task.task import Task


def unstackable(task: Task, draw: Draw) -> str:
    """Why a task cannot run as a matrix of clients, or an empty string."""
    if not task.stackable:
        return "its functions are given one per client"
    if task.mixes_samples and (len(np.unique(draw.count)) > 1 or not task.split.even):
        return "BatchNorm mixes the samples of a batch, and these clients' batches differ in size"
    return ""


class StackedExecutor(Executor):
    """Chunks of clients as matrices, `room` clients at a time."""

    def __init__(self, session: Session, room: int) -> None:
        self.session, self.room = session, room

    def execute(self, request: Request) -> Answer:
        session, draw, ids = self.session, request.draw, request.clients
        if unstackable(session.task, draw):
            return OneByOne(session).execute(request)
        program = session.program(request.program)
        found = Answer(len(ids))
        order = np.argsort(-draw.steps, kind="stable")  # clients of similar length run together
        for part in np.array_split(order, -(-len(ids) // max(1, self.room))):
            whole = np.array_equal(part, np.arange(len(ids)))
            some = draw if whole else Draw(draw.index[torch.from_numpy(part)], draw.count[part])
            some = Draw(some.index[:, : some.longest], some.count[:, : some.longest])
            rows = ids if whole else ids[part]
            outbox = session.outbox(request.round, request.exchange, rows)
            client = Stacked(
                session.work(request.round), rows, some, session.states.read(rows), outbox,
                request.measures, request.broadcast,
            )  # fmt: skip
            returned = program(client, **request.broadcast)
            weights = request.weights
            if not whole:
                weights = weights[torch.from_numpy(part).to(weights.device)]
            found.take(client, returned, part, request, weights)
        return found


class OneByOne(Executor):
    """One client at a time. In debug mode every value is checked, and errors name round, client and step."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def execute(self, request: Request) -> Answer:
        session, draw, ids = self.session, request.draw, request.clients
        program = session.program(request.program)
        found, work = Answer(len(ids)), session.work(request.round)
        # programs of fairlead's own methods do not write to what they read
        own_state = session.states.view if is_own(session.method) else session.states.one
        for place in range(len(ids)):
            row = ids[place : place + 1]
            mine = Draw(draw.index[place : place + 1], draw.count[place : place + 1])
            outbox = session.outbox(request.round, request.exchange, row)
            client = Single(
                work, int(row[0]), mine, own_state(int(row[0])), outbox,
                request.measures, request.broadcast,
            )  # fmt: skip
            try:
                returned = settled(program(client, **request.broadcast))
                part = np.array([place])
                found.take(client, returned, part, request, request.weights[place : place + 1])
                for name, value in found.sums.items():
                    client.finite(f"the upload {name}", value)
            except Exception as error:
                if not work.check:
                    raise
                raise FairleadError(
                    f"round {request.round}, client {row[0]}, {client.at}: {error}"
                ) from error
        return found
