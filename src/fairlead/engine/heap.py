"""The C library's heap while a run goes on: blocks that a step has freed are there for the next one.

Left alone, the library gets a large block from the system and returns it with every operator, and the page faults of a new
one cost more than most operators. It keeps blocks of up to `REUSED` bytes if it is told to, and larger ones, such as
vectors of ten million parameters, if it may not map any.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

REUSED = 32 << 20
"""The largest block in bytes that is kept while larger ones are still mapped."""
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
USUAL = 1 << 16
"""How many blocks may be mapped if nobody says otherwise."""


@cache
def _library() -> Any:
    """The C library, if it is one that can be told."""
    try:
        found = ctypes.CDLL("libc.so.6")
    except OSError:
        return None
    return found if hasattr(found, "mallopt") and hasattr(found, "malloc_trim") else None


class Heap:
    """What a run has told the C library."""

    def __init__(self) -> None:
        self.maps = True
        """Whether large blocks are mapped."""

    def keep(self, largest: int) -> None:
        """Keep freed blocks for reuse, also such of so many bytes."""
        if (library := _library()) is None:
            return
        library.mallopt(MMAP_THRESHOLD, REUSED)
        library.mallopt(TRIM_THRESHOLD, 1 << 30)
        if largest > REUSED:
            self.maps = not library.mallopt(MMAP_MAX, 0)

    def close(self) -> None:
        """Map large blocks again, and return to the system what has been freed."""
        if not self.maps and (library := _library()) is not None:
            self.maps = True
            library.mallopt(MMAP_MAX, USUAL)
            library.malloc_trim(0)
