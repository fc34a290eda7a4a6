"""Every bit that travels, as integers: up and down, by exchange and client."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Exchange:
    """One exchange: what the server sent to each client of the cohort, and what came back."""

    round: int
    clients: NDArray[np.int64]
    """Everyone the server talked to, also those who did not answer."""
    down: int
    """Bits sent to each of them."""
    up: NDArray[np.int64]
    """Bits that came from each of them; zero from those who did not answer."""
    nominal_up: float
    """Bits up in all, as papers count them: bits a coordinate times d."""


@dataclass
class Ledger:
    """All exchanges of a run and their totals."""

    exchanges: list[Exchange] = field(default_factory=list)
    up: int = 0
    down: int = 0
    nominal_up: float = 0.0

    def add(self, exchange: Exchange) -> None:
        """Enter one exchange."""
        self.exchanges.append(exchange)
        self.up += int(exchange.up.sum())
        self.down += exchange.down * len(exchange.clients)
        self.nominal_up += exchange.nominal_up

    def amend(
        self, entry: int, places: NDArray[np.int64], up: NDArray[np.int64], nominal: float
    ) -> None:
        """Add to an exchange what was not known when it was entered."""
        old = self.exchanges[entry]
        more = np.zeros_like(old.up)
        more[places] = up
        self.exchanges[entry] = replace(old, up=old.up + more, nominal_up=old.nominal_up + nominal)
        self.up += int(more.sum())
        self.nominal_up += nominal

    def by_client(self, clients: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Bits up and down of every client over the run."""
        up, down = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
        for exchange in self.exchanges:
            up[exchange.clients] += exchange.up
            down[exchange.clients] += exchange.down
        return up, down
