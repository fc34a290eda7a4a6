"""Whole rounds as CUDA graphs: a round's operators are captured once and played again.

A round is first run as it is, over fixed inputs (see `fairlead.engine.recorded`), and captured when its
shape comes again. A method that asks for something a recording cannot know is run as it is, and `told`
says why.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fairlead.core.method import Algorithm, State
from fairlead.engine.autotune import unstackable
from fairlead.engine.graph_inputs import Inputs, padded, padded_size
from fairlead.engine.recorded import Take

if TYPE_CHECKING:
    from fairlead.engine.cohort import SimulatedCohort
    from fairlead.engine.simulate import Session

SHAPES = 16
"""How many shapes of rounds are kept; a run with more plays those it has met least lately anew."""
MOST_STEPS = 1024
"""Local steps up to which a round is recorded."""


def captures(device: torch.device) -> bool:
    """Whether rounds on a device can be captured."""
    return device.type == "cuda"


def captured(perform: Callable[[], None], pool: Any = None) -> Callable[[], None]:
    """What `perform` does, as a CUDA graph to play."""
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    gc.disable()  # graphs of earlier runs that are let go meanwhile would break this one
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            perform()
    finally:
        if collects:
            gc.enable()
    return graph.replay


class Graphs:
    """The recordings of a run."""

    def __init__(self, session: Session, after: int = 1) -> None:
        self.session, self.after = session, after
        self.takes: OrderedDict[Any, Take] = OrderedDict()
        self.looks: dict[Any, _Look] = {}
        self.why = ""
        uniform = np.ptp(session.weights) == 0
        self.even_weights = bool(uniform)
        self._pool: Any = None

    def play(self, algorithm: Algorithm[Any, Any], state: State, at: SimulatedCohort) -> State:
        """A round."""
        held = state.tensors()
        why = self.hinders(held, at)
        if why:
            self.why = why
            return algorithm.round(state, at)
        at.draw = padded(at.draw)
        shape, even = at.draw.index.shape, at.draw.even
        fields = tuple((name, t.shape) for name, t in held.items())
        size = padded_size(self.session.task, at.ids)
        key = (shape, even, at.first, fields, size, self.session.measure_drift)
        take = self.takes.get(key)
        if take is None:
            inputs = Inputs(self.session, state, at, even)
            take = self.takes[key] = Take(algorithm, inputs, self.even_weights)
            take.once = at.first
            if len(self.takes) > SHAPES:
                self.takes.popitem(last=False)
        self.takes.move_to_end(key)
        take.inputs.fill(state, at)
        take.play(self.record, self.after)
        self.why = take.why
        return take.leave(at)

    def hinders(self, held: dict[str, Tensor], at: SimulatedCohort) -> str:
        """Why a round cannot be recorded."""
        session, task = self.session, self.session.task
        if task.ahead:
            return "the data do not lie on the device"
        if session.room < len(at.ids):
            return f"memory has room for {session.room} of {len(at.ids)} clients at a time"
        why = unstackable(task, at.draw)
        if why:
            return why
        if at.draw.index.shape[1] > MOST_STEPS:
            return f"a round has more than {MOST_STEPS} steps"
        if any(t.device.type != task.device.type for t in held.values()):
            return "the server's optimizer keeps numbers on the host: give it capturable=True"
        return ""

    def record(self, perform: Callable[[], None]) -> Callable[[], None]:
        """Capture what `perform` does; all recordings of a run share their memory."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with _no_waiting():
            perform()
        return captured(perform, self._pool)

    def measure(self, x: Tensor, buffers: Tensor, measured: Measured) -> dict[str, float]:
        """An evaluation, as a recording of its own."""
        key = (x.shape, buffers.shape)
        if key not in self.looks:
            self.looks[key] = _Look(x, buffers, measured)
        return self.looks[key].of(x, buffers, self.record)

    @property
    def told(self) -> str:
        """What to say about it."""
        recorded = sum(take.replay is not None for take in self.takes.values())
        if self.why:
            return f"not captured: {self.why}"
        return (
            f"rounds captured as {recorded} CUDA graph{'s' * (recorded != 1)}" if recorded else ""
        )


Measured = Callable[[Tensor, Tensor], dict[str, Tensor]]


class _Look:
    """An evaluation over tensors of its own."""

    def __init__(self, x: Tensor, buffers: Tensor, measured: Measured) -> None:
        self.x, self.buffers, self.measured = x.clone(), buffers.clone(), measured
        self.replay: Callable[[], None] | None = None
        self.seen, self.fails = 0, False

    def perform(self) -> None:
        found = self.measured(self.x, self.buffers)
        self.names = list(found)
        self.values = torch.stack(list(found.values())) if found else self.x[:0]

    def of(self, x: Tensor, buffers: Tensor, record: Any) -> dict[str, float]:
        self.x.copy_(x)
        self.buffers.copy_(buffers)
        if self.seen == 1 and self.names and not self.fails:
            try:
                self.replay = record(self.perform)
            except RuntimeError:
                self.fails = True  # it waits for values: then it is computed as it is
        self.seen += 1
        (self.replay or self.perform)()
        return dict(zip(self.names, self.values.tolist(), strict=True))


@contextlib.contextmanager
def _no_waiting() -> Iterator[None]:
    """Have operators that wait for the device raise instead: they cannot be captured."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
