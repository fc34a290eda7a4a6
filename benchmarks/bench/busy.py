"""A process that keeps a core busy, to see what that does to others."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

SPIN = "import os\nos.sched_setaffinity(0, {int(os.environ['CORE'])})\nprint(flush=True)\nwhile True: pass"


@contextlib.contextmanager
def spinning(core: int | None) -> Iterator[None]:
    """Keep a core busy; with None, none."""
    if core is None:
        yield
        return
    command = [sys.executable, "-c", SPIN]
    env = {**os.environ, "CORE": str(core)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def last_core() -> int:
    """The core that is kept busy."""
    return max(os.sched_getaffinity(0))
