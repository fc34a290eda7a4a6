"""How bytes get from the server to nodes and back; nodes are numbered by whoever carries the bytes."""

from __future__ import annotations

import heapq
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fairlead.errors import FairleadError


class Transport(ABC):
    """Carries orders to nodes and replies back. Any of them may be lost, late or repeated."""

    @abstractmethod
    def nodes(self) -> Sequence[int]:
        """The nodes that are connected."""

    @abstractmethod
    def send(self, orders: Mapping[int, bytes]) -> None:
        """Send an order to each of some nodes."""

    @abstractmethod
    def receive(self, until: float) -> list[tuple[int, bytes]]:
        """Replies with the nodes they came from, as soon as there are any; none after a time on the clock of
        `now`."""

    @abstractmethod
    def now(self) -> float:
        """The time in seconds."""


Handler: TypeAlias = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Parcel:
    """A reply on its way: delivered so many seconds later. Several are a repeated one, none a lost one."""

    data: bytes
    after: float = 0.0


@dataclass
class InProcess(Transport):
    """Nodes in this process, and a clock that only waiting moves.

    handlers: what answers, by node; an entry may be added, exchanged or removed while the run goes on.
    before: called with each node and its order; False loses the order. on_the_way: what becomes of a reply, from
    the node, the order and the reply.

    >>> there = InProcess({5: bytes.upper})
    >>> there.send({5: b"hello"})
    >>> there.receive(until=1.0)
    [(5, b'HELLO')]
    """

    handlers: dict[int, Handler]
    before: Callable[[int, bytes], bool] = lambda node, order: True
    on_the_way: Callable[[int, bytes, bytes], Sequence[Parcel]] = lambda node, order, reply: [
        Parcel(reply)
    ]
    sent: int = 0
    """Bytes of all orders."""
    received: int = 0
    """Bytes of all replies."""
    _clock: float = 0.0
    _queue: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    _count: itertools.count[int] = field(default_factory=itertools.count)

    def nodes(self) -> Sequence[int]:
        return sorted(self.handlers)

    def send(self, orders: Mapping[int, bytes]) -> None:
        for node, order in orders.items():
            self.sent += len(order)
            if node not in self.handlers or not self.before(node, order):
                continue
            try:
                reply = self.handlers[node](order)
            except ConnectionError:  # the node died while it worked
                continue
            for parcel in self.on_the_way(node, order, reply):
                self.deliver(node, parcel)

    def deliver(self, node: int, parcel: Parcel) -> None:
        """Put a reply on its way."""
        entry = self._clock + parcel.after, next(self._count), node, parcel.data
        heapq.heappush(self._queue, entry)

    def receive(self, until: float) -> list[tuple[int, bytes]]:
        if not until < float("inf"):
            raise FairleadError("waiting without end is not possible in one process")
        first = self._queue[0][0] if self._queue else float("inf")
        self._clock = max(self._clock, min(first, until))
        found = []
        while self._queue and self._queue[0][0] <= self._clock:
            _, _, node, data = heapq.heappop(self._queue)
            self.received += len(data)
            found.append((node, data))
        return found

    def now(self) -> float:
        return self._clock
