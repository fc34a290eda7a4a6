"""How to run: which clients fit in memory together, and whether vmap or one by one is faster.

The measurement takes a few local steps on the task's own shapes. Its result is kept for the
process and in a small file in the user's cache, so that equal runs choose equally.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.algorithm import Client, Upload
from fairlead.data.batches import Draw
from fairlead.task import Task

if TYPE_CHECKING:
    from fairlead.engine.simulate import Session

SMALL = 1 << 20  # multiplications a step
_KNOWN: dict[str, dict[str, float]] = {}


class _Moved(Upload):
    y: Tensor


def _two_steps(client: Client[Any], x: Tensor) -> _Moved:
    """What is timed: the first two local steps of SGD, from a shared and from an own point."""
    y = x
    for k, step in enumerate(client.steps(1e-3)):
        if k < 2:
            y = y - step.lr * step.grad(y)
    return _Moved(y=y)


def is_small(task: Task, clients: int, draw: Draw) -> bool:
    """Whether a step is so little work that threads and measurements only cost time."""
    return task.dim * clients * draw.index.shape[-1] < SMALL


def unstackable(task: Task, draw: Draw) -> str:
    """Why a task cannot run as a matrix of clients, or an empty string."""
    if not task.stackable:
        return "its functions are given one a client"
    ragged = not (draw.count == draw.count.flat[0]).all() or len(np.unique(task.sizes)) > 1
    if task.mixes_samples and ragged:
        return "BatchNorm mixes the samples of a batch, and these clients' batches differ in size"
    return ""


def clients_that_fit(task: Task, draw: Draw, memory: int | None) -> int:
    """Clients whose vectors and activations fit the memory budget together."""
    if memory is None:
        if task.device.type == "cuda":
            memory = int(0.6 * torch.cuda.mem_get_info(task.device)[0])
        else:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // 4
    item = torch.empty((), dtype=task.dtype).element_size()
    batch = draw.index.shape[-1]
    sample = sum(t[0].numel() * t.element_size() for t in task.data)
    each = 10 * task.dim * item + batch * (2 * sample + 3 * _activations(task))
    return max(1, memory // max(each, 1))


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
        block = tuple(t.index_select(0, rows) for t in task.data)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
            task.grad_block(x, block, buffers)
        return total

    return max(0, kept(4) - kept(2)) // 2


def mode(
    session: Session, ids: NDArray[np.int64], draw: Draw
) -> tuple[Literal["vmap", "loop"], str]:
    """The faster way to run, and a sentence that says why."""
    task = session.task
    why = unstackable(task, draw)
    if why:
        return "loop", f"loop: {why}"
    if is_small(task, len(ids), draw):
        return "vmap", "vmap: a small problem"
    first = draw.index[:, :2], draw.count[:, :2]
    seconds = _remembered(_key(session, draw), lambda: _measure(session, ids, Draw(*first)))
    best: Literal["vmap", "loop"] = "vmap" if seconds["vmap"] <= seconds["loop"] else "loop"
    shown = ", ".join(f"{name} {value * 1e3:.3g} ms" for name, value in seconds.items())
    return best, f"{best}: measured for two local steps of the cohort: {shown}"


def _measure(session: Session, ids: NDArray[np.int64], draw: Draw) -> dict[str, float]:
    x = session.task.start(session.seed)[0]
    run = {"vmap": session.stacked, "loop": session.one_by_one}
    store, session.store = session.store, None
    seconds = {"vmap": float("inf"), "loop": float("inf")}
    try:
        for _ in range(3):  # side by side, so that a busy moment does not hit one alone
            for name, execute in run.items():
                with suppress(RuntimeError):  # an operator that vmap does not know
                    seconds[name] = min(seconds[name], _time(session, execute, x, ids, draw))
    finally:
        session.store = store
    return seconds


def _time(
    session: Session, execute: Callable[..., Any], x: Tensor, ids: NDArray[np.int64], draw: Draw
) -> float:
    cuda = session.task.device.type == "cuda"
    begin = time.perf_counter()
    for _ in execute(_two_steps, {"x": x}, 0, ids, draw):
        pass
    if cuda:
        torch.cuda.synchronize(session.task.device)
    return time.perf_counter() - begin


def _key(session: Session, draw: Draw) -> str:
    task = session.task
    device = torch.cuda.get_device_name(task.device) if task.device.type == "cuda" else "cpu"
    shapes = [tuple(t.shape[1:]) for t in task.data]
    parts = (repr(task.model), task.dim, tuple(draw.index.shape), shapes, str(task.dtype), device,
             session.threads, torch.__version__)  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _remembered(key: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    home = os.environ.get("FAIRLEAD_CACHE") or os.environ.get("XDG_CACHE_HOME", "~/.cache")
    file = Path(home).expanduser() / "fairlead" / "engine.json"
    if key not in _KNOWN:
        with suppress(OSError, ValueError):
            _KNOWN.update({k: v for k, v in json.loads(file.read_text()).items() if "vmap" in v})
    if key not in _KNOWN:
        _KNOWN[key] = measure()
        with suppress(OSError):  # a cache that cannot be written is no reason to stop
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(_KNOWN))
            part.replace(file)
    return _KNOWN[key]
