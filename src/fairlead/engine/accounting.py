"""Accounts of a run: oracle calls, exchanges, and every bit that travels, as integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.int64]


@dataclass
class Counters:
    """Oracle calls and exchanges, as integers."""

    gradients: int = 0
    """Gradients of single samples."""
    steps: int = 0
    """Local steps of the longest client, summed over rounds."""
    exchanges: int = 0
    """Exchanges between the server and a cohort."""
    lost: int = 0
    """Sampled clients that did not answer."""
    measured: int = 0
    """Gradients of single samples spent on measures; a Hessian-vector product counts as two."""


@dataclass(frozen=True)
class Exchange:
    """One exchange: what the server sent to each client of the cohort, and what came back."""

    round: int
    clients: Ids
    """Every sampled client, also those that did not answer."""
    down: int
    """Bits sent to each of them."""
    up: Ids
    """Bits received from each of them; zero from those that did not answer."""
    nominal_up: float
    """Bits up in total, as papers count them: bits per coordinate times d."""
    extra: Ids | int = 0
    """Bits sent on top to clients that did not have the present version of a lasting vector."""

    measure: str = ""
    """The measure that asked, if it was not the method."""

    @property
    def all_down(self) -> Ids:
        """Bits sent to each client, those on top included."""
        return self.down + np.zeros_like(self.up) + self.extra


@dataclass
class Ledger:
    """All exchanges of a run and their totals; what measures cost is apart."""

    exchanges: list[Exchange] = field(default_factory=list)
    up: int = 0
    down: int = 0
    nominal_up: float = 0.0
    measured: int = 0
    """Bits of measures, up and down."""

    def add(self, exchange: Exchange) -> None:
        """Enter one exchange."""
        self.exchanges.append(exchange)
        if exchange.measure:
            self.measured += int(exchange.up.sum() + exchange.all_down.sum())
            return
        self.up += int(exchange.up.sum())
        self.down += int(exchange.all_down.sum())
        self.nominal_up += exchange.nominal_up

    def amend(self, entry: int, up: Ids | int, extra: Ids | int, nominal: float) -> None:
        """Add to an exchange what was not known when it was entered."""
        old = self.exchanges[entry]
        new = replace(
            old, up=old.up + up, extra=old.extra + extra, nominal_up=old.nominal_up + nominal
        )
        self.exchanges[entry] = new
        self.up += int((new.up - old.up).sum())
        self.down += int((new.all_down - old.all_down).sum())
        self.nominal_up += nominal

    def by_client(self, clients: int) -> tuple[Ids, Ids]:
        """Bits up and down of every client over the run."""
        up, down = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
        for exchange in self.exchanges:
            up[exchange.clients] += exchange.up
            down[exchange.clients] += exchange.all_down
        return up, down

    def copy(self) -> Ledger:
        """The same accounts, to go on from."""
        return replace(self, exchanges=list(self.exchanges))


@dataclass
class _Pending:
    """Bits of an exchange that are still on the device, or known to one process only."""

    entry: int
    up: list[tuple[Ids, Tensor]]
    """Of some of its clients, by position."""
    extra: Tensor | None
    here: Ids | None
    """Bits up that this process counted, where there are several."""
    nominal: float


class Accounts:
    """The counters and the ledger of a run. What is counted on a device or by other processes is brought
    in by `settle`, before anything is read."""

    def __init__(self) -> None:
        self.counters, self.ledger = Counters(), Ledger()
        self._pending: list[_Pending] = []
        self._shared = 0  # gradients that all processes have counted together

    def enter(
        self,
        exchange: Exchange,
        gradients: int,
        up_later: list[tuple[Ids, Tensor]],
        extra_later: Tensor | None,
        partial: tuple[Ids, float] | None,
    ) -> None:
        """Enter an exchange. up_later, extra_later: bits that are still on the device. partial: the bits up,
        exact and nominal, that this process counted, where others have counted other clients'."""
        self.counters.gradients += gradients
        self.counters.exchanges += 1
        self.ledger.add(exchange)
        if up_later or extra_later is not None or partial is not None:
            here, nominal = (None, 0.0) if partial is None else partial
            entry = len(self.ledger.exchanges) - 1
            self._pending.append(_Pending(entry, up_later, extra_later, here, nominal))

    def restored(self, counters: Counters, ledger: Ledger) -> None:
        """Go on from these accounts, which all processes have."""
        self.counters, self.ledger = replace(counters), ledger
        self._shared = counters.gradients

    def settle(self, total: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None) -> None:
        """Bring everything up to date; `total` sums over processes, where there are several."""
        self._from_device()
        if total is None:
            self._pending.clear()
            return
        mine = [self.counters.gradients - self._shared]
        shared = [p for p in self._pending if p.here is not None]
        flat = np.concatenate([mine, *([*p.here, p.nominal] for p in shared if p.here is not None)])
        summed = total(flat.astype(np.float64))
        self.counters.gradients = self._shared = self._shared + int(summed[0])
        first = 1
        for p in shared:
            assert p.here is not None
            last = first + len(p.here)
            up = summed[first:last].astype(np.int64) - p.here
            self.ledger.amend(p.entry, up, 0, summed[last] - p.nominal)
            first = last + 1
        self._pending.clear()

    def _from_device(self) -> None:
        waiting = [bits for p in self._pending for _, bits in p.up]
        waiting += [p.extra for p in self._pending if p.extra is not None]
        if not waiting:
            return
        sizes = torch.cat([t.reshape(-1) for t in waiting]).cpu().numpy().astype(np.int64)
        parts = iter(np.split(sizes, np.cumsum([t.numel() for t in waiting])[:-1]))
        for p in self._pending:
            more = np.zeros_like(self.ledger.exchanges[p.entry].up)
            for places, _ in p.up:
                more[places] += next(parts)
            if more.any():
                self.ledger.amend(p.entry, more, 0, 0.0)
                p.here = None if p.here is None else p.here + more
        for p in self._pending:
            if p.extra is not None:
                self.ledger.amend(p.entry, 0, next(parts), 0.0)
