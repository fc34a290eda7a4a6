"""Processes that share the cases of a recipe: each holds a lock on what it does, which ends with the process.

So a case of a process that was killed is free again, and two commands given at the same time share the work too.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import torch

from fairlead.errors import FairleadError
from fairlead.study.reproduce.case import Case, Form

LOCK = "lock"


@dataclass(frozen=True)
class Work:
    """What `carry_out` was asked to do; `until` is a time of the monotonic clock, the same in all processes."""

    recipe: str
    form: Form
    folder: Path
    until: float | None = None
    only: str | None = None
    also: Path | None = None
    jobs: int = 1

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise FairleadError(f"jobs is {self.jobs}: it must be at least 1")

    def over(self) -> bool:
        """Whether the time budget is used up."""
        return self.until is not None and time.monotonic() >= self.until

    def packed(self) -> dict[str, Any]:
        """Ready for JSON."""
        paths = {"folder": str(self.folder), "also": self.also and str(self.also)}
        return {**asdict(self), **paths}

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> Work:
        """From what `packed` gave."""
        also = saved["also"] and Path(saved["also"])
        return cls(
            **{
                **saved,
                "form": Form(**saved["form"]),
                "folder": Path(saved["folder"]),
                "also": also,
            }
        )


class Claims:
    """The locks of the cases in a folder: one file, in which each case has a byte of its own."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / LOCK).open("ab")

    @contextlib.contextmanager
    def of(self, cases: Sequence[Case]) -> Iterator[list[Case]]:
        """Those of the cases that no other process does; none if another does the first of them."""
        mine: list[Case] = []
        try:
            for case in cases:
                if self._lock(case, wait=False):
                    mine.append(case)
                elif not mine:
                    break
            yield mine
        finally:
            for case in mine:
                self._unlock(case)

    def wait(self, case: Case) -> None:
        """Wait until no process does a case."""
        if self._lock(case, wait=True):
            self._unlock(case)

    def close(self) -> None:
        """Let go of all locks."""
        self._file.close()

    def _lock(self, case: Case, wait: bool) -> bool:
        if os.name != "posix":  # no locking elsewhere
            return True
        import fcntl

        try:
            how = fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)
            fcntl.lockf(self._file, how, 1, _place(case))
        except OSError:
            return False
        return True

    def _unlock(self, case: Case) -> None:
        if os.name == "posix":
            import fcntl

            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _place(case))


def _place(case: Case) -> int:
    """The byte that stands for a case; the file stays empty."""
    return int(case.digest[:15], 16)


@contextlib.contextmanager
def alone_on(file: IO[Any]) -> Iterator[None]:
    """While no other process appends to a file."""
    if os.name == "posix":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
    yield  # closing the file unlocks it


@contextlib.contextmanager
def helpers(work: Work) -> Iterator[None]:
    """While further processes do cases of the same work; in the end they are waited for. Each process keeps to
    its share of the cores."""
    if work.jobs == 1:
        yield
        return
    cores, threads = sorted(os.sched_getaffinity(0)), torch.get_num_threads()
    shares = [cores[k :: work.jobs] or [cores[k % len(cores)]] for k in range(work.jobs)]
    running = [_helper(work, share) for share in shares[1:]]
    keep_to(shares[0])
    try:
        yield
        for process in running:
            process.wait()
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
        keep_to(cores, threads)


def _helper(work: Work, cores: Sequence[int]) -> subprocess.Popen[bytes]:
    order = json.dumps({"parent": os.getpid(), "cores": list(cores), "work": work.packed()})
    command = [sys.executable, "-m", "fairlead.study.reproduce.helper", order]
    threads = {"OMP_NUM_THREADS": str(len(cores)), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, env={**os.environ, **threads}, stdin=subprocess.DEVNULL)


def keep_to(cores: Sequence[int], threads: int | None = None) -> None:
    """Run this process on some of the cores."""
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(threads or len(cores))
