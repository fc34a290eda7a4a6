"""Memory: what a run needs, and how many clients fit together."""

from __future__ import annotations

import shutil
import warnings
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fairlead.data.batches import Draw
from fairlead.engine.heap import REUSED
from fairlead.engine.session import Session
from fairlead.engine.state.tiers import Tier, installed, place, total_memory
from fairlead.errors import FairleadError
from fairlead.gradients.oracle import Gradients
from fairlead.task.samples import load
from fairlead.task.task import Task


def clients_that_fit(task: Task, draw: Draw, memory: int | None, sharing: int = 1) -> int:
    """How many clients' vectors and activations fit in memory together, if `sharing` processes share the
    host's."""
    each = bytes_per_client(task, draw.index.shape[-1])
    if memory is not None:
        return max(1, memory // each)
    # of total, not free memory, because the chunk size affects the rounding of sums
    if task.device.type == "cuda":
        return max(1, total_memory(task.device) // 2 // each)
    return max(
        1, min(installed() // 4 // sharing // each, REUSED // (task.dim * task.dtype.itemsize))
    )


def bytes_per_client(task: Task, batch: int) -> int:
    """The memory of one working client: its vectors, and a step's samples and activations."""
    if task not in _KEPT:
        _KEPT[task] = _activations(task)
    sample = sum(t[0].numel() * t.element_size() for t in task.data)
    return 10 * task.dim * task.dtype.itemsize + batch * (2 * sample + 3 * _KEPT[task])


def samples_that_fit(task: Task) -> int:
    """How many samples a pass of a measure uses at a time, with second derivatives."""
    if task not in _KEPT:
        _KEPT[task] = _activations(task)
    room = total_memory(task.device) // 4 if task.device.type == "cuda" else 512 << 20
    each = sum(t[0].numel() * t.element_size() for t in task.data) + 6 * _KEPT[task]
    return max(1, min(1 << 16, room // max(1, each)))


_KEPT: weakref.WeakKeyDictionary[Task, int] = weakref.WeakKeyDictionary()


def _activations(task: Task) -> int:
    """Bytes that autograd keeps for one sample."""
    x, buffers = task.start()
    gradients = Gradients(task)
    keys = torch.zeros(1, 2, dtype=torch.int64, device=task.device)

    def kept(n: int) -> int:
        total = 0

        def count(t: Tensor) -> Tensor:
            nonlocal total
            total += t.numel() * t.element_size()
            return t

        rows = torch.arange(n, device=task.device) % len(task.data[0])
        block = load(task, task.data, rows)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
            gradients.plain(x, block, buffers, keys)
        return total

    return max(0, kept(4) - kept(2)) // 2


@dataclass(frozen=True)
class Needs:
    """The memory that a run needs, in bytes.

    >>> room = 140 * 10**9
    >>> print(Needs("cuda:0", room, data=3 * 10**8, server=10**8, client=10**7, work=10**9))
    memory: 1.4 GB on cuda:0 (data 0.3, server 0.1, clients at work 1.0)
    """

    device: str
    total: int
    """Memory of the device."""
    data: int
    """Training and test data on the device."""
    server: int
    """The server's state."""
    client: int
    """One working client."""
    work: int
    """All clients that run at the same time: vectors, samples and activations of a step."""
    host: int = 0
    """Data kept in host memory, if the device is not the host."""
    memories: int = 0
    """What clients keep between rounds, at most: one row per client that has taken part. (Residuals of
    compressors with error feedback come on top.)"""
    tier: Tier = "device"
    """Where it is stored."""

    @property
    def matters(self) -> bool:
        """Whether it is more than a tenth of the device's memory.

        >>> Needs("cpu", 10**10, data=10**6, server=0, client=0, work=0, memories=2 * 10**9).matters
        True
        """
        return max(self.data + self.server + self.work, self.host, self.memories) > self.total / 10

    def __str__(self) -> str:
        now = self.data + self.server + self.work
        unit = _unit(now)[0]
        parts = f"data {self.data / unit:.1f}, server {self.server / unit:.1f}"
        text = f"memory: {_shown(now)} on {self.device} ({parts}, clients at work {self.work / unit:.1f})"
        if self.host:
            text += f", data of {_shown(self.host)} on the host"
        if self.memories:
            where = {"device": self.device, "host": "the host", "disk": "disk"}[self.tier]
            text += f", client memories up to {_shown(self.memories)} on {where}"
        return text

    def check(self) -> None:
        """Raise an error if the run cannot fit; warn if a disk may fill up as clients take part."""
        least = self.data + self.server + self.client
        if least > self.total:
            raise FairleadError(
                f"the run needs {_shown(least)} on {self.device} even with one client at a time, but it "
                f"has {_shown(self.total)}: use smaller batches or a smaller model, or keep the data on the host "
                'with Task(keep="host")'
            )
        room = {"device": self.total - least, "host": installed()}.get(self.tier)
        if room is not None and self.memories > room:
            raise FairleadError(
                f"what clients keep needs up to {_shown(self.memories)}, but there is room for {_shown(room)}: "
                'use fl.Simulate(memories="disk")'
            )
        free = shutil.disk_usage(place()).free if self.tier == "disk" else self.memories
        if self.memories > free:
            warnings.warn(
                f"what clients keep can grow to {_shown(self.memories)}, but {place()} has {_shown(free)} free: set "
                "TMPDIR to a folder with more space",
                stacklevel=2,
            )


def needed(session: Session, room: int, batch: int, cohort: int) -> Needs:
    """What a run needs with this batch size and cohort size, if `room` clients run at the same time."""
    task, store = session.task, session.states.store
    each = bytes_per_client(task, batch)
    held = 0 if task.mapped else _bytes(task.data)
    here = task.store == task.device
    rows = cohort * task.dim * task.dtype.itemsize if session.method.sees_each() else 0
    return Needs(
        device=str(task.device),
        total=total_memory(task.device),
        data=held * here + _bytes(task.test or ()) + _bytes(task.valid or ()),
        server=session.server_bytes + rows,
        client=each,
        work=each * min(max(1, room), cohort),
        host=held * (not here),
        memories=0 if store is None else store.row * session.keep.count,
        tier="device" if store is None else store.tier,
    )


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _unit(n: int) -> tuple[float, str]:
    return next((u, name) for u, name in UNITS if n >= u or name == "kB")


def _shown(n: int) -> str:
    unit, name = _unit(n)
    return f"{n / unit:.1f} {name}"


UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
