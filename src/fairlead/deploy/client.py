"""A client of a deployed federation: answers orders with its own data, and keeps its state on its own disk."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from torch import Tensor

from fairlead.core.message import Field, Message
from fairlead.deploy.agreement import Agreement, compressors_of
from fairlead.deploy.client_folder import ClientFolder
from fairlead.deploy.local_work import BUFFERS, Done, LocalWork
from fairlead.deploy.wire import Order, Reply, tag_of
from fairlead.errors import FairleadError
from fairlead.task.task import Task

log = logging.getLogger("fairlead.deploy")


def digest(data: bytes) -> str:
    """The digest of a vector's bytes."""
    return hashlib.sha256(data).hexdigest()[:32]


class LocalClient:
    """Answers the orders of a server.

    task: the client's own data, as one client. client: its number. folder: where its states are kept; they
    leave it only if the method sends them.
    """

    def __init__(self, task: Task, agreement: Agreement, client: int, folder: str | Path) -> None:
        if not 0 <= client < agreement.clients:
            raise FairleadError(
                f"client is {client}: clients are numbered from 0 to {agreement.clients - 1}"
            )
        self.task, self.agreement, self.client = task, agreement, client
        self.folder = Path(folder) / f"client-{client}"
        self.work = LocalWork(task, agreement, client)
        self.compressors = compressors_of(self.work.session.method)

    def answer(self, data: bytes) -> bytes:
        """The reply to an order, as bytes. The same order has the same reply, also after a restart. What goes wrong
        here is logged here; the server is told no more than that it did."""
        tag = tag_of(data)
        try:
            return self._answer(data, tag)
        except FairleadError as error:
            log.warning("client %d: %s", self.client, error)
            return Reply(tag, self.client, error=str(error)[:500]).pack()
        except Exception:
            log.exception("client %d: an order could not be carried out", self.client)
            return Reply(tag, self.client, error="its program failed: see its log").pack()

    def _answer(self, data: bytes, tag: str) -> bytes:
        order = Order.unpack(data)
        header, message = order.header, order.message
        if message is None:
            return Reply(tag, self.client, about=self.about()).pack()
        if message.client != self.client or message.method != type(self.agreement.method).__name__:
            raise FairleadError(
                f"an order for client {message.client} and {message.method} came to client {self.client} and "
                f"{type(self.agreement.method).__name__}: give every client its own number"
            )
        folder = ClientFolder(self.folder, header.run)
        number, last, reply = folder.last()
        if tag == last:
            return reply
        if header.number <= number:
            raise FairleadError("an order came again after a later one: it was not carried out")
        broadcast = self._vectors(order, folder)
        if broadcast is None:
            return Reply(tag, self.client, lacks=True).pack()
        self.work.load(folder.state(header.base))
        done = self._run(order, broadcast)
        state = None if header.measuring else self.work.state(done)
        sent = self._reply(order, tag, done, state is not None).pack()
        folder.forget_states({header.base, *header.keep})
        if state is not None:
            folder.add_state(tag, state)
        if header.hold:
            before = folder.held(header.measuring) if header.add else {}
            vectors = {n: t for n, t in broadcast.items() if n not in header.numbers}
            folder.hold({**before, **vectors}, header.measuring)
        folder.answered(header.number, tag, sent)
        return sent

    def about(self) -> dict[str, object]:
        """What the server learns of a client: how many samples it has, and what it has agreed to."""
        return {
            "samples": int(self.task.sizes[0]),
            "agreement": self.agreement.digest(self.task),
        }

    def _vectors(self, order: Order, folder: ClientFolder) -> dict[str, Tensor] | None:
        """The vectors of an order, also those that were not sent; None if some are missing."""
        assert order.message is not None
        found = {f.name: order.message.value(f.name) for f in order.message.fields}
        if order.header.known:
            held = folder.held(order.header.measuring)
            for name, expected in order.header.known.items():
                if name not in held or digest(Field.plain(name, held[name]).data) != expected:
                    return None
                found[name] = held[name]
        return found

    def _run(self, order: Order, vectors: dict[str, Tensor]) -> Done:
        header, message, task = order.header, order.message, self.task
        assert message is not None
        there = {name: t.to(task.device) for name, t in vectors.items()}
        self.work.session.buffers = there.pop(BUFFERS, self.work.session.buffers)
        shaped = {n: t.reshape(header.shapes.get(n, (-1,))) for n, t in there.items()}
        broadcast = {
            n: float(shaped[n]) if n in header.numbers else shaped[n] for n in header.names
        }
        return self.work.run(
            message.program, broadcast, message.round, message.exchange, header.first_step,
            header.idle, header.measuring, header.measures,
        )  # fmt: skip

    def _reply(self, order: Order, tag: str, done: Done, kept: bool) -> Reply:
        message, outbox = order.message, done.client.outbox
        assert message is not None
        fields = outbox.fields(done.upload)
        codes: dict[str, tuple[int, int, int]] = {}
        for field in fields:
            if field.coded:
                coded = outbox.sent[field.name][0]
                if coded.by not in self.compressors:
                    raise FairleadError(
                        f"{coded.by} is not among the method's settings: make it one, so that the server knows it"
                    )
                first, second = coded.noise.keys[0].tolist()
                codes[field.name] = self.compressors.index(coded.by), first, second
        fields = (*fields, *(Field.plain(name, v) for name, v in done.more.items()))
        sent = Message(
            message.method, message.program, message.round, message.exchange, self.client, fields
        )
        return Reply(tag, self.client, sent, kept, int(done.client.gradients), codes)
