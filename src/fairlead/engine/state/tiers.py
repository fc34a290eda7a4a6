"""Where client memories are stored: on the task's device, in host memory, or on disk."""

from __future__ import annotations

import os
import tempfile
import weakref
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.errors import FairleadError

Ids = NDArray[np.int64]
Tier = Literal["device", "host", "disk"]
Memories = Literal["auto", "device", "host", "disk"]

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


class Shelf(Protocol):
    """One field of all rows, stored off the device; used by a single thread."""

    @property
    def nbytes(self) -> int: ...

    def get(self, slots: Ids, into: Tensor) -> None:
        """Copy stored rows into a tensor on the host."""
        ...

    def put(self, slots: Ids, rows: Tensor) -> None:
        """Store rows from the host."""
        ...


class Host:
    """A table in host memory.

    >>> shelf = Host(torch.zeros(2))
    >>> shelf.put(np.array([5]), torch.ones(1, 2))
    >>> shelf.get(np.array([5]), into := torch.empty(1, 2))
    >>> into
    tensor([[1., 1.]])
    """

    def __init__(self, like: Tensor) -> None:
        self._table = torch.empty((0, *like.shape), dtype=like.dtype)

    @property
    def nbytes(self) -> int:
        return self._table.numel() * self._table.element_size()

    def get(self, slots: Ids, into: Tensor) -> None:
        torch.index_select(self._table, 0, torch.from_numpy(slots), out=into)

    def put(self, slots: Ids, rows: Tensor) -> None:
        held, needed = len(self._table), int(slots.max(initial=-1)) + 1
        if needed > held:  # memory that was never written costs nothing
            larger = self._table.new_empty((max(needed, 2 * held), *self._table.shape[1:]))
            larger[:held] = self._table
            self._table = larger
        self._table.index_copy_(0, torch.from_numpy(slots), rows)


class Disk:
    """An unnamed sparse file in the temporary folder, which disappears when it is no longer used, however
    the process ends.

    >>> shelf = Disk(torch.zeros(2))
    >>> shelf.put(np.array([5]), torch.ones(1, 2))
    >>> shelf.get(np.array([5]), into := torch.empty(1, 2))
    >>> into
    tensor([[1., 1.]])
    """

    def __init__(self, like: Tensor) -> None:
        self._width = like.numel() * like.element_size()
        self._rows = 0
        try:
            self._file, name = tempfile.mkstemp(prefix="fairlead-")
            os.unlink(name)
        except OSError as error:
            raise FairleadError(
                f"client memories cannot be stored in {place()}: {error.strerror}; set TMPDIR to a "
                "writable folder"
            ) from error
        weakref.finalize(self, os.close, self._file)

    @property
    def nbytes(self) -> int:
        return self._rows * self._width

    # read and written rather than mapped: a full disk is then an error and not a signal, and the
    # system can reclaim its cache of the file

    def get(self, slots: Ids, into: Tensor) -> None:
        self._move(os.preadv, slots, into, "read from")

    def put(self, slots: Ids, rows: Tensor) -> None:
        self._move(os.pwritev, slots, rows, "written to")
        self._rows = max(self._rows, int(slots.max(initial=-1)) + 1)

    def _move(self, how: Any, slots: Ids, rows: Tensor, what: str) -> None:
        width, data = self._width, rows.reshape(-1).view(torch.uint8).numpy().data
        try:
            for first, last in _runs(slots):
                _all(how, self._file, data[first * width : last * width], int(slots[first]) * width)
        except OSError as error:
            raise FairleadError(
                f"client memories could not be {what} {place()}: {error.strerror}; free some space there, or "
                "set TMPDIR to a folder with more"
            ) from error


def place() -> str:
    """The folder for memories on disk."""
    return tempfile.gettempdir()


def _runs(slots: Ids) -> list[tuple[int, int]]:
    """The start and end of each run of consecutive slots.

    >>> _runs(np.array([4, 5, 9]))
    [(0, 2), (2, 3)]
    """
    cuts = np.flatnonzero(np.diff(slots) != 1) + 1
    ends = [0, *cuts.tolist(), len(slots)] if len(slots) else [0]
    return list(pairwise(ends))


def _all(move: Any, file: int, data: memoryview, at: int) -> None:
    """Read or write everything: one system call may do only part of it."""
    while len(data):
        done = move(file, [data], at)
        if not done:
            raise OSError(5, "unexpected end of file")
        data, at = data[done:], at + done
