"""Flower's apps: the server and the clients of a federation as a ServerApp and a ClientApp.

A project has one `Agreement` and two functions that return tasks; `fairlead deploy init` writes one.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairlead.deploy.agreement import Agreement
from fairlead.deploy.client import LocalClient
from fairlead.deploy.client_folder import replaced
from fairlead.deploy.remote import Patience
from fairlead.deploy.serve import Server
from fairlead.deploy.transport import Transport
from fairlead.errors import FairleadError, needed
from fairlead.probe import Probe
from fairlead.run.callbacks import Callback
from fairlead.run.checkpoint import Checkpoints
from fairlead.run.result import Run
from fairlead.task.task import Task

RECORD, FRAME = "fairlead", "frame"
UNFIT = {
    "secure_aggregation": (
        "Flower's secure aggregation masks the arrays of its own strategies and would let the frames of fairlead through "
        "unmasked: leave the mod out"
    ),
    "dp_mod": (
        "Flower's mods for differential privacy clip and noise the arrays of its own strategies, and fairlead sends frames: "
        "leave the mod out, and use fl.DPFedAvg"
    ),
}
"""Why mods are refused, by a part of the name of their module."""
log = logging.getLogger("fairlead.deploy")


class GridTransport(Transport):
    """Carries frames in records of Flower's messages.

    poll: seconds between looking for replies. refresh: seconds after which the connected nodes are looked up again.
    """

    def __init__(self, grid: Any, poll: float = 0.1, refresh: float = 2.0) -> None:
        self.grid, self.poll, self.refresh = grid, poll, refresh
        self._flower = needed("flwr.app", "flwr")
        self._waiting: dict[str, int] = {}  # the node of each message without a reply
        self._nodes: list[int] = []
        self._looked = -float("inf")

    def nodes(self) -> Sequence[int]:
        if self.now() - self._looked >= self.refresh:
            self._nodes, self._looked = sorted(self.grid.get_node_ids()), self.now()
        return self._nodes

    def send(self, orders: Mapping[int, bytes]) -> None:
        of = self._flower
        messages = [
            of.Message(
                of.RecordDict({RECORD: of.ConfigRecord({FRAME: order})}), node, of.MessageType.QUERY
            )
            for node, order in orders.items()
        ]
        if messages:
            ids = self.grid.push_messages(messages)
            pairs = zip(ids, orders, strict=False)
            self._waiting.update({message: node for message, node in pairs if message})

    def receive(self, until: float) -> list[tuple[int, bytes]]:
        while True:
            found = self._pulled()
            now = self.now()
            if found or now >= until or now - self._looked >= self.refresh:
                return found
            time.sleep(min(self.poll, until - now))

    def _pulled(self) -> list[tuple[int, bytes]]:
        found = []
        replies = self.grid.pull_messages(list(self._waiting)) if self._waiting else ()
        for reply in replies:
            node = self._waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error():
                log.warning("node %d has no reply: %s", node, reply.error.reason)
            found.append((node, b"" if reply.has_error() else frame_of(reply)))
        return found

    def now(self) -> float:
        return time.monotonic()


def frame_of(message: Any) -> bytes:
    """The frame of a message; empty if it has none."""
    record = message.content.get(RECORD, {})
    frame = record.get(FRAME, b"")
    return frame if isinstance(frame, bytes) else b""


def server_app(
    agreement: Agreement,
    task: Callable[[], Task],
    then: Callable[[Run], None] | None = None,
    **settings: Any,
) -> Any:
    """A ServerApp that trains.

    task: the server's task, see `Server`. settings: of `fl.train`, such as `cohort` and `weighting`. The run's
    configuration has `rounds`, `out` (a folder for its history and checkpoints, from which it goes on if there are
    any), `deadline` and `limit` in seconds, and `least`, see `Patience`. `measure` has names of the agreement's measures to
    take when the run has ended, also of one that had ended before; what they find is logged and, with `out`, in
    measures.json. then: called with the run when it has ended.
    """
    app = needed("flwr.serverapp", "flwr").ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        _show_log()
        config = context.run_config
        patience = Patience(
            deadline=float(config.get("deadline", Patience.deadline)),
            least=int(config.get("least", Patience.least)),
            limit=float(config.get("limit", Patience.limit)),
        )
        given, remember = dict(settings), None
        if out := str(config.get("out", "")):
            kept = Path(out).expanduser()
            remember = kept / "clients.json"
            given |= {
                "out": kept, "resume": "auto", "checkpoints": Checkpoints(kept / "checkpoints", every=1),
            }  # fmt: skip
        server = Server(task(), agreement, GridTransport(grid), patience, remember=remember)
        told = [*given.pop("callbacks", ()), Told()]
        run = server.run(int(config["rounds"]), callbacks=told, **given)
        if names := str(config.get("measure", "")).replace(",", " ").split():
            found = server.measure(run, *(_probe(agreement, name) for name in names))
            for one in found:
                log.info("%s", one)
            if out:
                text = json.dumps([one.to_json() for one in found], indent=1)
                replaced(Path(out).expanduser() / "measures.json", text.encode())
        if then is not None:
            then(run)

    return app


class Told(Callback):
    """Every evaluation in one line of the log, which `flwr log` shows."""

    def row(self, row: Mapping[str, float]) -> None:
        names = list(row)
        shown = [*names[1 : names.index("clients") + 1], *(n for n in names if n.endswith("/loss"))]
        values = ", ".join(f"{name} {row[name]:.4g}" for name in shown)
        log.info("round %d: %s", row["round"], values)


def _show_log() -> None:
    """Show what the server logs, also where Flower has set up no place for it."""
    ours = logging.getLogger("fairlead")
    ours.setLevel(logging.INFO)
    if not ours.handlers:
        shown = logging.StreamHandler()
        shown.setFormatter(logging.Formatter("fairlead: %(message)s"))
        ours.addHandler(shown)


def _probe(agreement: Agreement, name: str) -> Probe:
    """The measure of an agreement with this name."""
    known = {m.name: m for m in agreement.measures if isinstance(m, Probe)}
    if name not in known:
        raise FairleadError(
            f"clients have not agreed to the measure {name}: add it to the agreement's measures on all sides"
        )
    return known[name]


def check_mods(mods: Sequence[Any]) -> None:
    """Refuse Flower's mods for privacy: they know the arrays of Flower's strategies, not frames."""
    for mod in mods:
        module = str(getattr(mod, "__module__", ""))
        for name, why in UNFIT.items():
            if name in module:
                raise FairleadError(why)


def client_app(agreement: Agreement, task: Callable[[int], Task], mods: Sequence[Any] = ()) -> Any:
    """A ClientApp that answers with the client's own data.

    task: the task of a client, from its number: its own data, as one client. A node's configuration has its number as
    `client` (or Flower's `partition-id`), and as `state` the folder for what it keeps, by default
    ~/.fairlead/clients. mods: Flower's, such as `message_size_mod`; those for privacy are refused.
    """
    check_mods(mods)
    app = needed("flwr.clientapp", "flwr").ClientApp(mods=list(mods))
    flower = needed("flwr.app", "flwr")
    made: dict[tuple[int, str], LocalClient] = {}

    @app.query()
    def answer(message: Any, context: Any) -> Any:
        config = context.node_config
        number = config.get("client", config.get("partition-id"))
        if number is None:
            raise FairleadError(
                'this node has no number: start it with --node-config "client=0", and so on'
            )
        folder = str(config.get("state") or os.path.expanduser("~/.fairlead/clients"))
        key = int(number), folder
        if key not in made:
            made[key] = LocalClient(task(key[0]), agreement, *key)
        reply = made[key].answer(frame_of(message))
        content = flower.RecordDict({RECORD: flower.ConfigRecord({FRAME: reply})})
        return flower.Message(content, reply_to=message)

    return app
