"""Rows stored off the device: prefetched before use, written back while others compute."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.engine.state.tiers import Ids, Shelf, total_memory
from fairlead.errors import FairleadError

Rows = dict[str, Tensor]

WAITING = 1 << 28
"""Bytes of rows that may wait to be written; at least two writes always may."""


class Courier:
    """Moves rows to a device and back, with copies on separate streams and one thread that works in order."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.pins = device, device.type == "cuda"
        self._pool: ThreadPoolExecutor | None = None
        self._writes: deque[tuple[Future[None], int]] = deque()
        if self.pins:
            self._in, self._out = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        """Queue work for the thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "fairlead-memories")
            if self.pins:
                self._pool.submit(torch.cuda.set_device, self.device)
        return self._pool.submit(work, *given)

    def now(self, work: Callable[..., Any], *given: Any) -> Any:
        """Queue work and wait for it."""
        self.heed()
        return work(*given) if self._pool is None else self.submit(work, *given).result()

    def write(self, work: Callable[..., None], rows: Rows, *given: Any) -> None:
        """Queue rows to be written, and wait only if too many are pending."""
        size = sum(t.numel() * t.element_size() for t in rows.values())
        self._writes.append((self.submit(work, rows, *given), size))
        self.heed()
        while len(self._writes) > 2 and sum(size for _, size in self._writes) > WAITING:
            self._writes.popleft()[0].result()

    def heed(self) -> None:
        """Raise errors from the thread."""
        while self._writes and self._writes[0][0].done():
            self._writes.popleft()[0].result()

    def rest(self) -> None:
        """Finish all work and end the thread."""
        try:
            while self._writes:
                self._writes.popleft()[0].result()
        finally:
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None

    def room(self, count: int, like: Tensor) -> Tensor:
        """Space for rows on the host, pinned if the device is a GPU."""
        return torch.empty((count, *like.shape), dtype=like.dtype, pin_memory=self.pins)

    def sent_up(self, rows: Rows) -> tuple[Rows, Any]:
        """Start copying rows to the device; returns them and the event of their arrival."""
        if not self.pins:
            return rows, None
        with torch.cuda.device(self.device), torch.cuda.stream(self._in):
            up = {name: t.to(self.device, non_blocking=True) for name, t in rows.items()}
            there = torch.cuda.Event()
            there.record(self._in)
        return up, there

    def arrived(self, rows: Rows, there: Any) -> Rows:
        """Rows that the current stream may use."""
        if there is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(there)
            for t in rows.values():
                t.record_stream(stream)
        return rows

    def sent_down(self, rows: Rows) -> tuple[Rows, Any]:
        """Start copying rows, which must not be shared, to the host; returns them and the event of their arrival."""
        if not self.pins or all(t.device.type == "cpu" for t in rows.values()):
            return rows, None
        down = {}
        with torch.cuda.device(self.device):
            self._out.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._out):
                for name, t in rows.items():
                    down[name] = self.room(len(t), t[0])
                    down[name].copy_(t, non_blocking=True)
                    t.record_stream(self._out)
                there = torch.cuda.Event(blocking=True)
                there.record(self._out)
        return down, there


class Batch:
    """The rows of some clients on the device or in transit, updated by later writes."""

    def __init__(
        self, ids: Ids, kept: NDArray[np.bool_], start: Rows, come: Callable[[], Rows]
    ) -> None:
        self.ids, self._kept, self._start, self._come = ids, kept, start, come
        self._rows: Rows | None = None
        self._later: list[tuple[Ids, Rows]] = []

    def places(self, ids: Ids) -> Ids:
        """The positions of clients' rows; −1 for missing clients."""
        if not len(self.ids):
            return np.full(len(ids), -1)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, at, -1)

    @property
    def rows(self) -> Rows:
        """The rows, once they have arrived."""
        if self._rows is None:
            parts = [(np.flatnonzero(self._kept), self._come())]
            self._rows = merged(self._start, len(self.ids), parts)
            for places, rows in self._later:
                _put(self._rows, places, rows)
            self._later.clear()
        return self._rows

    def put(self, places: Ids, rows: Rows) -> None:
        """Replace the rows at these positions."""
        if self._rows is None:
            self._later.append((places, rows))
        else:
            _put(self._rows, places, rows)


def _put(into: Rows, places: Ids, rows: Rows) -> None:
    for name, t in into.items():
        t.index_copy_(0, torch.from_numpy(places).to(t.device), rows[name].to(t.device))


def merged(start: Rows, count: int, parts: list[tuple[Ids, Rows]]) -> Rows:
    """`count` rows, with the starting values wherever no part has a row."""
    if len(parts) == 1 and len(parts[0][0]) == count > 0:
        return parts[0][1]
    found = {n: v.expand(count, *v.shape).clone(memory_format=_PLAIN) for n, v in start.items()}
    for places, rows in parts:
        if len(places):
            _put(found, places, rows)
    return found


def _rows_like(v: Tensor, given: Tensor, count: int) -> Tensor:
    """`count` rows of a field, copied because the caller may overwrite them."""
    if given.dtype != v.dtype:
        raise FairleadError(
            f"a memory is {given.dtype}, but it started as {v.dtype}: keep its type"
        )
    return given.detach().expand(count, *v.shape).clone(memory_format=_PLAIN)


_PLAIN = torch.contiguous_format


class Far:
    """All rows of a table, stored off the device."""

    def __init__(self, start: Rows, shelf: Callable[[Tensor], Shelf]) -> None:
        self.start = start
        self.device = next(iter(start.values())).device
        self._shelves: Mapping[str, Shelf] = {name: shelf(v) for name, v in start.items()}
        self._fresh = np.zeros(0, dtype=bool)  # rows with starting values, not stored yet
        self._held: list[Batch] = []
        self._courier = Courier(self.device)
        self._lock = threading.RLock()  # may be used from several threads
        row = sum(v.numel() * v.element_size() for v in start.values())
        self._most = max(1, total_memory(self.device) // 16 // max(1, row))

    @property
    def nbytes(self) -> int:
        with self._lock:
            return self._courier.now(lambda: sum(shelf.nbytes for shelf in self._shelves.values()))

    def begin(self, slots: Ids) -> None:
        """Create rows with the starting values."""
        with self._lock:
            needed = int(slots.max()) + 1
            if needed > len(self._fresh):
                larger = np.zeros(max(needed, 2 * len(self._fresh)), dtype=bool)
                larger[: len(self._fresh)] = self._fresh
                self._fresh = larger
            self._fresh[slots] = True

    def ahead(self, ids: Ids, slots: Ids) -> None:
        """Prefetch rows that will be read next; slot −1 means a client without a row."""
        with self._lock:
            self._courier.heed()
            ids, first = np.unique(ids[: self._most], return_index=True)
            slots = slots[first]
            kept = slots >= 0
            kept[kept] = ~self._fresh[slots[kept]]
            coming = self._courier.submit(self._bring, slots[kept]) if kept.any() else None
            courier = self._courier

            def come() -> Rows:
                return {} if coming is None else courier.arrived(*coming.result())

            self._held = [*self._held[-1:], Batch(ids, kept, self.start, come)]

    def get(self, ids: Ids, slots: Ids) -> Rows:
        """Copies of rows, on the device."""
        with self._lock:
            self._courier.heed()
            parts: list[tuple[Ids, Rows]] = []
            left = np.arange(len(ids))  # positions without a row so far
            for batch in self._held:
                places = batch.places(ids[left])
                here = places >= 0
                if here.any():
                    parts.append((left[here], _selected(batch.rows, places[here])))
                    left = left[~here]
            left = left[slots[left] >= 0]
            left = left[~self._fresh[slots[left]]]
            if len(left):
                rows = self._courier.now(self._bring, slots[left])
                parts.append((left, self._courier.arrived(*rows)))
            return merged(self.start, len(ids), parts)

    def lend(self, ids: Ids, slots: Ids) -> Rows:
        """Copies."""
        return self.get(ids, slots)

    def bring(self, ids: Ids, slots: Ids, into: Rows) -> None:
        """Copy rows into tensors."""
        for name, rows in self.get(ids, slots).items():
            into[name].copy_(rows)

    def put(self, ids: Ids, slots: Ids, rows: Rows) -> None:
        """Store rows; they are copied at once and written later."""
        if not len(ids):
            return
        with self._lock:
            new = {name: _rows_like(v, rows[name], len(ids)) for name, v in self.start.items()}
            self._put_ahead(ids, new)
            self._fresh[slots] = False
            down, there = self._courier.sent_down(new)
            self._courier.write(self._store, down, slots.copy(), there)

    def _put_ahead(self, ids: Ids, rows: Rows) -> None:
        """Update prefetched rows."""
        for batch in self._held:
            places = batch.places(ids)
            here = np.flatnonzero(places >= 0)
            if len(here):
                batch.put(places[here], _selected(rows, here))

    def drop(self, ids: Ids) -> None:
        """Delete clients' rows."""
        with self._lock:
            self._put_ahead(ids, merged(self.start, len(ids), []))

    def host(self, slots: Ids, name: str) -> Tensor:
        """A field of rows, on the host."""
        with self._lock:
            like = self.start[name].cpu()
            kept = np.flatnonzero(~self._fresh[slots])
            found = {name: torch.empty((len(kept), *like.shape), dtype=like.dtype)}
            if len(kept):
                self._courier.now(self._shelves[name].get, slots[kept], found[name])
            return merged({name: like}, len(slots), [(kept, found)])[name]

    def settle(self) -> None:
        """Finish pending work and release prefetched rows."""
        with self._lock:
            self._held = []
            self._courier.rest()

    # -- run by the thread ----------------------------------------------------------------------

    def _bring(self, slots: Ids) -> tuple[Rows, Any]:
        rows = {name: self._courier.room(len(slots), like) for name, like in self.start.items()}
        for name, shelf in self._shelves.items():
            shelf.get(slots, rows[name])
        return self._courier.sent_up(rows)

    def _store(self, rows: Rows, slots: Ids, there: Any) -> None:
        if there is not None:
            there.synchronize()
        for name, shelf in self._shelves.items():
            shelf.put(slots, rows[name])


def _selected(rows: Rows, places: Ids) -> Rows:
    """Some of the rows, copied."""
    if np.array_equal(places, np.arange(len(next(iter(rows.values()))))):
        return {name: t.clone() for name, t in rows.items()}
    index = torch.from_numpy(places)
    return {name: t.index_select(0, index.to(t.device)) for name, t in rows.items()}
