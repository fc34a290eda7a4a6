"""Which form of the gradients is fastest: on a GPU inside a captured graph, on a CPU for one client;
measured once a shape."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.data.batches import Draw
from fairlead.engine.autotune import is_small, key_of, remembered, unstackable
from fairlead.engine.cuda_graph import captured
from fairlead.gradients.oracle import Form, forms_of
from fairlead.task.task import Task

if TYPE_CHECKING:
    from fairlead.engine.simulate import Session

COMPILING = 60.0
"""Seconds that `torch.compile` may take."""
GRADIENTS, LAST = 5, 0.97
"""How many gradients are timed to see whether channels go last, and what they must gain by it."""
HOPED = 0.3
"""The part of a gradient's time that it is hoped to save."""


def choose_form(session: Session, ids: NDArray[np.int64], draw: Draw) -> tuple[Form, str] | None:
    """The fastest form for a cohort like this one, and why; None if rounds cannot be captured."""
    task, setting = session.task, session.setting
    if session.form is not None:
        return session.form, ""
    if task.ahead or session.room < len(ids) or unstackable(task, draw):
        return None
    half = setting.precision == "bfloat16"
    plain = forms_of(task, half)
    asked = setting.compile in (True, "tuned")
    if is_small(task, len(ids), draw) or task.device.type != "cuda":
        plain = plain[:1]
    if task.device.type != "cuda":
        return Form("vmap", half, asked), ""
    key = f"form {key_of(session, draw)} {setting.precision}"
    found = remembered(key, lambda: _measured(session, ids, draw, plain))
    # what is best as it is is also compiled, but streams are not
    made = min((f for f in plain if f.way != "each"), key=lambda f: found[str(f)])
    made = dataclasses.replace(made, compiled=True)
    steps = session.rounds * draw.index.shape[1]
    long = setting.compile == "auto" and HOPED * min(found.values()) * steps > COMPILING
    if long and task.recordable and _has_compiler():
        found |= remembered(f"{key} compiled", lambda: _measured(session, ids, draw, [made]))
    best = min(found, key=lambda name: found[name])
    if math.isinf(found[best]):
        return None
    shown = ", ".join(f"{name} {value * 1e3:.3g} ms" for name, value in found.items())
    why = f"measured for one gradient of the cohort: {shown}"
    if asked and task.recordable:
        return made, f"{made}, as asked for; {why}"
    known = {str(form): form for form in (*plain, made)}
    return known[best], f"{best}: {why}"


def laid_out(session: Session, ids: NDArray[np.int64], draw: Draw) -> Task:
    """The task with images laid out as one client's gradient on a CPU is faster with."""
    task = session.task
    images = task.data[0].dim() == 4 and task.inputs == 1
    convolves = any(isinstance(m, torch.nn.Conv2d) for m in task.model.modules())
    if task.device.type != "cpu" or not (images and convolves):
        return task
    if session.form is not None:
        return task.formed(dataclasses.replace(task.form, last=session.form.last))
    if session.mode == "debug" or is_small(task, len(ids), draw):
        return task
    x, buffers = task.start(session.seed)
    owner, index = torch.from_numpy(ids[:1]).to(task.store), draw.index[:1, 0].to(task.store)
    block = tuple(t[0] for t in task.samples(owner, index))

    other = task.formed(dataclasses.replace(task.form, last=True))

    def measured() -> dict[str, float]:
        best = {"plain": math.inf, "last": math.inf}
        for turn in range(GRADIENTS):
            for name, one in (("plain", task), ("last", other)):
                begin = time.perf_counter()
                one.gradient(x, block, buffers)
                if turn:
                    best[name] = min(best[name], time.perf_counter() - begin)
        return best

    found = remembered(f"images {key_of(session, draw)}", measured)
    return other if found["last"] < LAST * found["plain"] else task


def _measured(
    session: Session, ids: NDArray[np.int64], draw: Draw, forms: list[Form]
) -> dict[str, float]:
    """Seconds of a captured gradient in each form."""
    task, s = session.task, len(ids)
    x, buffers = task.start(session.seed)
    points, rows = x.expand(s, -1).clone(), buffers.expand(s, -1).clone()
    owners = torch.from_numpy(ids).to(task.store)
    even = bool((draw.count[:, 0] == draw.index.shape[2]).all())
    block = task.samples(owners, draw.index[:, 0].to(task.store))
    weights = None if even else torch.full(block[0].shape[:2], 1 / block[0].shape[1]).to(x)
    found: dict[str, float] = {}
    for form in forms:
        found[str(form)] = float("inf")
        with suppress(RuntimeError, ImportError):  # an operator that a form does not know
            own = task.formed(form)
            found[str(form)] = _seconds(
                lambda own=own: own.grads(points, block, weights, rows), task
            )
    return found


def _seconds(gradient: Callable[[], tuple[Tensor, Tensor]], task: Task) -> float:
    kept: list[Any] = []

    def run() -> None:
        kept[:] = gradient()

    with torch.no_grad():
        for _ in range(task.record_after + 1):
            run()
        replay = captured(run)
        times = []
        for _ in range(7):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def _has_compiler() -> bool:
    """Whether inductor can make kernels here."""
    return find_spec("triton") is not None
