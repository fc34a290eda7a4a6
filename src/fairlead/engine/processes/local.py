"""Worker processes that fairlead starts itself: forks of the calling process, which share its data.

The calling process is rank 0, the only one that writes, speaks and is interrupted. Workers run the same
program and end inside it. A socket to each of them carries small numbers, and its end tells that the
process behind it died; vectors are summed in memory that all processes share.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import json
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.engine.processes.distribute import Distributed, RankGroup
from fairlead.engine.processes.fork import (
    check_operators,
    forked,
    ignore_signals,
    rest,
    undisturbed,
)
from fairlead.engine.processes.ranks import Lost, Ranks, launched
from fairlead.engine.session import Session
from fairlead.engine.simulate import Simulate
from fairlead.errors import FairleadError

SLOT = 2 << 20
"""Bytes that a process lays open at a time: few enough to stay in a cache."""
SMALL = 16 << 10
"""Bytes up to which a sum goes by the sockets."""
START, TRIES = 20.0, 3
"""Seconds within which a worker must be there, and how often workers are started."""
HEAD = struct.Struct("<cQ")
FAILED = b"!"
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_RUNNING: list[LocalProcesses] = []


def hindrance(device: torch.device) -> str:
    """Why a run on a device cannot have workers of its own, or an empty string."""
    if device.type != "cpu":
        return f"the task is on {device}, and workers are for CPUs"
    if launched() or _RUNNING:
        return "this process is one of several already"
    if sys.platform != "linux":
        return "workers are forks of a process that has threads, for which fairlead needs Linux"
    if threading.current_thread() is not threading.main_thread():
        return "only the main thread of a process can start workers"
    return ""


class _Stuck(Lost):
    """A worker that never came to be."""


@dataclasses.dataclass
class _Worker:
    rank: int
    process: int
    socket: socket.socket


class LocalProcesses(Ranks):
    """This process and its workers, `size` processes in all, for as long as its block lasts.

    optional: go on as one process where workers cannot be started; `hindered` then says why.
    """

    def __init__(self, size: int, optional: bool = False) -> None:
        self.size, self.optional, self.hindered = size, optional, ""
        self.threads = torch.get_num_threads()  # before and after
        self._workers: list[_Worker] = []
        self._first: socket.socket | None = None
        self._slots: Tensor | None = None
        self._kept: list[Any] = []

    # -- beginning and end ----------------------------------------------------------------------

    def __enter__(self) -> LocalProcesses:
        if self.size == 1:
            return self
        _RUNNING.append(self)
        try:
            self._start()
        except BaseException as error:
            if self.rank:
                self._leave(error)
            self._end()
            if not isinstance(error, OSError | FairleadError):
                raise
            self.hindered = f"workers could not be started: {error}"
            if not self.optional:
                raise FairleadError(self.hindered) from error
            self.size = 1
        return self

    def _start(self) -> None:
        """Returns in all processes, when all of them are there."""
        torch.set_num_threads(1)  # a fork has no other threads, and must not wait for them
        shared = mmap.mmap(-1, (self.size + 1) * SLOT)
        self._slots = torch.frombuffer(shared, dtype=torch.uint8).view(self.size + 1, SLOT)
        for left in reversed(range(TRIES)):
            try:
                self._fork()
                return
            except _Stuck:
                self._dismiss()
                if not left:
                    raise

    def _fork(self) -> None:
        rest()
        parent = os.getpid()
        for rank in range(1, self.size):
            ours, theirs = socket.socketpair()
            with undisturbed():
                process = forked(ours, theirs)
                if process == 0:
                    self._become(rank, parent, theirs, [ours, *(w.socket for w in self._workers)])
                    return
                self._workers.append(_Worker(rank, process, ours))
            theirs.close()
            ours.settimeout(START)
        self.wait()
        for worker in self._workers:
            worker.socket.settimeout(None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.rank:
            self._leave(error)
        self._end()

    def disband(self) -> None:
        """Send the workers home; this process goes on alone."""
        if self.rank:
            self._leave(None)
        self._end()
        self.size = 1

    def _become(
        self, rank: int, parent: int, mine: socket.socket, others: Sequence[socket.socket]
    ) -> None:
        """In a fork: be a worker, silent, and dead when the first process is."""
        try:
            self.rank, self._first, self._workers = rank, mine, []
            for other in others:
                other.close()
            ctypes.CDLL(None).prctl(DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL))
            if os.getppid() != parent:
                os._exit(1)
            gc.freeze()  # what the first process left to be collected, it finishes itself
            ignore_signals()
            self._kept += [sys.stdout, sys.stderr]  # closing them would write them out
            silent = os.open(os.devnull, os.O_RDWR)
            for place in range(3):
                os.dup2(silent, place)
            sys.stdout = sys.stderr = os.fdopen(silent, "w")
            torch.set_num_threads(1)
            check_operators()
            self.wait()
        except BaseException as error:
            self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        """End a worker where it is: nothing that the first process opened is closed or written out."""
        try:
            if error is not None and self._first is not None:
                trace = "".join(traceback.format_exception(error))
                said = " ".join(str(error).split())
                if not isinstance(error, FairleadError):
                    said = f"{type(error).__name__}: {said}" if said else type(error).__name__
                _send(self._first, FAILED, json.dumps([said, trace]).encode())
        finally:
            os._exit(0 if error is None else 1)

    def _end(self) -> None:
        """In the first process: no worker outlives this."""
        self._dismiss()
        self._slots = None
        if self in _RUNNING:
            _RUNNING.remove(self)
            torch.set_num_threads(self.threads)

    def _dismiss(self) -> None:
        for worker in self._workers:
            worker.socket.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process, signal.SIGKILL)  # its work is done, or of no use
        for worker in self._workers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(worker.process, 0)
        self._workers = []

    # -- the run --------------------------------------------------------------------------------

    def engine(self, setting: Simulate) -> Simulate:
        """How to run with these processes what is to be run in a certain way."""
        if self.size == 1:
            return setting
        fields = {f.name: getattr(setting, f.name) for f in dataclasses.fields(setting)}
        return Distributed(**{**fields, "ranks": self})

    def collect(self, session: Session) -> None:
        """The last thing that workers do: give their clients' rows to the first process."""
        if self.size > 1 and isinstance(session.group, RankGroup):
            session.group.bring_home(session.stores())
            self.wait()

    # -- what processes do together -------------------------------------------------------------

    def sum_(self, t: Tensor) -> Tensor:
        flat = t.view(-1)
        if self.size == 1 or not len(flat):
            return t
        if flat.nbytes <= SMALL:
            flat.copy_(_tensor(self._meet(b"s", _bytes(flat), _sum_of(flat.dtype)), flat.dtype))
        else:
            for part in flat.split(SLOT // flat.element_size()):
                self._sum(part)
        return t

    def _sum(self, part: Tensor) -> None:
        """Each process sums a piece of everyone's vectors, in the order of ranks."""
        *given, total = self._views(part.dtype, len(part))
        given[self.rank].copy_(part)
        self.wait()
        ends = np.linspace(0, len(part), self.size + 1).astype(int)
        piece = slice(ends[self.rank], ends[self.rank + 1])
        torch.add(given[0][piece], given[1][piece], out=total[piece])
        for other in given[2:]:
            total[piece] += other[piece]
        self.wait()
        part.copy_(total)

    def most(self, values: Sequence[int]) -> list[int]:
        def largest(found: list[bytes]) -> bytes:
            return np.max([np.frombuffer(data, np.int64) for data in found], 0).tobytes()

        mine = np.array(values, np.int64).tobytes()
        return np.frombuffer(self._meet(b"m", mine, largest), np.int64).tolist()

    def total(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        data = self._meet(b"t", values.tobytes(), _sum_of(torch.float64))
        return np.frombuffer(data).reshape(values.shape).copy()

    def tell(self, value: Any) -> Any:
        data = json.dumps(value).encode() if self.first else b""
        return json.loads(self._meet(b"j", data, lambda found: found[0]))

    def gather(self, data: bytes) -> list[bytes]:
        found = self._meet(b"g", data, b"".join)
        return [found[k : k + len(data)] for k in range(0, len(found), len(data))]

    def wait(self) -> None:
        self._meet(b"w", b"", lambda found: b"")

    def swap(self, give: Mapping[int, Tensor], take: Mapping[int, Tensor]) -> None:
        sizes = np.array([give[r].nbytes if r in give else 0 for r in range(self.size)], np.int64)
        rows = [np.frombuffer(data, np.int64) for data in self.gather(sizes.tobytes())]
        ends = np.cumsum(rows, 1)  # where in a process's stream those for each other one end
        stream = [give[r].reshape(-1).view(torch.uint8) for r in sorted(give)]
        mine = torch.cat(stream) if stream else torch.zeros(0, dtype=torch.uint8)
        into = {r: t.view(-1).view(torch.uint8) for r, t in take.items()}
        for first in range(0, int(ends[:, -1].max()), SLOT):
            slots = self._views(torch.uint8, SLOT)
            part = mine[first : first + SLOT]
            slots[self.rank][: len(part)].copy_(part)
            self.wait()
            for r, room in into.items():
                end = int(ends[r, self.rank])
                start = end - len(room)
                low, high = max(start, first), min(end, first + SLOT)
                if low < high:
                    room[low - start : high - start].copy_(slots[r][low - first : high - first])
            self.wait()

    def _views(self, dtype: torch.dtype, count: int) -> list[Tensor]:
        """Everyone's shared memory as vectors, and that of the result."""
        assert self._slots is not None
        return [slot.view(dtype)[:count] for slot in self._slots]

    def _meet(self, kind: bytes, data: bytes, join: Callable[[list[bytes]], bytes]) -> bytes:
        """What the first process makes of everyone's bytes. All meet for the same kind of thing."""
        if self.size == 1:
            return join([data])
        if self._first is not None:
            try:
                _send(self._first, kind, data)
                return _receive(self._first)[1]
            except (OSError, EOFError):
                os._exit(1)  # the first process is gone, and with it the run
        if not self._workers:
            raise FairleadError("the workers of this run have ended")
        answer = join([data, *(self._hear(worker, kind) for worker in self._workers)])
        for worker in self._workers:
            with contextlib.suppress(OSError):  # if it died, the next meeting tells
                _send(worker.socket, kind, answer)
        return answer

    def _hear(self, worker: _Worker, kind: bytes) -> bytes:
        try:
            found, data = _receive(worker.socket)
        except TimeoutError as error:
            raise _Stuck(f"one does not answer {START:.0f} seconds after its start") from error
        except (OSError, EOFError) as error:
            raise Lost(self._obituary(worker)) from error
        if found == FAILED:
            said, trace = json.loads(data)
            error = FairleadError(f"process {worker.rank} of the run's {self.size} failed: {said}")
            error.add_note(f"there:\n{trace}")
            raise error
        if found != kind:
            raise FairleadError(
                f"process {worker.rank} of the run's {self.size} went another way than this one: a method "
                "must do the same on all of them; train with one process"
            )
        return data

    def _obituary(self, worker: _Worker) -> str:
        how = "ended"
        with contextlib.suppress(ChildProcessError, ValueError):
            code = os.waitstatus_to_exitcode(os.waitpid(worker.process, 0)[1])
            self._workers.remove(worker)
            worker.socket.close()
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "ended"
        return (
            f"process {worker.rank} of the run's {self.size} {how}, so the run cannot go on; a run with "
            "checkpoints goes on from the last one (resume)"
        )


def _bytes(t: Tensor) -> bytes:
    return t.view(torch.uint8).numpy().tobytes()


def _tensor(data: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype)


def _sum_of(dtype: torch.dtype) -> Callable[[list[bytes]], bytes]:
    def join(found: list[bytes]) -> bytes:
        total = _tensor(found[0], dtype)
        for data in found[1:]:
            total += _tensor(data, dtype)
        return _bytes(total)

    return join


def _send(to: socket.socket, kind: bytes, data: bytes) -> None:
    to.sendall(HEAD.pack(kind, len(data)) + data)


def _receive(source: socket.socket) -> tuple[bytes, bytes]:
    """One message; there is never more than one on its way."""
    found = bytearray()
    while len(found) < HEAD.size or len(found) < HEAD.size + HEAD.unpack_from(found)[1]:
        some = source.recv(1 << 16)
        if not some:
            raise EOFError
        found += some
    return HEAD.unpack_from(found)[0], bytes(found[HEAD.size :])
