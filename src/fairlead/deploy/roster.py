"""Which node is which client."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from fairlead.deploy.transport import Transport
from fairlead.deploy.wire import Header, Order, Reply, Sealed
from fairlead.errors import FairleadError

log = logging.getLogger("fairlead.deploy")
MOST = 1 << 16
"""Bytes that a node may send about itself."""


@dataclass
class Refused:
    """Something from a node that did not count, and why."""

    node: int
    why: str


@dataclass
class Roster:
    """The nodes that have said which client they are. A client that starts again may have another node; two nodes
    at a time cannot be the same client.

    allowed: the nodes that may take part; None for all that the transport lets in.
    """

    transport: Transport
    clients: int
    agreement: str
    allowed: frozenset[int] | None = None
    node: dict[int, int] = field(default_factory=dict)
    """The node of each client that is there."""
    sizes: dict[int, int] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    _asked: dict[int, Sealed] = field(default_factory=dict)
    _turned_away: set[int] = field(default_factory=set)

    def update(self, number: tuple[int, int]) -> None:
        """Forget nodes that have left, and ask new ones who they are."""
        there = set(self.transport.nodes())
        left = set(self.node.values()) - there
        self.node = {client: node for client, node in self.node.items() if node in there}
        self._asked = {node: order for node, order in self._asked.items() if node in there}
        # one that was turned away may be the client of a node that has left
        self._turned_away = set() if left else self._turned_away & there
        known = {*self.node.values(), *self._asked, *self._turned_away}
        new = sorted(there - known)
        for node in new:
            if self.allowed is not None and node not in self.allowed:
                self.refuse(node, "it is not one of the nodes that may take part")
                self._turned_away.add(node)
                continue
            self._asked[node] = Sealed.of(Order(Header("", number)))
            self.transport.send({node: self._asked[node].data})

    def ask_again(self) -> None:
        """Ask nodes again that have not said who they are."""
        self.transport.send({node: order.data for node, order in self._asked.items()})

    def take(self, node: int, data: bytes) -> bool:
        """Whether a reply was about who the node is; it is then entered, or the node is turned away."""
        asked = self._asked.get(node)
        if asked is None:
            return False
        try:
            reply = Reply.unpack(data, MOST)
        except Exception:  # whatever a node sends, the run goes on
            return False
        if reply.tag != asked.tag:
            return False
        try:
            self._enter(node, reply)
        except FairleadError as error:
            self.refuse(node, str(error))
            self._turned_away.add(node)
        del self._asked[node]
        return True

    def _enter(self, node: int, reply: Reply) -> None:
        client, samples = reply.client, reply.about.get("samples")
        if not 0 <= client < self.clients:
            raise FairleadError(f"it says that it is client {client} of {self.clients}")
        if reply.about.get("agreement") != self.agreement:
            raise FairleadError(
                "its method, local work, seed or model is another one than the server's: use the same project on "
                "all sides"
            )
        if type(samples) is not int or samples < 1:
            raise FairleadError("it has no samples")
        if client in self.node:
            raise FairleadError(
                f"client {client} is already there: give every client its own number"
            )
        if self.sizes.setdefault(client, samples) != samples:
            raise FairleadError(
                f"client {client} had {self.sizes[client]} samples when the run began and has {samples} now: "
                "start a new run for other data"
            )
        self.node[client] = node
        log.info("node %d is client %d", node, client)

    def refuse(self, node: int, why: str) -> None:
        """Log and count what does not count."""
        log.warning("node %d is refused: %s", node, why)
        self.refused.append(Refused(node, why))

    def client_of(self, node: int) -> int | None:
        """The client of a node."""
        return next((client for client, n in self.node.items() if n == node), None)
