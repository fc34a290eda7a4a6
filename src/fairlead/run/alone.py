"""One run at a time: torch's generators and tracers belong to the process, not to a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from fairlead.errors import FairleadError

_LOCK = threading.Lock()
_TRAINING: list[int] = []
"""The thread that trains, once for each of its runs that is under way."""


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """While a run is under way; refuses a second one in another thread of the process."""
    me = threading.get_ident()
    with _LOCK:
        if _TRAINING and _TRAINING[0] != me:
            raise FairleadError(
                "another thread of this process is training: train one run after the other, several with "
                "fl.train_many, or each in a process of its own"
            )
        _TRAINING.append(me)
    try:
        yield
    finally:
        with _LOCK:
            _TRAINING.remove(me)
