"""Memory: how many clients fit together, and keeping what was freed for the next step."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor

from fairlead.data.batches import Draw
from fairlead.task import Task

REUSED = 32 << 20
"""The largest block in bytes that the C library can keep for reuse. A larger one is mapped anew
each time, and the page faults of its first use cost more than most operators."""


@cache
def keep_freed_memory() -> None:
    """Tell the C library to reuse freed blocks instead of giving them back at every operator."""
    with suppress(OSError, AttributeError):  # other systems do without
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, REUSED)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def clients_that_fit(task: Task, draw: Draw, memory: int | None) -> int:
    """Clients whose vectors and activations fit the memory budget together."""
    item = torch.empty((), dtype=task.dtype).element_size()
    vector = task.dim * item
    batch = draw.index.shape[-1]
    sample = sum(t[0].numel() * t.element_size() for t in task.data)
    each = 10 * vector + batch * (2 * sample + 3 * _activations(task))
    if memory is not None:
        return max(1, memory // each)
    # of all memory, not of what is free just now: chunks decide the rounding of sums
    if task.device.type == "cuda":
        return max(1, torch.cuda.get_device_properties(task.device).total_memory // 2 // each)
    return max(1, min(_installed() // 4 // each, REUSED // vector))


def _installed() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # systems that do not tell
        return 8 << 30


def _activations(task: Task) -> int:
    """Bytes that autograd keeps for one sample."""
    x, buffers = task.start()

    def kept(n: int) -> int:
        total = 0

        def count(t: Tensor) -> Tensor:
            nonlocal total
            total += t.numel() * t.element_size()
            return t

        rows = torch.arange(n, device=task.device) % len(task.data[0])
        block = task.prepared(task.taken(task.data, rows))
        with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
            task.grad_block(x, block, buffers)
        return total

    return max(0, kept(4) - kept(2)) // 2
