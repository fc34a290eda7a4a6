"""Memory that a process and its forks share: slots for vectors, and a counter of what has been taken."""

from __future__ import annotations

import importlib
import mmap
import os
import struct
from typing import Any

import torch
from torch import Tensor

SLOT = 2 << 20
"""Bytes of a vector that are shared at a time: few enough to stay in cache."""
TAKEN = struct.Struct("<QQ")


class Board:
    """`slots` slots and a counter. A slot that is not used costs nothing.

    >>> board = Board(2)
    >>> [board.take(turn, first=3) for turn in (1, 1, 2)]
    [3, 4, 3]
    """

    def __init__(self, slots: int) -> None:
        self._slots = torch.frombuffer(mmap.mmap(-1, slots * SLOT), dtype=torch.uint8)
        self._file = os.memfd_create("fairlead")
        os.ftruncate(self._file, TAKEN.size)
        self._counter = mmap.mmap(self._file, TAKEN.size)
        self._lock: Any = importlib.import_module("fcntl")  # not on every system

    def views(self, dtype: torch.dtype, count: int) -> list[Tensor]:
        """The slots as vectors of so many numbers."""
        return [slot.view(dtype)[:count] for slot in self._slots.view(-1, SLOT)]

    def take(self, turn: int, first: int) -> int:
        """The next number of a turn, which no other process gets; numbers begin with `first`. The system
        releases the lock of a process that dies."""
        self._lock.lockf(self._file, self._lock.LOCK_EX)
        try:
            present, number = TAKEN.unpack(self._counter[:])
            number = number if present == turn else first
            self._counter[:] = TAKEN.pack(turn, number + 1)
        finally:
            self._lock.lockf(self._file, self._lock.LOCK_UN)
        return number

    def close(self) -> None:
        os.close(self._file)
