"""Client states: one row a client in an (N, …) table whose rows exist once they are used."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.algorithm import Memory

M = TypeVar("M", bound=Memory)


class ClientStore(Generic[M]):
    """The memories of N clients; a client that was never touched costs nothing.

    >>> class Kept(Memory):
    ...     c: Tensor
    >>> store = ClientStore(1_000_000, Kept(c=torch.zeros(3)))
    >>> store.write(np.array([7]), Kept(c=torch.ones(1, 3)))
    >>> store.read(np.array([7, 9])).c
    tensor([[1., 1., 1.],
            [0., 0., 0.]])
    >>> store.touched
    array([7, 9])
    """

    def __init__(self, clients: int, start: M) -> None:
        self.start = start
        self._fields = {name: v.detach() for name, v in start.tensors().items()}
        self._slot = np.full(clients, -1, dtype=np.int64)
        self._used = 0
        self._free: list[int] = []
        self._rows = {name: v.new_empty((0, *v.shape)) for name, v in self._fields.items()}

    @property
    def touched(self) -> NDArray[np.int64]:
        """The clients that have a row, in rising order."""
        return np.flatnonzero(self._slot >= 0)

    @property
    def nbytes(self) -> int:
        """Bytes held in rows."""
        return sum(t.numel() * t.element_size() for t in self._rows.values())

    def slots(self, ids: NDArray[np.int64]) -> Tensor:
        """Where the rows of these clients lie; new ones are made and set to the start."""
        new = ids[self._slot[ids] < 0]
        if len(new):
            again = [self._free.pop() for _ in range(min(len(new), len(self._free)))]
            first, self._used = self._used, self._used + len(new) - len(again)
            places = np.concatenate([np.array(again, np.int64), np.arange(first, self._used)])
            self._slot[new] = places
            self._grow(self._used)
            for name, start in self._fields.items():
                if not again:
                    self._rows[name][first : self._used] = start
                else:
                    self._rows[name][torch.from_numpy(places).to(start.device)] = start
        device = next(iter(self._rows.values())).device
        return torch.from_numpy(self._slot[ids]).to(device, non_blocking=True)

    def _grow(self, needed: int) -> None:
        held = len(next(iter(self._rows.values())))
        if needed <= held:
            return
        room = min(max(needed, 2 * held), len(self._slot))
        for name, rows in self._rows.items():
            larger = rows.new_empty((room, *rows.shape[1:]))
            larger[:held] = rows
            self._rows[name] = larger

    def read(self, ids: NDArray[np.int64]) -> M:
        """The rows of these clients, as one record with a leading client axis."""
        slots = self.slots(ids)
        return type(self.start)(**{n: r.index_select(0, slots) for n, r in self._rows.items()})

    def write(self, ids: NDArray[np.int64], memory: M) -> None:
        """Keep new rows for these clients."""
        slots = self.slots(ids)
        for name, value in memory.tensors().items():
            rows = value.expand(len(ids), *self._fields[name].shape)
            self._rows[name].index_copy_(0, slots, rows)

    def export(self) -> dict[str, Tensor]:
        """All rows in use, with the clients they belong to under `ids`."""
        ids = self.touched
        rows = self.read(ids).tensors() if len(ids) else {}
        return {"ids": torch.from_numpy(ids), **{name: t.clone() for name, t in rows.items()}}

    def load(self, saved: dict[str, Tensor]) -> None:
        """Take rows back that `export` gave."""
        ids = saved["ids"].numpy()
        if len(ids):
            rows = {name: t for name, t in saved.items() if name != "ids"}
            self.write(ids, type(self.start)(**rows))

    def drop(self, ids: NDArray[np.int64]) -> None:
        """Forget the rows of these clients; others will use their places."""
        held = ids[self._slot[ids] >= 0]
        self._free += self._slot[held].tolist()
        self._slot[held] = -1

    def one(self, client: int) -> M:
        """One client's own vectors, copied from its (existing) row."""
        slot = int(self._slot[client])
        return type(self.start)(**{n: r[slot].clone() for n, r in self._rows.items()})

    def write_one(self, client: int, memory: M) -> None:
        """Keep one client's new vectors in its (existing) row."""
        slot = int(self._slot[client])
        for name, value in memory.tensors().items():
            self._rows[name][slot] = value
