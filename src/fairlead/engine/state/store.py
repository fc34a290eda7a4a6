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
from fairlead.engine.state.offload import Far, Rows, merged
from fairlead.engine.state.tiers import Disk, Host, Ids, Memories, Tier, chosen, promise

M = TypeVar("M", bound=Memory)

WHOLE = slice(None)
NOBODY = np.empty(0, np.int64), np.empty(0, np.int64)
PART = 1 << 26
"""Bytes of rows to save or load at a time."""


class ClientStore(Generic[M]):
    """The memories of N clients; a client that was never written costs nothing.

    tier: where rows are stored: on the device of the starting values, in host memory, or on disk.

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

    def __init__(self, clients: int, start: M, tier: Tier = "device") -> None:
        self.start = start
        self.tier: Tier = tier
        fields = {name: v.detach() for name, v in start.tensors().items()}
        self.row = sum(v.numel() * v.element_size() for v in fields.values())
        self._slot = np.full(clients, -1, dtype=np.int64)
        self._written = np.zeros(clients, dtype=bool)
        self._used = 0
        self._last = NOBODY  # the last requested clients and their slots
        self._free: list[int] = []
        far = {"host": Host, "disk": Disk}.get(tier)
        self._rows: Near | Far = Near(fields, clients) if far is None else Far(fields, far)

    @property
    def touched(self) -> Ids:
        """The clients whose state was ever written, in ascending order."""
        return np.flatnonzero(self._written)

    @property
    def nbytes(self) -> int:
        """Bytes held in rows."""
        return self._rows.nbytes

    def _places(self, ids: Ids) -> Ids:
        """The slots of these clients; missing rows are created with the starting values."""
        if self._last[0] is ids:  # a round reads and writes the same rows
            return self._last[1]
        new = ids[self._slot[ids] < 0]
        if len(new):
            again = [self._free.pop() for _ in range(min(len(new), len(self._free)))]
            first, self._used = self._used, self._used + len(new) - len(again)
            places = np.concatenate([np.array(again, np.int64), np.arange(first, self._used)])
            self._slot[new] = places
            self._rows.begin(places)
        self._last = ids, self._slot[ids]
        return self._last[1]

    def prefetch(self, ids: Ids) -> None:
        """Prefetch the rows of clients that will be read next. It creates no rows, and later writes are
        still seen."""
        self._rows.ahead(ids, self._slot[ids])

    def read(self, ids: Ids) -> M:
        """The states of these clients, as one record with a leading client axis. Reading creates no rows."""
        slots = self._last[1] if self._last[0] is ids else self._slot[ids]
        return self.start.filled(self._rows.get(ids, slots))

    def lend(self, ids: Ids) -> Rows:
        """Tensors for `read_into` with the rows of these clients: the table itself if it holds exactly
        these on the device, otherwise copies."""
        return self._rows.lend(ids, self._places(ids))

    def read_into(self, ids: Ids, into: Rows) -> None:
        """Copy the rows of these clients into tensors, field by field."""
        self._rows.bring(ids, self._places(ids), into)

    def write(self, ids: Ids, memory: M) -> None:
        """Store new rows for these clients."""
        self._rows.put(ids, self._places(ids), memory.tensors())
        self._written[ids] = True

    def pieces(self) -> dict[str, Pieces]:
        """The result of `export`, to be read a few rows at a time."""
        ids = self.touched
        found = {"ids": Pieces.of(torch.from_numpy(ids))}
        if len(ids):
            for name, v in self.start.tensors().items():
                parts = partial(self._parts, ids, name)
                found[name] = Pieces((len(ids), *v.shape), v.dtype, parts)
        return found

    def _parts(self, ids: Ids, name: str) -> Iterator[Tensor]:
        for part in self._cut(ids):
            yield self._rows.host(self._slot[part], name)

    def _cut(self, ids: Ids) -> list[Ids]:
        step = max(1, PART // max(1, self.row))
        return [ids[k : k + step] for k in range(0, len(ids), step)]

    def export(self) -> dict[str, Tensor]:
        """All rows in use on the host, with the clients they belong to under `ids`."""
        return {name: pieces.whole() for name, pieces in self.pieces().items()}

    def load(self, saved: dict[str, Tensor]) -> None:
        """Load rows returned by `export`."""
        ids, first = saved["ids"].numpy(), 0
        for part in self._cut(ids):
            span = slice(first, first := first + len(part))
            rows = {name: t[span] for name, t in saved.items() if name != "ids"}
            self.write(part, self.start.filled(rows))

    def take(self, other: ClientStore[M]) -> None:
        """Copy the rows of another table."""
        for part in self._cut(other.touched):
            self.write(part, other.read(part))

    def drop(self, ids: Ids) -> None:
        """Delete the rows of these clients; their slots are reused."""
        held = ids[self._slot[ids] >= 0]
        self._rows.drop(held)
        self._free += self._slot[held].tolist()
        self._slot[held] = -1
        self._written[ids] = False
        self._last = NOBODY

    def view(self, client: int) -> M:
        """One client's vectors, to be read only, before the next write: those of the table itself where it is on
        the device."""
        slot = int(self._slot[client])
        if slot < 0:
            return self.start
        if isinstance(self._rows, Near):
            return self.start.filled(self._rows.row(slot))
        return self.read(np.array([client])).map(lambda t: t[0])

    def settle(self) -> None:
        """Finish pending work, and release threads and prefetched rows."""
        self._rows.settle()


class Near:
    """Rows on the device."""

    def __init__(self, start: Rows, clients: int) -> None:
        self.start, self._most = start, clients
        self.device = next(iter(start.values())).device
        self._table = {name: v.new_empty((0, *v.shape)) for name, v in start.items()}
        self._forget()

    def _forget(self) -> None:
        nobody = torch.empty(0, dtype=torch.int64, device=self.device)
        self._last: tuple[Ids, Tensor | slice] = NOBODY[0], nobody

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self._table.values())

    def begin(self, slots: Ids) -> None:
        """Create rows with the starting values."""
        self._grow(int(slots.max()) + 1)
        follow = bool((np.diff(slots) == 1).all())
        for name, v in self.start.items():
            if follow:
                self._table[name][slots[0] : slots[0] + len(slots)] = v
            else:
                self._table[name][torch.from_numpy(slots).to(self.device)] = v

    def _grow(self, needed: int) -> None:
        held = len(next(iter(self._table.values())))
        if needed <= held:
            return
        room = min(max(needed, 2 * held), self._most)
        for name, rows in self._table.items():
            larger = rows.new_empty((room, *rows.shape[1:]))
            larger[:held] = rows
            self._table[name] = larger
        self._forget()  # slots that were the whole table no longer are

    def ahead(self, ids: Ids, slots: Ids) -> None:
        """Nothing to do: rows are already on the device."""

    def get(self, ids: Ids, slots: Ids) -> Rows:
        """Copies of rows, with the starting values for slot −1."""
        if len(slots) and slots.min() < 0:
            there = np.flatnonzero(slots >= 0)
            known = self.get(ids[there], slots[there]) if len(there) else {}
            return merged(self.start, len(ids), [(there, known)])
        index = self._index(slots)
        if isinstance(index, slice):
            return {name: t[index].clone() for name, t in self._table.items()}
        return {name: t.index_select(0, index) for name, t in self._table.items()}

    def row(self, slot: int) -> Rows:
        """One row, not copied."""
        return {name: t[slot] for name, t in self._table.items()}

    def lend(self, ids: Ids, slots: Ids) -> Rows:
        """The table itself if these are all of its rows, otherwise copies."""
        return dict(self._table) if self._index(slots) is WHOLE else self.get(ids, slots)

    def bring(self, ids: Ids, slots: Ids, into: Rows) -> None:
        """Copy rows into tensors."""
        index = self._index(slots)
        for name, t in self._table.items():
            if not isinstance(index, slice):
                torch.index_select(t, 0, index, out=into[name])
            elif into[name] is not t:
                into[name].copy_(t[index])

    def put(self, ids: Ids, slots: Ids, rows: Rows) -> None:
        """Store rows."""
        index = self._index(slots)
        for name, t in self._table.items():
            new = rows[name].to(self.device).expand(len(ids), *self.start[name].shape)
            if isinstance(index, slice):
                t[index] = new
            else:
                t.index_copy_(0, index, new)

    def _index(self, slots: Ids) -> Tensor | slice:
        if len(slots) == 1:  # needs no device work
            return slice(int(slots[0]), int(slots[0]) + 1)
        known, there = self._last
        if known is not slots and not np.array_equal(known, slots):
            held = len(next(iter(self._table.values())))
            if np.array_equal(slots, np.arange(held)):
                there = WHOLE
            else:
                there = torch.from_numpy(slots).to(self.device, non_blocking=True)
        self._last = slots, there
        return there

    def drop(self, ids: Ids) -> None:
        """Nothing to do: slots are reused."""

    def host(self, slots: Ids, name: str) -> Tensor:
        """A field of rows, on the host."""
        return self._table[name][self._index(slots)].cpu()

    def settle(self) -> None:
        """Nothing to do."""


@dataclass(frozen=True)
class Keep:
    """Where to store the memories of a run's clients.

    most: how many clients can take part. sharing: processes that share the machine's memory.
    """

    clients: int
    device: torch.device
    asked: Memories = "auto"
    most: int | None = None
    sharing: int = 1

    @property
    def count(self) -> int:
        """The largest possible number of rows."""
        return self.clients if self.most is None else min(self.most, self.clients)

    def store(self, start: M) -> ClientStore[M]:
        """A table for memories with these starting values."""
        row = sum(v.numel() * v.element_size() for v in start.tensors().values())
        tier = chosen(self.asked, self.device, row * self.count, self.sharing)
        made = ClientStore(self.clients, start, tier)
        promise(made, tier, self.device, row * self.count)
        return made
