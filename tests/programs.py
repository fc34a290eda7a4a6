"""Programs that tests start: where they find what they import, and how what they do is waited for.

No test asserts how long something takes. What a program does is waited for as an event, and a limit of
time is only there so that a program which hangs ends the test.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PATHS = os.pathsep.join(
    [str(TESTS), str(ROOT / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
)
LIMIT = 600.0
"""Seconds after which something is taken for never to come, on however busy a machine."""


def wait_until(
    there: Callable[[], bool], what: str, process: subprocess.Popen | None = None
) -> None:
    """Return when something has happened.

    process: one that must not end before that.
    """
    until = time.monotonic() + LIMIT
    while not there():
        if process is not None and process.poll() is not None and not there():
            raise AssertionError(
                f"the process ended before {what}: {process.returncode}, {process.communicate()}"
            )
        if time.monotonic() > until:
            raise AssertionError(f"{what}: not within {LIMIT:.0f} seconds")
        time.sleep(0.02)


@contextmanager
def ended(processes: Iterable[subprocess.Popen]) -> Iterator[None]:
    """None of the processes outlives a test, also if it fails."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
