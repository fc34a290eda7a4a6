"""How to run: as a matrix of clients, one by one, or one a core, whichever is faster.

The measurement takes a few local steps on the task's own shapes. Its result is kept for the
process and in a small file in the user's cache, so that equal runs choose equally.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Client, Upload
from fairlead.data.batches import Draw
from fairlead.task.task import Task

if TYPE_CHECKING:
    from fairlead.engine.simulate import Session

STEPS = 6  # local steps that are timed: enough for what a client costs at its start and end
GAIN = 0.9  # of another way's time that threads must stay below
SMALL = 1 << 20  # multiplications a step
THREADS = "loop with a client a core"
_KNOWN: dict[str, dict[str, float]] = {}


class _Moved(Upload):
    y: Tensor


def _some_steps(client: Client[Any], x: Tensor) -> _Moved:
    """What is timed: the first local steps of SGD, from a shared point and from own ones."""
    y = x
    for k, step in enumerate(client.steps(1e-3)):
        if k < STEPS:
            y = y - step.lr * step.grad(y)
    return _Moved(y=y)


def is_small(task: Task, clients: int, draw: Draw) -> bool:
    """Whether a step is so little work that threads and measurements only cost time."""
    return task.dim * clients * draw.index.shape[-1] < SMALL


def unstackable(task: Task, draw: Draw) -> str:
    """Why a task cannot run as a matrix of clients, or an empty string."""
    if not task.stackable:
        return "its functions are given one a client"
    if task.mixes_samples and (len(np.unique(draw.count)) > 1 or not task.split.even):
        return "BatchNorm mixes the samples of a batch, and these clients' batches differ in size"
    return ""


@dataclass(frozen=True)
class Choice:
    """How to run, and why."""

    mode: Literal["vmap", "loop"]
    threads: int
    why: str


def choose(session: Session, ids: NDArray[np.int64], draw: Draw) -> Choice:
    """The fastest way to run a cohort like this one."""
    task = session.task
    why = unstackable(task, draw)
    if why:
        return Choice("loop", session.threads, f"loop: {why}")
    first = Draw(draw.index[:, :STEPS], draw.count[:, :STEPS])
    if is_small(task, len(ids), draw):
        try:
            _time(session, session.stacked, task.start(session.seed)[0], ids, first)
        except RuntimeError as error:
            sentence = str(error).split(". ")[0].split("\n")[0]
            return Choice("loop", 1, f"loop: vmap cannot run the model: {sentence}")
        return Choice("vmap", 1, "vmap: a small problem")
    seconds = remembered(key_of(session, draw), lambda: _measure(session, ids, first))
    # threads hold each other up when much of the work is Python's, which few steps do not always show
    best = min(seconds, key=lambda name: seconds[name] / (GAIN if name == THREADS else 1))
    shown = ", ".join(f"{name} {value * 1e3:.3g} ms" for name, value in seconds.items())
    laid = ", channels last" if task.form.last and best != "vmap" else ""
    why = f"{best}{laid}: measured for the first local steps of the cohort: {shown}"
    return Choice(
        "vmap" if best == "vmap" else "loop", session.threads if best == THREADS else 1, why
    )


def _measure(session: Session, ids: NDArray[np.int64], draw: Draw) -> dict[str, float]:
    """The usual times of the candidates, taken in turns so that a busy moment hits none alone."""
    x = session.task.start(session.seed)[0]
    ways: dict[str, tuple[Callable[..., Any], int]] = {
        "vmap": (session.stacked, session.threads),
        "loop": (session.one_by_one, 1),
    }
    if session.threads > 1:
        ways[THREADS] = (session.one_by_one, session.threads)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    threads = session.threads
    begin = time.perf_counter()
    try:
        for turn in range(8):  # enough for recorded gradients to come into play
            for name, (execute, session.threads) in ways.items():
                with suppress(RuntimeError):  # an operator that vmap does not know
                    taken[name].append(_time(session, execute, x, ids, draw))
            begin = time.perf_counter() if turn == 0 else begin
            if turn > 1 and time.perf_counter() - begin > 1.0:
                break
    finally:
        session.threads = threads
    # the first one warms up
    return {name: statistics.median(t[1:]) if t[1:] else math.inf for name, t in taken.items()}


def _time(
    session: Session, execute: Callable[..., Any], x: Tensor, ids: NDArray[np.int64], draw: Draw
) -> float:
    store, session.store = session.store, None  # a measurement touches no client's memory
    begin = time.perf_counter()
    try:
        for _ in execute(_some_steps, {"x": x}, 0, ids, draw):
            pass
    finally:
        session.store = store
    if session.task.device.type == "cuda":
        torch.cuda.synchronize(session.task.device)
    return time.perf_counter() - begin


def key_of(session: Session, draw: Draw) -> str:
    """What a measurement depends on."""
    task = session.task
    device = torch.cuda.get_device_name(task.device) if task.device.type == "cuda" else "cpu"
    shapes = [tuple(t.shape[1:]) for t in task.data]
    shape = session.whole or tuple(draw.index.shape)  # processes of one run ask alike
    parts = (STEPS, repr(task.model), task.dim, shape, shapes, str(task.dtype), device,
             session.threads, session.crowd, torch.__version__)  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _busy() -> bool:
    """Whether other work keeps this machine's cores from telling the truth."""
    try:
        return os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)
    except (AttributeError, OSError):
        return False


def _file() -> Path:
    home = os.environ.get("FAIRLEAD_CACHE") or os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(home).expanduser() / "fairlead" / "engine.json"


def known(key: str) -> dict[str, float] | None:
    """A measurement, if it was made before."""
    if key not in _KNOWN:
        with suppress(OSError, ValueError):
            _KNOWN.update({k: v for k, v in json.loads(_file().read_text()).items() if v})
    return _KNOWN.get(key)


def remembered(key: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """A measurement, made once and kept for the process and in the user's cache."""
    if known(key) is None:
        _KNOWN[key] = measure()
        if _busy():
            return _KNOWN[key]  # good for now, but not for the file
        file = _file()
        with suppress(OSError):  # a cache that cannot be written is no reason to stop
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(_KNOWN))
            part.replace(file)
    return _KNOWN[key]
