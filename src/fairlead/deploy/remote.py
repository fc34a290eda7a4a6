"""The executor of a deployed federation: an exchange as orders to nodes, and their replies as an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead.core.message import Field, Message
from fairlead.core.records import Upload
from fairlead.deploy.book import Book
from fairlead.deploy.client import digest
from fairlead.deploy.expected import Form, Forms, inside, measured_of
from fairlead.deploy.holding import Holding
from fairlead.deploy.local_work import BUFFERS
from fairlead.deploy.roster import Roster
from fairlead.deploy.transport import Transport
from fairlead.deploy.wire import Header, Order, Reply, Sealed
from fairlead.engine.api import Answer, Executor, Request
from fairlead.engine.exchange import WARM_UP
from fairlead.engine.session import Session
from fairlead.errors import FairleadError, positive


@dataclass(frozen=True)
class Patience:
    """How long the server waits.

    deadline: seconds after which an exchange goes on without those that have not answered. least: how many must
    have answered; while they have not, they are asked again. limit: seconds after which the run gives up.
    """

    deadline: float = 600.0
    least: int = 1
    limit: float = 86_400.0

    def __post_init__(self) -> None:
        positive("deadline", self.deadline)
        positive("limit", self.limit)
        if self.least < 1:
            raise FairleadError(f"least is {self.least}: must be at least 1")


@dataclass
class _Taken:
    """An upload that counts, in the form that an answer takes it."""

    upload: Upload
    buffers: Tensor | None
    gradients: int
    exact: int
    nominal: float
    held: Any
    measured: Any

    def bits(self, upload: Upload) -> tuple[int, float]:
        return self.exact, self.nominal

    def moved_buffers(self) -> Tensor | None:
        return self.buffers


class Remote(Executor):
    """Asks nodes, waits for those that answer in time, and refuses what is not an upload of this exchange."""

    def __init__(
        self, session: Session, transport: Transport, roster: Roster, book: Book, forms: Forms,
        patience: Patience,
    ) -> None:  # fmt: skip
        self.session, self.transport, self.roster, self.book = session, transport, roster, book
        self.forms, self.patience = forms, patience
        self.payload_down = self.payload_up = 0
        """Bits of the vectors that really travelled."""
        self.measured_down = self.measured_up = 0
        """The same, for measures."""
        self.in_rounds, self.in_measures = Holding(), Holding()

    @property
    def remark(self) -> str:
        return f"{len(self.roster.node)} nodes"

    def execute(self, request: Request) -> Answer:
        taken = _Exchange(self, request).gather()
        answered = np.array(sorted(taken), np.int64)
        ids = request.clients[answered]
        _, weights = self.session.cohort_weights(ids)
        some = request.of(answered, weights)
        answer = Answer(len(ids))
        for place, at in enumerate(answered):
            one = taken[int(at)]
            part = np.array([place])
            answer.take(one, one.upload, part, some, weights[place : place + 1])
        answer.answered = answered if len(answered) < len(request.clients) else None
        return answer


class _Exchange:
    """One exchange while it goes on."""

    def __init__(self, remote: Remote, request: Request) -> None:
        self.remote, self.request = remote, request
        self.idle = request.exchange >= WARM_UP
        self.form: Form = remote.forms.of(request, self.idle)
        self.holding = remote.in_measures if request.measuring else remote.in_rounds
        self.holding.begin(request)
        self.fields = self._fields()
        self.hold = self.holding.wanted(request)
        self.digests = {
            name: digest(field.data)
            for name, field in self.fields.items()
            if self.hold and isinstance(request.broadcast.get(name), Tensor)
        }
        self.numbers = tuple(n for n, v in request.broadcast.items() if not isinstance(v, Tensor))
        self.shapes = {
            n: tuple(v.shape)
            for n, v in request.broadcast.items()
            if isinstance(v, Tensor) and v.dim() != 1
        }
        self.sent: dict[int, Sealed] = {}  # by client
        self.taken: dict[int, _Taken] = {}  # by position in the request
        self.failed: set[int] = set()
        self.place = {int(client): place for place, client in enumerate(request.clients)}

    def _fields(self) -> dict[str, Field]:
        """The fields of an order with everything in it."""
        down: dict[str, Tensor] = {}
        for name, v in self.request.broadcast.items():
            down[name] = v if isinstance(v, Tensor) else torch.tensor([v], dtype=torch.float64)
        if self.remote.session.buffers.numel():
            down[BUFFERS] = self.remote.session.buffers
        return {name: Field.plain(name, v) for name, v in down.items()}

    def gather(self) -> dict[int, _Taken]:
        """The uploads that count, by position in the request."""
        taken = self._gathered()
        self.holding.end(self.request)
        return taken

    def _gathered(self) -> dict[int, _Taken]:
        remote, patience = self.remote, self.remote.patience
        least = min(patience.least, len(self.place))
        begin = remote.transport.now()
        until = begin + patience.deadline
        while True:
            remote.roster.update(remote.book.number())
            self._send()
            if self._complete(least):
                return self.taken
            now = remote.transport.now()
            if now >= until:
                if len(self.taken) >= least:
                    return self.taken
                if now >= begin + patience.limit:
                    raise FairleadError(
                        f"{len(self.taken)} clients have answered in round {self.request.round}, but at least "
                        f"{least} must: bring nodes back and resume the run, or set least lower"
                    )
                self._again()
                until = now + patience.deadline
            for node, data in remote.transport.receive(until):
                if not remote.roster.take(node, data):
                    self._take(node, data)

    def _complete(self, least: int) -> bool:
        """Whether there is no one to wait for: clients without a node are not waited for."""
        there = {client for client in self.place if client in self.remote.roster.node}
        open_ = [c for c in there if self.place[c] not in self.taken and c not in self.failed]
        return not open_ and len(self.taken) >= least

    def _again(self) -> None:
        """Ask those again that have not answered."""
        self.failed.clear()
        self.remote.roster.ask_again()
        missing = [c for c in self.sent if self.place[c] not in self.taken]
        nodes = self.remote.roster.node
        self.remote.transport.send({nodes[c]: self.sent[c].data for c in missing if c in nodes})

    def _send(self) -> None:
        """Send the order to clients that are there and have not got it."""
        node = self.remote.roster.node
        new = [c for c in self.place if c in node and c not in self.sent]
        for client in new:
            self.sent[client] = self._order(client)
        self.remote.transport.send({node[c]: self.sent[c].data for c in new})

    def _order(self, client: int) -> Sealed:
        remote, request = self.remote, self.request
        known = self.holding.of(client, request, self.digests)
        fields = tuple(f for name, f in self.fields.items() if name not in known)
        bits = 8 * sum(len(f.data) for f in fields)
        if request.measuring:
            remote.measured_down += bits
        else:
            remote.payload_down += bits
        header = Header(
            remote.book.run, remote.book.number(), remote.book.base[client],
            remote.book.keep(client), remote.session.accounts.counters.steps, self.idle, self.hold,
            self.holding.adds(client), tuple(request.broadcast), known, self.numbers, self.shapes, request.measuring, inside(request),
        )  # fmt: skip
        method = type(remote.session.method).__name__
        message = Message(method, request.program, request.round, request.exchange, client, fields)
        return Sealed.of(Order(header, message))

    def _take(self, node: int, data: bytes) -> None:
        """Take a reply, or refuse it."""
        roster = self.remote.roster
        client = roster.client_of(node)
        if client is None:
            roster.refuse(node, "it has not said which client it is")
            return
        order = self.sent.get(client)
        try:
            reply = Reply.unpack(data, self.form.most)
            if order is None or reply.tag != order.tag:
                raise _Stale("its reply is to another order: it is late, or was repeated")
            if self.place[client] in self.taken:
                raise _Stale("its reply came again")
            self._count(client, order, reply)
        except _Stale as error:
            roster.refuse(node, str(error))
        except Exception as error:  # whatever a node sends, the run goes on
            roster.refuse(node, f"{type(error).__name__}: {error}"[:500])
            if order is not None and self.place[client] not in self.taken:
                self.failed.add(client)

    def _count(self, client: int, order: Sealed, reply: Reply) -> None:
        remote, message, sent = self.remote, reply.message, order.order.message
        if reply.client != client:
            raise FairleadError(f"it says that it is client {reply.client}")
        if reply.lacks and order.order.header.known:
            self.holding.forget(client)
            del self.sent[client]  # it gets an order with everything in it
            return
        if reply.error or message is None or sent is None:
            raise FairleadError(reply.error or "its reply has no upload")
        about = [(m.method, m.program, m.round, m.exchange, m.client) for m in (message, sent)]
        if about[0] != about[1]:
            raise FairleadError("its upload is that of another exchange")
        self.form.check(reply, message)
        upload, more = self.form.read(reply, message, remote.forms.compressors)
        bits = 8 * sum(len(f.data) for f in message.fields if f.name not in more)
        buffers = more.pop(BUFFERS, None)
        if self.request.measuring:
            remote.measured_up += bits
        else:
            remote.payload_up += bits + 8 * (0 if buffers is None else buffers.nbytes)
        device = remote.session.task.device
        self.taken[self.place[client]] = _Taken(
            upload.map(lambda v: v.to(device)), None if buffers is None else buffers.to(device),
            reply.gradients, bits, self.form.nominal, {}, measured_of(more, device),
        )  # fmt: skip
        if self.hold:
            self.holding.put(client, self.digests)
        if reply.kept and not self.request.measuring:
            remote.book.counts(client, order.tag)


class _Stale(FairleadError):
    """A reply that comes too late, or again: nothing is wrong with its node."""
