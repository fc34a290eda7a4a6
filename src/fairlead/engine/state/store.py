"""Client states: one row per client in an (N, …) table whose rows are created on first use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from fairlead.core.records import Memory
from fairlead.core.tensorfile import Pieces
from fairlead.engine.state.tiers import (
    Disk,
    Files,
    Ids,
    Memories,
    Rows,
    Table,
    Tier,
    chosen,
    promise,
    shared_memory,
)
from fairlead.errors import FairleadError

M = TypeVar("M", bound=Memory)

PART = 1 << 26
"""Bytes of rows to save, load or move at a time."""


class ClientStore(Generic[M]):
    """The memories of N clients; a client that was never written costs nothing.

    tier: where rows are stored: on the device of the starting values, in host memory, or on disk.
    files: opens a file in all processes that share the table; they reserve rows in the same order, at most
        `most` of them.

    >>> class Kept(Memory):
    ...     c: Tensor
    >>> store = ClientStore(1_000_000, Kept(c=torch.zeros(3)), "disk")
    >>> store.write(np.array([7]), Kept(c=torch.ones(1, 3)))
    >>> store.read(np.array([7, 9])).c
    tensor([[1., 1., 1.],
            [0., 0., 0.]])
    >>> store.touched
    array([7])
    """

    def __init__(
        self,
        clients: int,
        start: M,
        tier: Tier = "device",
        files: Files | None = None,
        most: int | None = None,
    ) -> None:
        self.start = start
        self.tier: Tier = tier
        self._start = {name: v.detach() for name, v in start.tensors().items()}
        self.row = sum(v.nbytes for v in self._start.values())
        self._slot = np.full(clients, -1, dtype=np.int64)
        self._written = (
            np.zeros(clients, dtype=bool)
            if files is None
            else shared_memory(files, clients).view(torch.bool).numpy()
        )
        self._used, self._free = 0, np.empty(0, np.int64)
        self._asked: tuple[Ids, Ids] | None = (
            None  # the last clients, which all have rows, and their slots
        )
        device = next(iter(self._start.values())).device
        place = device if tier == "device" else torch.device("cpu")
        self._on_device: Table | None = None
        self._rows: Table | Disk
        if tier == "disk":
            self._rows = Disk(self._start, files)
        else:
            self._rows = table = Table(self._start, clients if most is None else most, place, files)
            self._on_device = table if tier == "device" else None
        self._pin = tier != "device" and device.type == "cuda"

    @property
    def touched(self) -> Ids:
        """The clients whose state was ever written, in ascending order."""
        return np.flatnonzero(self._written)

    @property
    def nbytes(self) -> int:
        """Bytes held in rows."""
        return self._rows.nbytes

    def read(self, ids: Ids) -> M:
        """The states of these clients, as one record with a leading client axis. Reading creates no rows."""
        return self.start.filled(self._read(self._known(ids)))

    def _known(self, ids: Ids) -> Ids:
        """The slots of these clients, −1 for those that were never written."""
        return np.where(self._written[ids], self._slot[ids], -1)

    def _read(self, slots: Ids) -> Rows:
        """Copies of rows on the device, with the starting values for slot −1."""
        kept = np.flatnonzero(slots >= 0)
        if len(kept) == len(slots) > 0:
            return {
                name: self._stored(name, slots).to(v.device, non_blocking=True)
                for name, v in self._start.items()
            }
        found = {name: v.new_empty((len(slots), *v.shape)) for name, v in self._start.items()}
        known = self._read(slots[kept]) if len(kept) else {}
        for name, rows in found.items():
            rows[:] = self._start[name]
            if known:
                rows.index_copy_(0, torch.from_numpy(kept).to(rows.device), known[name])
        return found

    def _stored(self, name: str, slots: Ids) -> Tensor:
        """Copies of a field of rows, on the device only if the table is there."""
        like, device = self._start[name], self._rows.device
        shape = len(slots), *like.shape
        found = torch.empty(shape, dtype=like.dtype, device=device, pin_memory=self._pin)
        self._rows.get(name, slots, found)
        return found

    def lend(self, ids: Ids) -> Rows:
        """Tensors for `read_into` with the rows of these clients: the table itself if it holds exactly
        these on the device, otherwise copies."""
        if self._on_device is not None:
            slots = self._begun(ids)
            if np.array_equal(slots, np.arange(len(self._on_device))):
                return dict(self._on_device.rows)
        return self._read(self._known(ids))

    def read_into(self, ids: Ids, into: Rows) -> None:
        """Copy the rows of these clients into tensors, field by field."""
        if self._on_device is not None:
            slots = self._begun(ids)  # a table that was lent is left to its borrower when it grows
            for name, t in into.items():
                self._on_device.get(name, slots, t)
        else:
            for name, rows in self._read(self._known(ids)).items():
                into[name].copy_(rows)

    def _begun(self, ids: Ids) -> Ids:
        """The slots of these clients; missing rows are created with the starting values."""
        if self._asked is None or self._asked[0] is not ids:
            new = ids[self._slot[ids] < 0]
            if len(new):
                self._put(new, self._start)
            self._asked = ids, self._slot[ids]
        return self._asked[1]

    def write(self, ids: Ids, memory: M) -> None:
        """Store copies of new rows for these clients."""
        rows = memory.tensors()
        for name, v in self._start.items():
            if rows[name].dtype != v.dtype:
                raise FairleadError(
                    f"a memory is {rows[name].dtype}, but it started as {v.dtype}: keep its type"
                )
        if len(ids):
            self._put(ids, rows)
            self._written[ids] = True

    def _put(self, ids: Ids, rows: Rows) -> None:
        slots = self.reserve(ids)
        shapes = {name: (len(ids), *v.shape) for name, v in self._start.items()}
        self._rows.put(slots, {name: rows[name].detach().expand(s) for name, s in shapes.items()})
        self._asked = ids, slots

    def reserve(self, ids: Ids) -> Ids:
        """The slots of these clients, new ones for those that have none."""
        if self._asked is not None and self._asked[0] is ids:
            return self._asked[1]
        slots = self._slot[ids]
        new = np.flatnonzero(slots < 0)
        again, self._free = np.split(self._free, [len(new)])
        first, self._used = self._used, self._used + len(new) - len(again)
        slots[new] = np.concatenate([again, np.arange(first, self._used)])
        self._slot[ids] = slots
        return slots

    def pieces(self, ids: Ids | None = None) -> dict[str, Pieces]:
        """The result of `export`, to be read a few rows at a time. ids: of these clients only."""
        ids = self.touched if ids is None else ids
        found = {"ids": Pieces.of(torch.from_numpy(ids))}
        if len(ids):
            for name, v in self._start.items():
                found[name] = Pieces(
                    (len(ids), *v.shape), v.dtype, partial(self._pieces, ids, name)
                )
        return found

    def _pieces(self, ids: Ids, name: str) -> Iterator[Tensor]:
        for part in self.parts(ids):
            yield self._stored(name, self._slot[part]).cpu()

    def parts(self, ids: Ids) -> list[Ids]:
        """Clients in parts whose rows have at most `PART` bytes."""
        step = max(1, PART // max(1, self.row))
        return [ids[k : k + step] for k in range(0, len(ids), step)]

    def export(self) -> dict[str, Tensor]:
        """All rows in use on the host, with the clients they belong to under `ids`."""
        return {name: pieces.whole() for name, pieces in self.pieces().items()}

    def load(self, saved: dict[str, Tensor]) -> None:
        """Load rows returned by `export`."""
        ids, first = saved["ids"].numpy(), 0
        for part in self.parts(ids):
            span = slice(first, first := first + len(part))
            rows = {name: t[span] for name, t in saved.items() if name != "ids"}
            self.write(part, self.start.filled(rows))

    def take(self, other: ClientStore[M], ids: Ids) -> None:
        """Copy rows of another table."""
        for part in self.parts(ids):
            self.write(part, other.read(part))

    def drop(self, ids: Ids) -> None:
        """Delete the rows of these clients; their slots are reused."""
        slots = self._slot[ids]
        self._free = np.concatenate([self._free, slots[slots >= 0]])
        self._slot[ids], self._written[ids] = -1, False
        self._asked = None

    def view(self, client: int) -> M:
        """One client's vectors, to be read only, before the next write: those of the table itself where it is on
        the device."""
        if not self._written[client]:
            return self.start
        slot = int(self._slot[client])
        if self._on_device is not None:
            return self.start.filled({name: t[slot] for name, t in self._on_device.rows.items()})
        return self.read(np.array([client])).map(lambda t: t[0])


@dataclass(frozen=True)
class Keep:
    """Where to store the memories of a run's clients.

    most: how many clients can take part. sharing: processes that share the machine's memory. files: opens
    files in all processes, where they share tables.
    """

    clients: int
    device: torch.device
    asked: Memories = "auto"
    most: int | None = None
    sharing: int = 1
    files: Files | None = None

    @property
    def count(self) -> int:
        """The largest possible number of rows."""
        return self.clients if self.most is None else min(self.most, self.clients)

    def store(self, start: M) -> ClientStore[M]:
        """A table for memories with these starting values."""
        row = sum(v.nbytes for v in start.tensors().values())
        tier = chosen(self.asked, self.device, row * self.count, self.sharing)
        made = ClientStore(self.clients, start, tier, self.files, self.count)
        promise(made, tier, self.device, row * self.count)
        return made
