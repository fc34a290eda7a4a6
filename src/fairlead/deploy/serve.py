"""The server of a deployed federation: `train` with clients elsewhere."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairlead.data.splits import Split
from fairlead.deploy.agreement import Agreement
from fairlead.deploy.book import Book
from fairlead.deploy.client_folder import replaced
from fairlead.deploy.expected import Forms
from fairlead.deploy.remote import Patience, Remote
from fairlead.deploy.roster import Roster
from fairlead.deploy.transport import Transport
from fairlead.describe import described
from fairlead.engine.api import Ids
from fairlead.engine.session import Execution, Session
from fairlead.engine.simulate import Simulate
from fairlead.errors import FairleadError
from fairlead.gradients.form import Form
from fairlead.measure import take
from fairlead.probe import Measure, Probe
from fairlead.run.measuring import Measured
from fairlead.run.train import Run, train
from fairlead.task.task import Task


@dataclass(frozen=True)
class Deployed(Simulate):
    """The engine whose clients are nodes elsewhere."""

    server: Server | None = field(default=None, repr=False)

    def prepare(self, session: Session, ids: Ids, rounds: int) -> None:
        assert self.server is not None
        if session.execution is None:
            session.use(Execution("loop", 1, Form(), "deployed: clients are nodes elsewhere"))
        session.executor = self.server.executor(session)
        session.noise_seed = self.server.book.secret


@dataclass
class Server:
    """The server of a federation.

    task: the model and its loss on one client's worth of samples of the same form as the clients', which may be
    made up: they are never trained on, but show what uploads look like. Its test data are what the run is
    evaluated on. nodes: the nodes that may take part; by default all that the transport lets in. remember: a file for
    how much data each client has, so that a run can be resumed while some of them are away.
    """

    task: Task
    agreement: Agreement
    transport: Transport
    patience: Patience = field(default_factory=Patience)
    nodes: Collection[int] | None = None
    remember: Path | None = None
    remote: Remote | None = None
    """The executor of the run, once it has begun."""

    def __post_init__(self) -> None:
        agreement = self.agreement
        self.book = Book(agreement.clients)
        self.forms = Forms(self.task, agreement)
        self.roster = Roster(
            self.transport, agreement.clients, agreement.digest(self.task),
            None if self.nodes is None else frozenset(self.nodes),
        )  # fmt: skip

    def executor(self, session: Session) -> Remote:
        """The executor of a run."""
        self.remote = Remote(
            session, self.transport, self.roster, self.book, self.forms, self.patience
        )
        return self.remote

    def gather(self) -> None:
        """Wait until every client has said how much data it has, now or when the run began."""
        if self.remember is not None and self.remember.exists():
            known = json.loads(self.remember.read_text(encoding="utf-8"))
            self.roster.sizes.update(enumerate(known))
        transport, patience, count = self.transport, self.patience, self.agreement.clients
        begin = transport.now()
        until = begin + min(patience.deadline, patience.limit)
        while len(self.roster.sizes) < count:
            self.roster.update(self.book.number())
            for node, data in transport.receive(until):
                if not self.roster.take(node, data):
                    self.roster.refuse(node, "its reply does not say who it is")
            if transport.now() >= until and len(self.roster.sizes) < count:
                if until >= begin + patience.limit:
                    raise FairleadError(
                        f"{len(self.roster.sizes)} of {count} clients have come: start the others, and check "
                        "their numbers and what was refused in the log"
                    )
                self.roster.ask_again()
                until += patience.deadline
        if self.remember is not None:
            self.remember.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps([self.roster.sizes[c] for c in range(count)])
            replaced(self.remember, text.encode())

    def run(self, rounds: int, **settings: Any) -> Run:
        """Train; the settings are those of `fl.train`, without the local work and the seed, which all sides have
        agreed on."""
        self.gather()
        sizes = np.array([self.roster.sizes[c] for c in range(self.agreement.clients)])
        agreement = self.agreement
        callbacks = [self.book, *settings.pop("callbacks", ())]
        measures = self._agreed(settings.pop("measures", agreement.measures))
        return train(
            _elsewhere(self.task, sizes),
            agreement.method.settled(None),
            rounds=rounds,
            batches=agreement.batches,
            seed=agreement.seed,
            engine=Deployed("loop", server=self),
            workers=1,
            objective=False,
            callbacks=callbacks,
            measures=measures,
            **settings,
        )

    def measure(self, run: Run, *probes: Probe) -> list[Measured]:
        """Take measures of a run at its end, on the clients; by default all that they have agreed to."""
        self.gather()
        agreed = [p for p in self.agreement.measures if isinstance(p, Probe)]
        engine = Deployed("loop", server=self)
        chosen = self._agreed(probes) if probes else agreed
        return [take(run, probe, engine=engine) for probe in chosen]  # pyright: ignore[reportArgumentType]

    def _agreed(self, measures: Sequence[Any]) -> tuple[Any, ...]:
        """The measures, if clients have agreed to them; measures of what they upload anyway need no agreement."""
        for one in measures:
            of_uploads = isinstance(one, Measure) and type(one).point is Measure.point
            if not of_uploads and described(one) not in map(described, self.agreement.measures):
                raise FairleadError(
                    f"clients have not agreed to the measure {one.name} with these settings: add it to the "
                    "agreement's measures on all sides"
                )
        return tuple(measures)


def _elsewhere(task: Task, sizes: Ids) -> Task:
    """The task of the server with the sizes of clients whose data are elsewhere."""
    other = task._changed()
    total = int(sizes.sum())
    split = Split(np.zeros(total, np.int64), np.concatenate([[0], np.cumsum(sizes)]))
    other.split, other.order = split, torch.full((total,), -1)
    other.first = torch.from_numpy(split.offsets[:-1].copy())
    other._freeze()
    return other
