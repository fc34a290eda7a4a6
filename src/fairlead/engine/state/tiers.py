"""Where client memories are stored: on the task's device, in host memory, or on disk."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.errors import FairleadError

Ids = NDArray[np.int64]
Rows = dict[str, Tensor]
"""Rows of some clients, or one row, by field."""
Tier = Literal["device", "host", "disk"]
Memories = Literal["auto", "device", "host", "disk"]
Files = Callable[[Callable[[], int]], int]
"""Opens the file that a function makes, in all processes that share a table."""

MAPPED = 32 << 20
"""Bytes from which a table on the host is mapped for itself."""
_PROMISED: weakref.WeakKeyDictionary[Any, tuple[str, int]] = weakref.WeakKeyDictionary()


def installed() -> int:
    """This machine's memory in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not available on this system
        return 8 << 30


def total_memory(device: torch.device) -> int:
    """A device's memory in bytes."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return installed()


def chosen(asked: Memories, device: torch.device, need: int, sharing: int = 1) -> Tier:
    """Where to store `need` bytes: a quarter of a GPU's memory and half of the host's, which several
    processes may share, are available for memories, minus what other runs have reserved.

    >>> chosen("auto", torch.device("cpu"), 1 << 20), chosen("auto", torch.device("cpu"), 1 << 60)
    ('device', 'disk')
    """
    if asked != "auto":
        return "device" if asked == "host" and device.type == "cpu" else asked
    if device.type == "cuda" and need + _promised(str(device)) <= total_memory(device) // 4:
        return "device"
    fits = need + _promised("cpu") <= installed() // 2 // sharing
    return "disk" if not fits else "host" if device.type == "cuda" else "device"


def promise(holder: Any, tier: Tier, device: torch.device, need: int) -> None:
    """Reserve what a table may need, for as long as it exists."""
    if tier != "disk":
        _PROMISED[holder] = ("cpu" if tier == "host" else str(device), need)


def release(holder: Any) -> None:
    """Cancel the reservation of a table."""
    _PROMISED.pop(holder, None)


def _promised(place: str) -> int:
    return sum(need for at, need in _PROMISED.values() if at == place)


class Table:
    """Rows in tensors, on the device or in host memory.

    >>> rows = Table({"c": torch.zeros(2)}, 9, torch.device("cpu"))
    >>> rows.put(np.array([5]), {"c": torch.ones(1, 2)})
    >>> rows.get("c", np.array([5]), into := torch.empty(1, 2))
    >>> into
    tensor([[1., 1.]])
    """

    def __init__(
        self, start: Rows, clients: int, device: torch.device, files: Files | None = None
    ) -> None:
        self.device, self._most, self._shared = device, clients, files is not None
        if files is not None:  # all of them at once, since a table that grows is another one
            self.rows = {name: _shared_rows(files, v, clients) for name, v in start.items()}
        else:
            self.rows = {
                name: torch.empty((0, *v.shape), dtype=v.dtype, device=device)
                for name, v in start.items()
            }
        self._last: tuple[Ids, Tensor | slice] = np.empty(0, np.int64), slice(0)

    def __len__(self) -> int:
        return len(next(iter(self.rows.values())))

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.rows.values())

    def get(self, name: str, slots: Ids, into: Tensor) -> None:
        """Copy a field of rows into a tensor on the same device."""
        t, index = self.rows[name], self._index(slots)
        if not isinstance(index, slice):
            torch.index_select(t, 0, index, out=into)
        elif into is not t:
            into.copy_(t[index])

    def put(self, slots: Ids, rows: Rows) -> None:
        """Store copies of rows from any device."""
        self._grow(int(slots.max()) + 1)
        index = self._index(slots)
        for name, t in self.rows.items():
            new = rows[name].to(self.device)
            if isinstance(index, slice):
                t[index] = new
            else:
                t.index_copy_(0, index, new)

    def _grow(self, needed: int) -> None:
        held = len(self)
        assert needed <= held or not self._shared, "a shared table has room for all its rows"
        if needed > held:  # memory that was never written costs nothing on the host
            room = min(max(needed, 2 * held), self._most)
            for name, rows in self.rows.items():
                self.rows[name] = _room(room, rows)
                self.rows[name][:held] = rows

    def _index(self, slots: Ids) -> Tensor | slice:
        known, index = self._last  # a round reads and writes the same rows
        if known is slots:
            return index
        if (np.diff(slots) == 1).all():  # needs no work of the device
            first = int(slots[0]) if len(slots) else 0
            index = slice(first, first + len(slots))
        elif not np.array_equal(known, slots):
            index = torch.from_numpy(slots).to(self.device, non_blocking=True)
        self._last = slots, index
        return index


def _room(count: int, like: Tensor) -> Tensor:
    """Uninitialized rows. Many bytes on the host are mapped for themselves, so that a table that has grown
    leaves no hole in the heap."""
    shape, size = (count, *like.shape[1:]), count * like.shape[1:].numel() * like.element_size()
    if like.device.type != "cpu" or size < MAPPED or not hasattr(mmap, "MAP_PRIVATE"):
        return like.new_empty(shape)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return torch.frombuffer(mmap.mmap(-1, size, flags=private), dtype=like.dtype).view(shape)


def shared_memory(files: Files, size: int) -> Tensor:
    """Bytes that all processes share. Those that are never written cost nothing."""

    def make() -> int:
        file = os.memfd_create("fairlead")
        os.ftruncate(file, size)
        return file

    file = files(make)
    try:
        return torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)
    finally:
        os.close(file)


def _shared_rows(files: Files, like: Tensor, count: int) -> Tensor:
    found = shared_memory(files, max(1, count * like.nbytes))[: count * like.nbytes]
    return found.view(like.dtype).view(count, *like.shape)


class Disk:
    """Rows in unnamed sparse files in the temporary folder, one per field, which disappear when they are no
    longer used, however the process ends.

    >>> rows = Disk({"c": torch.zeros(2)})
    >>> rows.put(np.array([5]), {"c": torch.ones(1, 2)})
    >>> rows.get("c", np.array([5]), into := torch.empty(1, 2))
    >>> into
    tensor([[1., 1.]])
    """

    device = torch.device("cpu")

    def __init__(self, start: Rows, files: Files | None = None) -> None:
        self._width = {name: v.nbytes for name, v in start.items()}
        self._files: dict[str, int] = {}
        self._used = 0
        try:
            for name in start:
                self._files[name] = _unnamed() if files is None else files(_unnamed)
                weakref.finalize(self, os.close, self._files[name])
        except OSError as error:
            raise FairleadError(
                f"client memories cannot be stored in {place()}: {error.strerror}; set TMPDIR to a "
                "writable folder"
            ) from error

    @property
    def nbytes(self) -> int:
        return self._used * sum(self._width.values())

    # read and written rather than mapped: a full disk is then an error and not a signal, and the
    # system can reclaim its cache of the file

    def get(self, name: str, slots: Ids, into: Tensor) -> None:
        """Copy a field of rows into a contiguous tensor in host memory."""
        self._move(os.preadv, name, slots, into, "read from")

    def put(self, slots: Ids, rows: Rows) -> None:
        """Store rows from any device."""
        for name in self._files:
            self._move(os.pwritev, name, slots, rows[name].cpu(), "written to")
        self._used = max(self._used, int(slots.max()) + 1)

    def _move(self, how: Any, name: str, slots: Ids, rows: Tensor, what: str) -> None:
        width, data = self._width[name], rows.reshape(-1).view(torch.uint8).numpy().data
        try:
            for first, last in _runs(slots):
                part = data[first * width : last * width]
                _all(how, self._files[name], part, int(slots[first]) * width)
        except OSError as error:
            raise FairleadError(
                f"client memories could not be {what} {place()}: {error.strerror}; free some space there, or "
                "set TMPDIR to a folder with more"
            ) from error


def _unnamed() -> int:
    """A file without a name in the temporary folder."""
    file, path = tempfile.mkstemp(prefix="fairlead-")
    os.unlink(path)
    return file


def place() -> str:
    """The folder for memories on disk."""
    return tempfile.gettempdir()


def _runs(slots: Ids) -> list[tuple[int, int]]:
    """The start and end of each run of consecutive slots.

    >>> _runs(np.array([4, 5, 9]))
    [(0, 2), (2, 3)]
    """
    cuts = np.flatnonzero(np.diff(slots) != 1) + 1
    return list(pairwise([0, *cuts.tolist(), len(slots)]))


def _all(move: Any, file: int, data: memoryview, at: int) -> None:
    """Read or write everything: one system call may do only part of it."""
    while len(data):
        done = move(file, [data], at)
        if not done:
            raise OSError(5, "unexpected end of file")
        data, at = data[done:], at + done
