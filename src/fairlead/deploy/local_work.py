"""One client's program on its own task: what a client runs, and what the server tries on a sample of its own to
know what uploads look like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fairlead.core.records import Memory, Upload
from fairlead.deploy.agreement import Agreement
from fairlead.engine.api import checked
from fairlead.engine.clients import Single
from fairlead.engine.group import Group
from fairlead.engine.session import Session
from fairlead.engine.state.store import Keep
from fairlead.errors import FairleadError
from fairlead.gradients.deferred import settled
from fairlead.task.task import Task

ROW = np.zeros(1, np.int64)
"""The only client of a local task."""


@dataclass(frozen=True)
class Done:
    """What a program returned, and the client that it ran on."""

    upload: Upload
    kept: Memory | None
    client: Single


class LocalWork:
    """Runs client programs on the task of one client."""

    def __init__(self, task: Task, agreement: Agreement, client: int) -> None:
        if task.clients != 1:
            raise FairleadError(
                f"the task of a client has {task.clients} clients: build it from the client's own data, as one "
                "client"
            )
        batches = agreement.batches
        if isinstance(batches.steps, (list, tuple, np.ndarray)):
            batches = replace(batches, steps=int(batches.steps[client]))
        keep = Keep(1, task.device)
        self.session = Session(
            task, agreement.bound(task), batches, np.ones(1), agreement.seed, keep, Group()
        )
        self.session.identities = np.array([client])

    def load(self, vectors: Mapping[str, Tensor]) -> None:
        """Begin with what `state` gave; with nothing, as clients start."""
        session, device = self.session, self.session.task.device
        session.residuals.stores.clear()
        if session.states.start is not None:
            session.states.store = session.keep.store(session.states.start)
        memory = {
            n.removeprefix("memory/"): t.to(device)
            for n, t in vectors.items()
            if n.startswith("memory/")
        }
        if memory and session.states.start is not None:
            session.states.write(ROW, session.states.start.filled(memory).map(lambda t: t[None]))
        for name, t in vectors.items():
            if name.startswith("residuals/"):
                session.residuals.write(ROW, {name.removeprefix("residuals/"): t.to(device)[None]})

    def run(
        self, program: str, broadcast: Mapping[str, Tensor | float], round: int, exchange: int,
        first_step: int = 0, idle: bool = False,
    ) -> Done:  # fmt: skip
        """Run a program; nothing is kept."""
        session = self.session
        session.accounts.counters.steps = first_step
        if session.task.draws_masks:
            seed = (session.seed * 1_000_003 + round + 1) * 4093 + int(session.identities[0])
            torch.manual_seed(seed % 2**63)
        with torch.no_grad():
            draw = session.draw(round, ROW, idle)
            outbox = session.outbox(round, exchange, ROW)
            client = Single(
                session.work(round), 0, draw, session.states.one(0), outbox, (), broadcast
            )
            returned = settled(session.method.program(program)(client, **broadcast))
            upload, kept = checked(returned, 1, broadcast)
        return Done(upload, kept, client)

    def state(self, done: Done) -> dict[str, Tensor] | None:
        """The client's state after a program; None if it is as before."""
        session, held = self.session, done.client.held
        if done.kept is None and not held:
            return None
        if done.kept is not None and session.states.start is None:
            raise FairleadError(
                "a client program returned a memory, but the method's `memory` starts none"
            )
        memory = done.kept if done.kept is not None else session.states.one(0)
        found = {} if memory is None else {f"memory/{n}": t for n, t in memory.tensors().items()}
        left = {n: store.read(ROW).v for n, store in session.residuals.stores.items()}
        return found | {f"residuals/{n}": v[0] for n, v in (left | held).items()}
