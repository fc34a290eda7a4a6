"""One client's program on its own task: what a client runs, and what the server tries on a sample of its own to
know what uploads look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead.core.records import Memory, Upload
from fairlead.deploy.agreement import Agreement
from fairlead.engine.api import checked
from fairlead.engine.clients import Single
from fairlead.engine.group import Group
from fairlead.engine.probing import probing
from fairlead.engine.session import Session
from fairlead.engine.state.store import Keep
from fairlead.errors import FairleadError
from fairlead.gradients.deferred import settled
from fairlead.probe.base import Measure
from fairlead.probe.programs import program_of
from fairlead.task.task import Task

ROW = np.zeros(1, np.int64)
"""The only client of a local task."""
BUFFERS, MEASURED = "@buffers", "@measured"
"""The names of the model's buffers and of sums of measures in a message."""


@dataclass(frozen=True)
class Done:
    """What a program returned, and the client that it ran on."""

    upload: Upload
    kept: Memory | None
    client: Single
    more: Mapping[str, Tensor]
    """What is sent beside the upload: buffers that moved, and sums of measures inside the program."""


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
        self.measures = agreement.measures

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
        first_step: int = 0, idle: bool = False, measuring: bool = False, measures: Sequence[str] = (),
    ) -> Done:  # fmt: skip
        """Run a program of the method, or where `measuring` of a measure; nothing is kept. measures: those to take
        inside it, by name."""
        session = self.session
        session.accounts.counters.steps = first_step
        if session.task.draws_masks:
            seed = (session.seed * 1_000_003 + round + 1) * 4093 + int(session.identities[0])
            torch.manual_seed(seed % 2**63)
        with torch.no_grad():
            draw = session.draw(round, ROW, idle)
            outbox = session.outbox(round, exchange, ROW)
            client = Single(
                session.work(round), 0, draw, session.states.one(0), outbox,
                tuple(self._inside(name) for name in measures), broadcast,
            )  # fmt: skip
            run = self._of_measure(program) if measuring else session.method.program(program)
            upload, kept = checked(settled(run(client, **broadcast)), 1, broadcast)
        more: dict[str, Tensor] = {}
        after = client.moved_buffers()
        if after is not None and after.numel() and not measuring:
            more[BUFFERS] = after
        for name, sums in client.measured.items():
            more |= {f"{MEASURED}/{name}/{key}": v.reshape(-1) for key, v in sums.items()}
        return Done(upload, None if measuring else kept, client, more)

    def _of_measure(self, program: str) -> Callable[..., Any]:
        method = self.session.method
        return probing(program_of(self.measures, program, method), method)

    def _inside(self, name: str) -> Measure:
        for measure in self.measures:
            if isinstance(measure, Measure) and measure.name == name:
                return measure
        raise FairleadError(
            f"the measure {name} is not among those agreed on: add it to the agreement's measures on all sides"
        )

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
