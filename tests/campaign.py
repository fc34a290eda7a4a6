"""What the attacks share: how many there are, programs that are killed, and the table of what they found.

CHAOS_KILLS, CHAOS_FUZZ, CHAOS_FORGED, CHAOS_MINUTES and CHAOS_SEED set how much is tried, and which.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from programs import PATHS

LIMIT = 1200.0
"""Seconds after which a program hangs, on however busy a machine."""
SEED = int(os.environ.get("CHAOS_SEED", "0"))
KILLS = int(os.environ.get("CHAOS_KILLS", "300"))
FUZZ = int(os.environ.get("CHAOS_FUZZ", "300"))
FORGED = int(os.environ.get("CHAOS_FORGED", "1000"))
MINUTES = float(os.environ.get("CHAOS_MINUTES", "20"))
TABLE: list[dict[str, Any]] = []


@dataclass
class Tally:
    """One row of the table; anything but zero in a bad column fails the test."""

    attack: str
    tries: int = 0
    traceback: int = 0
    wrong: int = 0
    hang: int = 0
    orphans: int = 0
    growth: int = 0
    notes: list[str] = field(default_factory=list)

    def bad(self, column: str, note: str) -> None:
        setattr(self, column, getattr(self, column) + 1)
        self.notes.append(f"{column}: {note[-1500:]}")

    def end(self) -> None:
        """Enter the row, and fail if something was found."""
        columns = ("attack", "tries", "traceback", "wrong", "hang", "orphans", "growth")
        TABLE.append({name: getattr(self, name) for name in columns})
        assert not self.notes, "\n\n".join(self.notes[:5])


def rng_of(*words: Any) -> random.Random:
    return random.Random(repr((SEED, *words)))


def environment(**more: str) -> dict[str, str]:
    cache = os.environ.get("FAIRLEAD_CACHE", tempfile.gettempdir())
    return {
        **os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1", "FAIRLEAD_CACHE": cache,
        "COLUMNS": "200", "MPLBACKEND": "Agg", **more,
    }  # fmt: skip


FAIRLEAD = [sys.executable, "-m", "fairlead"]


def torchrun(count: int, restarts: int = 0) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count),
        "--max-restarts", str(restarts), "-m", "fairlead",
    ]  # fmt: skip


def started(command: list[str], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip


def members(group: int) -> list[int]:
    """The processes of a group that are alive."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            after = (path / "stat").read_text().rpartition(")")[2].split()
            if int(after[2]) == group and after[0] not in "ZX":
                found.append(int(path.name))
    return found


def end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def finished(command: list[str], cwd: Path, tally: Tally) -> tuple[int, str]:
    """Run a command to its end; tracebacks and hangs are counted."""
    process = started(command, cwd)
    try:
        said, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        end_group(process.pid)
        process.communicate()
        tally.bad("hang", " ".join(command))
        return -1, ""
    if "Traceback (most recent call last)" in said:
        tally.bad("traceback", said)
    return process.returncode, said


def killed(
    command: list[str], cwd: Path, after: float, rng: random.Random, tally: Tally, whole: bool
) -> None:
    """Start a command and kill it after some seconds, all of it or a process of it at random."""
    process = started(command, cwd)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=after)
    alive = members(process.pid)
    if whole or not alive:
        end_group(process.pid)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(alive), rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
    try:
        said, _ = process.communicate(timeout=LIMIT)
        # Python's own, if Ctrl-C comes while it imports, and those of torchrun about its processes
        others = said.rstrip().endswith("KeyboardInterrupt") or "torch/distributed" in said
        if not whole and "Traceback (most recent call last)" in said and not others:
            tally.bad("traceback", said)
    except subprocess.TimeoutExpired:
        tally.bad("hang", f"after a signal: {' '.join(command)}")
        end_group(process.pid)
        process.communicate()
    until = time.monotonic() + 60
    while members(process.pid) and time.monotonic() < until:
        time.sleep(0.1)
    if left := members(process.pid):
        tally.bad("orphans", f"{left} of {' '.join(command)}")
        end_group(process.pid)
    tally.tries += 1
