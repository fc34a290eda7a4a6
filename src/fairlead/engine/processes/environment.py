"""What the launcher of several processes says in environment variables; needs no torch."""

from __future__ import annotations

import os


def is_first() -> bool:
    """Whether this is rank 0, according to the environment."""
    return os.environ.get("RANK", "0") == "0"


def restarted() -> bool:
    """Whether torchrun restarted this process after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
