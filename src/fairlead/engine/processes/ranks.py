"""The processes of a run: sums, agreement and transfers between them."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import re
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from fairlead.engine.processes.environment import by_torchrun, end_with_parent
from fairlead.errors import FairleadError, Lost

LAUNCHER = timedelta(seconds=180)
"""How long torchrun may take to answer: it has been there before its ranks, unless it was killed meanwhile."""


def launched() -> bool:
    """Whether this process is one of several, started by torchrun or similar."""
    return int(os.environ.get("WORLD_SIZE", "0")) > 0 or dist.is_initialized()


def local_device(device: str) -> str:
    """This process's own GPU, if several processes share a machine."""
    return (
        f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" and launched() else device
    )


class Ranks(ABC):
    """This process as one of several, and their collective operations."""

    rank = 0
    size = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and reports."""
        return self.rank == 0

    @abstractmethod
    def sum_(self, t: Tensor) -> Tensor:
        """The sum over all processes, in place; bitwise the same everywhere."""

    @abstractmethod
    def most(self, values: Sequence[int]) -> list[int]:
        """The largest of each number over all processes."""

    @abstractmethod
    def total(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums of numbers on the host; whole ones are exact up to 2^53."""

    @abstractmethod
    def tell(self, value: Any) -> Any:
        """The value given by the first process; must be JSON."""

    @abstractmethod
    def gather(self, data: bytes) -> list[bytes]:
        """Bytes of equal length from every process."""

    @abstractmethod
    def swap(self, give: Mapping[int, Tensor], take: Mapping[int, Tensor]) -> None:
        """Send tensors to some processes and receive others in place. All processes must call it, even
        with nothing to send."""

    def wait(self) -> None:
        """Wait until all processes get here."""
        self.most([0])


class SharingRanks(Ranks):
    """Processes that share memory, so that any of them can serve any client."""

    @abstractmethod
    def take(self, turn: int) -> int:
        """The next number of a turn, from `size` on, which no other process gets."""

    @abstractmethod
    def sum_in_order(self, mine: Mapping[int, Tensor], count: int) -> Tensor:
        """The sum of `count` vectors in the order of their numbers; each process has one or more."""

    @abstractmethod
    def shared_file(self, make: Callable[[], int]) -> int:
        """A file that the first process makes, open in every process."""


class TorchRanks(Ranks):
    """Processes started by torchrun or similar, which communicate through `torch.distributed`; a process
    started alone is one of one.

    Sums are on the run's device. Agreement is about a few numbers on the host, which have a separate
    group if the device is a GPU, so that no round waits for it.
    """

    def __init__(self, device: torch.device, backend: str | None, timeout: float) -> None:
        self.device = device
        self.connected = launched()
        if self.connected:
            _connect(backend or ("nccl" if device.type == "cuda" else "gloo"), timeout)
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            if dist.get_backend() != "gloo" and not _CONTROL:
                _CONTROL.append(dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout)))

    def sum_(self, t: Tensor) -> Tensor:
        if self.connected:
            with _answering(self):
                dist.all_reduce(t)
        return t

    def most(self, values: Sequence[int]) -> list[int]:
        if self.size == 1:
            return list(values)
        t = torch.tensor(values)
        with _answering(self):
            dist.all_reduce(t, dist.ReduceOp.MAX, group=_control())
        return t.tolist()

    def total(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.size == 1:
            return values
        t = torch.from_numpy(values.copy())
        with _answering(self):
            dist.all_reduce(t, group=_control())
        return t.numpy()

    def tell(self, value: Any) -> Any:
        if self.size == 1:
            return value
        data = json.dumps(value).encode() if self.first else b""
        size = torch.tensor([len(data)])
        with _answering(self):
            dist.broadcast(size, 0, group=_control())
            sent = bytearray(data or bytes(int(size)))
            text = torch.frombuffer(sent, dtype=torch.uint8)
            dist.broadcast(text, 0, group=_control())
        return json.loads(bytes(text.numpy()))

    def gather(self, data: bytes) -> list[bytes]:
        if self.size == 1:
            return [data]
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with _answering(self):
            dist.all_gather(found, mine, group=_control())
        return [bytes(t.numpy()) for t in found]

    def swap(self, give: Mapping[int, Tensor], take: Mapping[int, Tensor]) -> None:
        if not give and not take:
            return
        by_host = self.device.type != "cpu" and dist.get_backend() == "gloo"
        given = {r: t.cpu() if by_host else t for r, t in give.items()}
        taken = {r: torch.empty_like(t, device="cpu") if by_host else t for r, t in take.items()}
        work = [dist.P2POp(dist.isend, t, rank) for rank, t in sorted(given.items())]
        work += [dist.P2POp(dist.irecv, t, rank) for rank, t in sorted(taken.items())]
        with _answering(self):
            for waiting in dist.batch_isend_irecv(work):
                waiting.wait()
        if by_host:
            for rank, t in take.items():
                t.copy_(taken[rank])


def _connect(backend: str, timeout: float) -> None:
    if dist.is_initialized():
        return
    limit = timedelta(seconds=timeout)
    if by_torchrun():  # its ranks end with it, before they have found each other or later
        end_with_parent(signal.SIGTERM)
    # its first import binds the existing group as a default argument, so import it before there is one
    importlib.import_module("torch.distributed.nn")
    try:
        first = min(limit, LAUNCHER) if by_torchrun() else limit
        store, rank, size = next(rendezvous("env://", timeout=first))
        store.set_timeout(limit)
        # restarted processes must not find the addresses of their predecessors
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        own = PrefixStore(f"fairlead-{attempt}", store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError) as error:
        raise FairleadError(
            f"the processes of the run did not find each other: {_line(error)}"
        ) from error
    atexit.register(_leave)


_CONTROL: list[Any] = []


def _control() -> Any:
    return _CONTROL[0] if _CONTROL else None


def _leave() -> None:
    """End the groups' threads before Python exits: one that frees a tensor later crashes the process."""
    _CONTROL.clear()
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


@contextlib.contextmanager
def _answering(ranks: TorchRanks) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise Lost(
            f"rank {ranks.rank} of {ranks.size} lost the others: one of them ended or does not answer "
            f"({_line(error)}); with torchrun --max-restarts the run resumes from its last checkpoint"
        ) from error


def _line(error: Exception) -> str:
    """The first sentence of a torch error, without the source location."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"\[/[^\]]*\] ?", "", first).partition(". This is")[0]
