"""Exchanges of several runs, captured as CUDA graphs and replayed.

The clients of all runs are the rows of one matrix, as in `many_runs`; what differs between runs, such as seeds, step
sizes and what their servers send, is in inputs. When runs end, the places of some stay filled with others', so that
few sizes are captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Algorithm
from fairlead.data.batches import Draw
from fairlead.engine.api import Answer, Request
from fairlead.engine.captured import CapturedExecutor, Take, Takes, hindrance, key_of, room_of
from fairlead.engine.first_round import Compared
from fairlead.engine.graph_inputs import Inputs, rounded_up
from fairlead.engine.many_runs import (
    Part,
    Rates,
    RunsExecutor,
    RunWeights,
    broadcasts,
    counts,
    drawn_large,
    more_steps,
    rates_of,
    seeds_of,
    spans,
    split,
)
from fairlead.engine.session import Session
from fairlead.rng import Word
from fairlead.schedules import Rate

_torch: Any = torch  # copying many tensors at once has no public API


def runs_executor(session: Session) -> RunsExecutor:
    """What executes several runs like this one at once."""
    own = session.executor
    own = own.executor if isinstance(own, Compared) else own
    return CapturedRuns(own) if isinstance(own, CapturedExecutor) else RunsExecutor()


class CapturedRuns(RunsExecutor):
    """Replays captured exchanges of several runs. like: the executor of a single run."""

    def __init__(self, like: CapturedExecutor) -> None:
        self.like, self.takes = like, Takes[RunsTake]()

    @property
    def remark(self) -> str:
        return self.takes.remark

    def execute(self, parts: Sequence[Part], lead: Algorithm[Any, Any]) -> list[Answer]:
        first = parts[0].request
        if first.measures or first.measuring:
            return super().execute(parts, lead)
        take = self._take(parts, lead)
        if isinstance(take, str):
            self.takes.why = take
            return super().execute(parts, lead)
        take.play(take.inputs.request.draw.longest, self.like.after)
        self.takes.why = take.why
        return take.answers(parts)

    def _take(self, parts: Sequence[Part], lead: Algorithm[Any, Any]) -> RunsTake | str:
        """What is captured of exchanges of this shape, its inputs filled; or why nothing is."""
        first = parts[0]
        execution = first.session.execution
        room = sum(counts(parts)) if execution is None else execution.room
        seats = seated(parts, room)
        whole = together(seats)
        why = hindrance(first.session, len(whole.clients), whole.draw)
        if why:
            return why

        def make() -> RunsTake:
            inputs = RunsInputs(first.session, whole, *room_of(whole))
            inputs.fill_all(seats, parts, whole)
            return RunsTake(inputs, lead.program(whole.program), self.like.tuned)

        key = *key_of(first.session, whole), len(seats), isinstance(_rate(lead), Rates)
        take = self.takes.of(key, whole.draw.longest, make)
        if isinstance(take, RunsTake):
            take.inputs.fill_all(seats, parts, whole)
        return take


def _rate(lead: Algorithm[Any, Any]) -> Any:
    return lead.rates().get("lr")


def seated(parts: Sequence[Part], room: int) -> list[Part]:
    """The runs with as many clients each, and the last one again in places that are left, so that few sizes are
    captured: what repeated clients and runs compute is not used. At most `room` clients, if that is possible."""
    clients = count = max(counts(parts))
    if len(set(counts(parts))) > 1:
        clients = min(rounded_up(count), max(count, room // len(parts)))
    even = [_repeating(part, clients) for part in parts]
    most = max(len(parts), room // clients)
    return [*even, *[even[-1]] * (min(most, size_for(len(parts))) - len(parts))]


def _repeating(part: Part, count: int) -> Part:
    """A run with more clients: the last one several times, without weight."""
    request, more = part.request, count - part.count
    if not more:
        return part
    draw = request.draw
    index = torch.cat([draw.index, draw.index[-1:].expand(more, -1, -1)])
    made = Draw(index, np.concatenate([draw.count, np.repeat(draw.count[-1:], more, 0)]))
    rows = np.concatenate([request.clients, np.repeat(request.clients[-1:], more)])
    weights = torch.nn.functional.pad(request.weights, (0, more))
    asked = replace(request, clients=rows, weights=weights, draw_of=lambda ids: made)
    return Part(part.session, asked)


def size_for(runs: int) -> int:
    """For how many runs a capture has places: at most half as many again.

    >>> [size_for(n) for n in (1, 2, 3, 5, 8, 15, 17, 21)]
    [1, 2, 3, 6, 8, 16, 24, 24]
    """
    whole = 1 << (runs - 1).bit_length()
    return 3 * whole // 4 if whole >= 4 and runs <= 3 * whole // 4 else whole


def together(parts: Sequence[Part]) -> Request:
    """One request for the clients of all runs. Of their batches it has the sizes; `RunsInputs` reads them where
    they are."""
    draws = [part.request.draw for part in parts]
    steps = max(draw.count.shape[1] for draw in draws)
    width = max(draw.index.shape[2] for draw in draws)
    count = np.concatenate([more_steps(draw.count, steps) for draw in draws])
    draw = Draw(torch.empty((len(count), steps, width), device="meta"), count)
    rows = np.concatenate([part.request.clients for part in parts])
    return replace(parts[0].request, clients=rows, draw_of=lambda ids: draw, measures=())


class RunsInputs(Inputs):
    """The inputs of an exchange of several runs: what servers send has a row per run."""

    parts: Sequence[Part] = ()
    own: Sequence[int] = ()
    """How many of the clients in each place are of that run, and not repeated."""
    _clients: Sequence[Any] = ()
    _shapes: Sequence[Any] = ()

    @property
    def broadcast(self) -> dict[str, Tensor | float]:
        own = super().broadcast
        return {n: self._each(v) if v.dim() else v for n, v in own.items() if isinstance(v, Tensor)}

    @property
    def buffers(self) -> Tensor:
        return self._each(self.tensors["buffers"])

    def _each(self, rows: Tensor) -> Tensor:
        """A row per client, from one per run."""
        return rows.index_select(0, self.tensors["run"])

    @property
    def seed(self) -> Word:
        return self.tensors["seeds"]

    @property
    def weights(self) -> Any:
        return RunWeights(self.tensors["weights"], counts(self.parts))

    def rates(self, lr: Rate, steps: int) -> NDArray[np.float64]:
        return rates_of(self.parts, Rates(self._each_rate(lr)), steps)

    def fixed_rates(self, lr: Rate) -> Any:
        each = self._each_rate(lr)
        return each if all(isinstance(rate, int | float) for rate in each) else None

    def _each_rate(self, lr: Rate) -> list[Rate]:
        """The step size of each of the present runs."""
        several = isinstance(lr, Rates)
        return [part.session.method.rates()["lr"] if several else lr for part in self.parts]

    def drawn_large(self, size: int) -> Draw:
        return drawn_large(self.parts, size)

    def read_residual(self, field: str, like: Tensor) -> Tensor:
        pairs = ((p.session.residuals, p.request.clients) for p in self.parts)
        return torch.cat([residuals.read(field, ids, like) for residuals, ids in pairs])

    # -- filling ----------------------------------------------------------------------------------

    def fill_all(self, parts: Sequence[Part], runs: Sequence[Part], whole: Request) -> None:
        """Fill in what the next replay reads. runs: without what is repeated."""
        self.parts, self.request = parts, whole
        self.own = [*counts(runs), *[counts(runs)[-1]] * (len(parts) - len(runs))]
        task, sent = self.session.task, broadcasts(parts)
        if not self.tensors:
            self._begin_all()
        self._read_states()
        into: list[Tensor] = []
        values: list[Tensor] = []
        for name, each in sent.items():
            if isinstance(each[0], Tensor):
                into += self.tensors[f"sent/{name}"].unbind(0)
                values += each
            else:
                self.put(f"sent/{name}", each[0], torch.float64)
        if task.buffer_dim:
            into += self.tensors["buffers"].unbind(0)
            values += [part.session.buffers for part in parts]
        shapes = [part.request.draw.index.shape for part in parts]
        if shapes != self._shapes:
            self._index.zero_()  # what is left of other clients may lie outside of these clients' data
            self._shapes = shapes
        clients = [part.request.clients for part in parts]
        same = len(clients) == len(self._clients)
        same = same and all(a is b for a, b in zip(clients, self._clients, strict=True))
        for part, span in spans(parts):
            index = part.request.draw.index
            into.append(self._index[span, : index.shape[1], : index.shape[2]])
            values.append(index)
            if not same:
                into.append(self.tensors["weights"][span])
                values.append(part.request.weights)
        for k in range(0, len(into), MOST):
            _torch._foreach_copy_(into[k : k + MOST], values[k : k + MOST], non_blocking=True)
        if not same:
            self._clients = clients
            self.put("ids", whole.clients, torch.int64)
            self.put("keys", np.concatenate([part.keys for part in parts]), torch.int64)
            self.put("sizes", task.sizes[whole.clients], torch.int64)
            self.put("seeds", seeds_of(parts), torch.int64)
        if not self.even:
            self.put("count", self._by_step(whole.draw.count), torch.int64)
        for fill in self._asked.values():
            fill()

    def _begin_all(self) -> None:
        session, parts = self.session, self.parts
        for name, each in broadcasts(parts).items():
            if isinstance(each[0], Tensor):
                self.copy(f"sent/{name}", torch.stack(each))
        self.copy("buffers", torch.stack([part.session.buffers for part in parts]))
        self.put("run", np.repeat(np.arange(len(parts)), counts(parts)), torch.int64)
        self.copy("weights", torch.cat([part.request.weights for part in parts]))
        if session.states.start is not None:
            clients = len(self.request.clients)
            start = session.states.start.tensors()
            self._keep({n: v.new_empty((clients, *v.shape)) for n, v in start.items()})
        self._make_room()

    def _read_states(self) -> None:
        for (part, span), own in zip(spans(self.parts), self.own, strict=True):
            store, last = part.session.states.store, span.start + own
            if store is None:
                continue
            ids = part.request.clients
            ids = ids if own == part.count else ids[:own]
            store.read_into(ids, {n: v[span.start : last] for n, v in self._rows.items()})
            if own < part.count:
                for v in self._rows.values():
                    v[last : span.stop] = v[last - 1]


MOST = 64
"""Tensors that are copied together."""


class RunsTake(Take):
    """One shape of an exchange of several runs."""

    inputs: RunsInputs

    def answers(self, parts: Sequence[Part]) -> list[Answer]:
        """The answers to each run's request, with what the newest replay left."""
        sizes, whole = self.session.task.sizes, self.inputs.request
        taken = [self.counted.total(part.request, sizes) for part in parts]
        begins = [span.start for _, span in spans(self.inputs.parts)]
        places = [(p, slice(b, b + p.count)) for p, b in zip(parts, begins, strict=False)]
        return split(self.answer(whole), places, taken)
