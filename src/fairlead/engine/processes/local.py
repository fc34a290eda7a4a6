"""Worker processes that fairlead starts itself: forks of the calling process, which share its data.

The calling process is rank 0, the only one that writes, prints and handles signals. Workers run the same
program and exit inside it. A socket to each worker carries small numbers and closes if the worker dies;
vectors are summed in shared memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import signal
import socket
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

from fairlead.engine.processes.board import SLOT, Board
from fairlead.engine.processes.distribute import Distributed, RankGroup
from fairlead.engine.processes.environment import end_with_parent
from fairlead.engine.processes.fork import (
    check_operators,
    forked,
    ignore_signals,
    is_stopped,
    rest,
    undisturbed,
)
from fairlead.engine.processes.messages import bytes_of, receive, send, sum_of, tensor_of
from fairlead.engine.processes.ranks import SharingRanks, launched
from fairlead.engine.processes.shares import most_chunks
from fairlead.engine.session import Session
from fairlead.engine.simulate import Simulate
from fairlead.errors import FairleadError, Lost

SMALL = 16 << 10
"""The largest sum in bytes that goes through the sockets."""
PATIENCE = 60.0  # seconds after which a worker that was stopped by a signal is given up
STOPPED = "was stopped by a signal, so the run cannot continue; with checkpoints it can be resumed"
START, TRIES = 20.0, 3
"""Seconds within which a worker must answer, and how often to try."""
FAILED = b"!"
_RUNNING: list[LocalProcesses] = []


def hindrance(device: torch.device) -> str:
    """Why a run on a device cannot have workers, or an empty string."""
    if device.type != "cpu":
        return f"the task is on {device}, and workers are for CPUs"
    if launched() or _RUNNING:
        return "this process is already one of several"
    if sys.platform != "linux":
        return "workers are forks of a process with threads, which requires Linux"
    if threading.current_thread() is not threading.main_thread():
        return "only the main thread of a process can start workers"
    return ""


class _Stuck(Lost):
    """A worker that did not start."""


@dataclasses.dataclass
class _Worker:
    rank: int
    process: int
    socket: socket.socket


class LocalProcesses(SharingRanks):
    """This process and its workers, `size` processes in total, for the duration of a `with` block.

    optional: continue as one process if workers cannot be started; `hindered` then says why.
    """

    def __init__(self, size: int, optional: bool = False) -> None:
        self.size, self.optional, self.hindered = size, optional, ""
        self.threads = torch.get_num_threads()  # to restore at the end
        self._cores: list[int] = []
        self._bound = False
        self._workers: list[_Worker] = []
        self._first: socket.socket | None = None
        self._board: Board | None = None
        self._kept: list[Any] = []

    # -- start and end --------------------------------------------------------------------------

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
            why = f"workers could not be started: {error}"
            if not self.optional:
                raise FairleadError(why) from error
            self.hindered = f"one process: {why}"
            self.size = 1
        return self

    def _start(self) -> None:
        """Start the workers; returns in every process once all are running."""
        torch.set_num_threads(1)  # a fork has no other threads and must not wait for any
        self._cores = sorted(os.sched_getaffinity(0))
        self._board = Board(most_chunks(self.size) + 1)
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
            worker.socket.settimeout(PATIENCE)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.rank:
            self._leave(error)
        self._end()

    def _become(
        self, rank: int, parent: int, mine: socket.socket, others: Sequence[socket.socket]
    ) -> None:
        """In a fork: become a silent worker that dies with the first process."""
        try:
            self.rank, self._first, self._workers = rank, mine, []
            for other in others:
                other.close()
            end_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            gc.freeze()  # the first process collects its own garbage
            ignore_signals()
            self._kept += [sys.stdout, sys.stderr]  # closing them would flush them
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
        """Exit a worker at once, without closing or flushing what the first process opened."""
        try:
            if error is not None and self._first is not None:
                trace = "".join(traceback.format_exception(error))
                said = " ".join(str(error).split())
                if not isinstance(error, FairleadError):
                    said = f"{type(error).__name__}: {said}" if said else type(error).__name__
                send(self._first, FAILED, json.dumps([said, trace]).encode())
        finally:
            os._exit(0 if error is None else 1)

    def _end(self) -> None:
        """In the first process: end all workers."""
        self._dismiss()
        if self._board is not None:
            self._board.close()
            self._board = None
        if self in _RUNNING:
            _RUNNING.remove(self)
            if self._bound:
                os.sched_setaffinity(0, self._cores)
            torch.set_num_threads(self.threads)

    def _dismiss(self) -> None:
        for worker in self._workers:
            worker.socket.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process, signal.SIGKILL)  # its work is done or no longer needed
        for worker in self._workers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(worker.process, 0)
        self._workers = []

    # -- the run --------------------------------------------------------------------------------

    def engine(self, setting: Simulate) -> Simulate:
        """The engine for these processes with the given settings."""
        if self.size == 1:
            return setting
        fields = {f.name: getattr(setting, f.name) for f in dataclasses.fields(setting)}
        return Distributed(**{**fields, "ranks": self})

    def collect(self, session: Session) -> None:
        """Move the workers' rows to the first process, at the end of the run."""
        if self.size > 1 and isinstance(session.group, RankGroup):
            session.group.bring_home(session.stores())
            self.wait()

    # -- collective operations ------------------------------------------------------------------

    def sum_(self, t: Tensor) -> Tensor:
        flat = t.view(-1)
        if self.size == 1 or not len(flat):
            return t
        if flat.nbytes <= SMALL:
            flat.copy_(tensor_of(self._meet(b"s", bytes_of(flat), sum_of(flat.dtype)), flat.dtype))
        else:
            self._sum({self.rank: flat}, self.size, flat)
        return t

    def sum_in_order(self, mine: Mapping[int, Tensor], count: int) -> Tensor:
        return self._sum(mine, count, torch.empty_like(next(iter(mine.values()))))

    def _sum(self, mine: Mapping[int, Tensor], count: int, out: Tensor) -> Tensor:
        """Each process sums one piece of all vectors, in their order."""
        width = SLOT // out.element_size()
        for first in range(0, len(out), width):
            part = slice(first, min(first + width, len(out)))
            total, *given = self._views(out.dtype, part.stop - first)[: count + 1]
            for number, vector in mine.items():
                given[number].copy_(vector[part])
            self.wait()
            ends = np.linspace(0, len(total), self.size + 1).astype(int)
            piece = slice(ends[self.rank], ends[self.rank + 1])
            torch.add(given[0][piece], given[1][piece], out=total[piece])
            for other in given[2:]:
                total[piece] += other[piece]
            self.wait()
            out[part].copy_(total)
        return out

    def most(self, values: Sequence[int]) -> list[int]:
        def largest(found: list[bytes]) -> bytes:
            return np.max([np.frombuffer(data, np.int64) for data in found], 0).tobytes()

        mine = np.array(values, np.int64).tobytes()
        return np.frombuffer(self._meet(b"m", mine, largest), np.int64).tolist()

    def total(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        data = self._meet(b"t", values.tobytes(), sum_of(torch.float64))
        return np.frombuffer(data).reshape(values.shape).copy()

    def tell(self, value: Any) -> Any:
        data = json.dumps(value).encode() if self.first else b""
        return json.loads(self._meet(b"j", data, lambda found: found[0]))

    def gather(self, data: bytes) -> list[bytes]:
        found = self._meet(b"g", data, b"".join)
        return [found[k : k + len(data)] for k in range(0, len(found), len(data))]

    def wait(self) -> None:
        self._meet(b"w", b"", lambda found: b"")

    def take(self, turn: int) -> int:
        assert self._board is not None
        if not self._bound and len(self._cores) == self.size:
            # next to another busy process, the system leaves two of ours on one core for whole rounds
            os.sched_setaffinity(0, {self._cores[self.rank]})
            self._bound = True
        return self._board.take(turn, self.size)

    def shared_file(self, make: Callable[[], int]) -> int:
        if self._first is not None:
            try:
                send(self._first, b"f", b"")
                return socket.recv_fds(self._first, 1, 1)[1][0]
            except (OSError, IndexError):
                os._exit(1)  # the first process has ended, and so has the run
        file = make()
        for worker in self._workers:
            self._hear(worker, b"f")
            with contextlib.suppress(OSError):  # if it died, the next call notices
                socket.send_fds(worker.socket, [b"f"], [file])
        return file

    def swap(self, give: Mapping[int, Tensor], take: Mapping[int, Tensor]) -> None:
        sizes = np.array([give[r].nbytes if r in give else 0 for r in range(self.size)], np.int64)
        rows = [np.frombuffer(data, np.int64) for data in self.gather(sizes.tobytes())]
        ends = np.cumsum(rows, 1)  # where the bytes for each receiver end in a sender's stream
        stream = [give[r].reshape(-1).view(torch.uint8) for r in sorted(give)]
        mine = torch.cat(stream) if stream else torch.zeros(0, dtype=torch.uint8)
        into = {r: t.view(-1).view(torch.uint8) for r, t in take.items()}
        for first in range(0, int(ends[:, -1].max()), SLOT):
            slots = self._views(torch.uint8, SLOT)[: self.size]
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
        """The shared memory as vectors."""
        assert self._board is not None
        return self._board.views(dtype, count)

    def _meet(self, kind: bytes, data: bytes, join: Callable[[list[bytes]], bytes]) -> bytes:
        """The bytes of all processes, joined by the first one; all must call it with the same kind."""
        if self.size == 1:
            return join([data])
        if self._first is not None:
            try:
                send(self._first, kind, data)
                return receive(self._first)[1]
            except (OSError, EOFError):
                os._exit(1)  # the first process has ended, and so has the run
        if not self._workers:
            raise FairleadError("the workers of this run have ended")
        answer = join([data, *(self._hear(worker, kind) for worker in self._workers)])
        for worker in self._workers:
            with contextlib.suppress(OSError):  # if it died, the next call notices
                send(worker.socket, kind, answer)
        return answer

    def _hear(self, worker: _Worker, kind: bytes) -> bytes:
        started = worker.socket.gettimeout() == PATIENCE

        def works() -> bool:
            return started and not is_stopped(worker.process)

        try:
            found, data = receive(worker.socket, works)
        except TimeoutError as error:
            if started:
                raise Lost(f"process {worker.rank} of the run's {self.size} {STOPPED}") from error
            raise _Stuck(
                f"a worker did not answer within {START:.0f} seconds of its start"
            ) from error
        except (OSError, EOFError) as error:
            raise Lost(self._obituary(worker)) from error
        if found == FAILED:
            said, trace = json.loads(data)
            error = FairleadError(f"process {worker.rank} of the run's {self.size} failed: {said}")
            error.add_note(f"in that process:\n{trace}")
            raise error
        if found != kind:
            raise FairleadError(
                f"process {worker.rank} of the run's {self.size} is out of step with this one: a method "
                "must do the same in all of them; train with one process"
            )
        return data

    def _obituary(self, worker: _Worker) -> str:
        how = "ended"
        with contextlib.suppress(ChildProcessError, ValueError):
            code = os.waitstatus_to_exitcode(os.waitpid(worker.process, 0)[1])
            self._workers.remove(worker)
            worker.socket.close()
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else "ended"
        return (
            f"process {worker.rank} of the run's {self.size} {how}, so the run cannot continue; a run with "
            "checkpoints can be resumed from the last one"
        )
