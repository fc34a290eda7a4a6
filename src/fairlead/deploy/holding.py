"""Which vectors clients hold, so that a vector of a round that a client already has travels once."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fairlead.engine.api import Request
from fairlead.engine.exchange import WARM_UP


class Holding:
    """What clients hold of the orders of rounds; another one keeps what they hold of the orders of measures."""

    def __init__(self) -> None:
        self._round: tuple[object, ...] = ()
        self._exchanges = 0
        self._vectors: dict[str, Tensor] = {}  # of this round
        self._has: dict[int, dict[str, str]] = {}  # digests of what clients hold
        self._since: dict[int, tuple[object, ...]] = {}  # the round that each holds vectors of
        self._several = True  # whether rounds have more than one exchange, or lasting vectors

    def begin(self, request: Request) -> None:
        """An exchange begins."""
        idle, probe = request.exchange >= WARM_UP, request.program.partition(".")[0]
        now = request.round, idle, probe if request.measuring else ""
        if now != self._round:
            if self._round == (0, False, "") or self._exchanges > 1:  # from now on it is known
                self._several = request.measuring or self._exchanges > 1
            self._round, self._vectors, self._exchanges = now, {}, 0
        self._exchanges += 1

    def end(self, request: Request) -> None:
        """An exchange has ended."""
        for name, v in request.broadcast.items():
            if isinstance(v, Tensor):
                self._vectors[name] = v

    def of(self, client: int, request: Request, digests: Mapping[str, str]) -> dict[str, str]:
        """The vectors of a request that a client has already: those of this round, and lasting ones."""
        has = self._has.get(client, {})
        found = {}
        for name, v in request.broadcast.items():
            again = name in request.lasting or self._vectors.get(name) is v
            if isinstance(v, Tensor) and again and has.get(name) == digests.get(name):
                found[name] = digests[name]
        return found

    def put(self, client: int, digests: Mapping[str, str]) -> None:
        """A client that answered holds the vectors of its order, beside those of this round."""
        before = self._has.get(client, {}) if self.adds(client) else {}
        self._has[client], self._since[client] = {**before, **digests}, self._round

    def adds(self, client: int) -> bool:
        """Whether a client holds vectors of this round already."""
        return self._since.get(client) == self._round

    def forget(self, client: int) -> None:
        """A client does not hold what it should."""
        self._has.pop(client, None)
        self._since.pop(client, None)

    def wanted(self, request: Request) -> bool:
        """Whether clients should hold the vectors of an order."""
        return self._several or bool(request.lasting)
