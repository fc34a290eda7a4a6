"""The lock of a folder, held by the process that writes to it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import IO

from fairlead.errors import FairleadError


def locked(path: Path) -> IO[str]:
    """The open lock file, held until it is closed or the process ends."""
    file = path.open("a", encoding="utf-8")
    for _ in range(20):  # a reader may hold it briefly
        if _hold(file):
            return file
        time.sleep(0.05)
    file.close()
    raise FairleadError(f"another process is writing to {path.parent}: wait for it, or stop it")


def is_locked(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return not _hold(file, shared=True)  # so that readers are not mistaken for a writer
    except OSError:
        return False


def _hold(file: IO[str], shared: bool = False) -> bool:
    if os.name != "posix":  # no locking elsewhere
        return True
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
