"""A process and the one that started it: what the launcher of several says, and ending with it; needs no torch."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def is_first() -> bool:
    """Whether this is rank 0, according to the environment."""
    return os.environ.get("RANK", "0") == "0"


def restarted() -> bool:
    """Whether torchrun restarted this process after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def by_torchrun() -> bool:
    """Whether torchrun started this process, and holds the addresses of the others."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def end_with_parent(kind: signal.Signals) -> None:
    """Have this process get a signal when the one that started it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, ctypes.c_ulong(kind))
