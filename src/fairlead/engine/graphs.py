"""The captured rounds and evaluations of a run, and when they can be used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairlead.core.method import is_own
from fairlead.core.records import State
from fairlead.engine.captured_round import CapturedRound
from fairlead.engine.cuda_graph import captured, no_waiting
from fairlead.engine.exchange import RoundCohort
from fairlead.engine.executors import unstackable
from fairlead.engine.graph_inputs import Inputs, padded, padded_size
from fairlead.engine.session import Session
from fairlead.task.evaluation import measured

SHAPES = 16
"""How many shapes of rounds are kept captured; a run with more captures the least recent ones again."""
MOST_STEPS = 1024
"""Local steps up to which a round is captured."""


class Graphs:
    """The captured rounds and evaluations of a run."""

    def __init__(self, session: Session, after: int = 1, tuned: bool = False) -> None:
        self.session, self.after, self.tuned = session, after, tuned
        self.takes: OrderedDict[Any, CapturedRound] = OrderedDict()
        self.evaluations: dict[Any, _Evaluation] = {}
        self.why = ""
        self._pool: Any = None

    def play(self, state: State, at: RoundCohort) -> State:
        """A round."""
        held, session = state.tensors(), self.session
        self.why = self.hindrance(held, at)
        if self.why or (at.first and not is_own(session.method)):
            return session.method.round(state, at)
        draw = padded(at.draw)
        fields = tuple((name, t.shape) for name, t in held.items())
        size = padded_size(session.task, at.ids)
        measures = tuple(measure.name for measure in session.measures)
        key = (draw.index.shape, draw.even, at.first, fields, size, measures)
        take = self.takes.get(key)
        if take is None:
            inputs = Inputs(session, state, at, draw)
            take = self.takes[key] = CapturedRound(session, inputs, self.tuned)
            if len(self.takes) > SHAPES:
                self.takes.popitem(last=False)
        self.takes.move_to_end(key)
        take.inputs.fill(state, at, draw)
        take.play(self.record, self.after)
        self.why = take.why
        return take.leave(at, draw)

    def hindrance(self, held: dict[str, Tensor], at: RoundCohort) -> str:
        """Why a round cannot be captured."""
        task, execution = self.session.task, self.session.execution
        if task.ahead:
            return "the data are not on the device"
        if execution is not None and execution.room < len(at.ids):
            return f"memory has room for {execution.room} of {len(at.ids)} clients at a time"
        why = unstackable(task, at.draw)
        if why:
            return why
        if at.draw.index.shape[1] > MOST_STEPS:
            return f"a round has more than {MOST_STEPS} steps"
        if any(t.device.type != task.device.type for t in held.values()):
            return "the server's optimizer keeps numbers on the host: give it capturable=True"
        return ""

    def record(self, perform: Callable[[], None]) -> Callable[[], None]:
        """Capture what `perform` does; all captures of a run share their memory."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with no_waiting():
            perform()
        return captured(perform, self._pool)

    def measure(self, x: Tensor, buffers: Tensor, how: tuple[Any, bool]) -> dict[str, float]:
        """An evaluation, captured too."""
        key = (x.shape, buffers.shape)
        if key not in self.evaluations:
            self.evaluations[key] = _Evaluation(self.session, x, buffers, how)
        return self.evaluations[key].of(x, buffers, self.record)

    @property
    def remark(self) -> str:
        """What to report about it."""
        count = sum(take.replay is not None for take in self.takes.values())
        if self.why:
            return f"not captured: {self.why}"
        return f"rounds captured as {count} CUDA graph{'s' * (count != 1)}" if count else ""


class _Evaluation:
    """An evaluation over its own tensors."""

    def __init__(self, session: Session, x: Tensor, buffers: Tensor, how: tuple[Any, bool]) -> None:
        self.session, self.how = session, how
        self.x, self.buffers = x.clone(), buffers.clone()
        self.replay: Callable[[], None] | None = None
        self.seen, self.fails = 0, False

    def perform(self) -> None:
        found = measured(self.session.task, self.x, self.buffers, *self.how)
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
