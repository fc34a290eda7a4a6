"""What the attacks share: how many there are, programs that are killed, and the table of what they found.

CHAOS_KILLS, CHAOS_FUZZ, CHAOS_FORGED, CHAOS_MINUTES and CHAOS_SEED set how much is tried, and which; CHAOS_LIMIT the
seconds after which a program is taken for one that hangs. The attacks come in parts that may run at the same time;
each appends its row to the file named by CHAOS_TABLE, and `python tests/campaign.py FILE` prints the table.
"""

from __future__ import annotations

import contextlib
import itertools
import json
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

LIMIT = float(os.environ.get("CHAOS_LIMIT", "1200"))
"""Seconds after which a program hangs, on however busy a machine."""
SEED = int(os.environ.get("CHAOS_SEED", "0"))
KILLS = int(os.environ.get("CHAOS_KILLS", "300"))
FUZZ = int(os.environ.get("CHAOS_FUZZ", "300"))
FORGED = int(os.environ.get("CHAOS_FORGED", "1000"))
MINUTES = float(os.environ.get("CHAOS_MINUTES", "20"))
COLUMNS = ("tries", "traceback", "wrong", "hang", "orphans", "growth")


def parts(total: int, each: int) -> list[tuple[int, int]]:
    """(number, tries) of the parts that make up so many tries.

    >>> parts(7, 3)
    [(0, 3), (1, 3), (2, 1)]
    """
    return [(k, min(each, total - k * each)) for k in range(-(-total // each))]


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
        row = {"attack": self.attack, **{name: getattr(self, name) for name in COLUMNS}}
        with open(os.environ["CHAOS_TABLE"], "a", encoding="utf-8") as file:
            file.write(json.dumps({**row, "notes": self.notes}) + "\n")
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


_LIVES = itertools.count()


class Command(subprocess.Popen[str]):
    """A command, whose processes can be told by their environment, also those in sessions of their own."""

    def __init__(self, words: list[str], cwd: Path) -> None:
        self.mark = f"CHAOS_LIFE={os.getpid()}-{next(_LIVES)}"
        name, _, value = self.mark.partition("=")
        super().__init__(
            words, cwd=cwd, env=environment(**{name: value}), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip


def members(process: Command) -> list[int]:
    """The processes of a command that are alive."""
    mark, found = process.mark.encode(), []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and mark in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def end_all(process: Command) -> None:
    """Kill a command and what it started."""
    while alive := members(process):
        for one in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.01)


def finished(command: list[str], cwd: Path, tally: Tally) -> tuple[int, str]:
    """Run a command to its end; tracebacks and hangs are counted."""
    process = Command(command, cwd)
    try:
        said, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        end_all(process)
        process.communicate()
        tally.bad("hang", " ".join(command))
        return -1, ""
    if "Traceback (most recent call last)" in said:
        tally.bad("traceback", said)
    return process.returncode, said


def lasted(command: list[str], cwd: Path, out: Path) -> tuple[float, float]:
    """Seconds until a command wrote its first file, and until its end."""
    began, begin, process = 0.0, time.monotonic(), Command(command, cwd)
    while process.poll() is None and time.monotonic() < begin + LIMIT:
        if not began and any(out.iterdir()):
            began = time.monotonic() - begin
        time.sleep(0.02)
    took = time.monotonic() - begin
    end_all(process)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return began or took, took


def killed(
    command: list[str], cwd: Path, after: float, rng: random.Random, tally: Tally, whole: bool
) -> None:
    """Start a command and kill it after some seconds, all of it or a process of it at random."""
    process = Command(command, cwd)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=after)
    alive = members(process)
    if whole or not alive:
        end_all(process)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(alive), rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
    tally.tries += bool(alive)
    try:
        said, _ = process.communicate(timeout=LIMIT)
        # Python's own, if Ctrl-C comes while it imports, and those of torchrun about its processes
        others = said.rstrip().endswith("KeyboardInterrupt") or "torch/distributed" in said
        if not whole and "Traceback (most recent call last)" in said and not others:
            tally.bad("traceback", said)
    except subprocess.TimeoutExpired:
        tally.bad("hang", f"after a signal: {' '.join(command)}")
        end_all(process)
        process.communicate()
    until = time.monotonic() + 60
    while members(process) and time.monotonic() < until:
        time.sleep(0.1)
    if left := members(process):
        tally.bad("orphans", f"{left} of {' '.join(command)}")
        end_all(process)


def table(file: Path) -> list[str]:
    """The rows of a file, those of one attack added up, and their sum: a table in Markdown."""
    found: dict[str, dict[str, int]] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        row = json.loads(line)
        for attack in (row["attack"], "all"):
            sums = found.setdefault(attack, dict.fromkeys(COLUMNS, 0))
            for name in COLUMNS:
                sums[name] += row[name]
    if not found:
        return []
    found["all"] = found.pop("all")  # at the end
    lines = [["attack", *COLUMNS], ["---"] * (1 + len(COLUMNS))]
    lines += [[attack, *map(str, sums.values())] for attack, sums in found.items()]
    return ["| " + " | ".join(words) + " |" for words in lines]


if __name__ == "__main__":
    print("\n".join(table(Path(sys.argv[1]))))
