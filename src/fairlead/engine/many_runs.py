"""Several runs of one method at once: the clients of all their cohorts as one matrix.

The runs differ in seed and local step size. Each keeps its own session and its own server program,
which is a pure function: it is called until it asks for an exchange, the exchanges of all runs are
executed together, and it is called again with the answers so far. So a method needs nothing special.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.method import Algorithm, Broadcast, Cohort, Replies
from fairlead.core.records import State, Upload
from fairlead.data.batches import Draw
from fairlead.engine.api import Answer, Request, rows_of
from fairlead.engine.clients import Stacked
from fairlead.engine.exchange import DryCohort, RoundCohort, commit
from fairlead.engine.executors import unstackable
from fairlead.engine.session import Session
from fairlead.engine.state.outbox import Outbox
from fairlead.engine.work import Work, large_batch, step_keys
from fairlead.errors import FairleadError
from fairlead.probe.base import Sums
from fairlead.rng import Purpose, normal
from fairlead.schedules import Rate

U = TypeVar("U", bound=Upload)


class Rates:
    """The step sizes of several runs; a client program passes it to `client.steps`, and a server
    program gets those of the first run."""

    def __init__(self, each: Sequence[Rate]) -> None:
        self.each = each
        self.per = getattr(each[0], "per", "round")

    def __call__(self, k: int) -> float:
        first = self.each[0]
        return first(k) if callable(first) else first


class _Ask(BaseException):
    """A server program has reached an exchange whose answer is not there yet."""

    def __init__(self, program: Callable[..., Any], broadcast: dict[str, Broadcast]) -> None:
        super().__init__()
        self.program, self.broadcast = program, broadcast


class _Asking(Cohort):
    """A cohort that gives the answers so far, and then stops the program that asks."""

    def __init__(self, cohort: RoundCohort, answers: list[Replies[Any]]) -> None:
        self.cohort, self.round, self.first = cohort, cohort.round, cohort.first
        self.answers, self._noises = iter(answers), 0

    def noise(self, like: Tensor) -> Tensor:
        self._noises += 1
        return self.cohort.numbered_noise(self._noises, like)

    def run(self, program: Callable[..., Any], **broadcast: Broadcast) -> Replies[Any]:
        found = next(self.answers, None)
        if found is None:
            raise _Ask(program, broadcast)
        return replace(found, noise=self.noise)


@dataclass
class Seat:
    """One of the runs in a round."""

    state: State
    cohort: RoundCohort
    method: Algorithm[Any, Any]
    answers: list[Replies[Any]] = field(default_factory=list)
    after: State | None = None
    asked: _Ask | None = None

    @property
    def session(self) -> Session:
        return self.cohort.session

    def advance(self) -> None:
        """Run the server's program to its next exchange or to its end."""
        try:
            cohort = _Asking(self.cohort, self.answers)
            self.after, self.asked = self.method.round(self.state, cohort), None
        except _Ask as ask:
            self.asked = ask


def joinable(seats: Sequence[Seat]) -> bool:
    """Whether the runs give together what they give one by one: a dry round of each, both ways."""
    alone = []
    for seat in seats:
        c = seat.cohort
        dry = DryCohort(c.session, c.round, c.ids, c.sampled, c.executor, c.draw)
        alone.append(seat.method.round(seat.state, dry).x)
    try:
        joined_rounds(seats, dry=True)
    except (RuntimeError, FairleadError, AttributeError, IndexError, AssertionError):
        return False
    rough = 1e-3 if alone[0].dtype != torch.float64 else 1e-7
    for seat, x in zip(seats, alone, strict=True):
        assert seat.after is not None
        if not float((seat.after.x - x).abs().max()) <= rough * float(x.abs().max()):
            return False
    return True


def joined_rounds(seats: Sequence[Seat], dry: bool = False) -> None:
    """One round of every run; `seat.after` is the state it ends in. dry: nothing is committed."""
    first, task = seats[0], seats[0].session.task
    if unstackable(task, _padded([seat.cohort.draw for seat in seats])):
        for seat in seats:  # batches that differ between runs, in a model that mixes their samples
            seat.after = seat.method.round(seat.state, seat.cohort)
        return
    rates = [seat.method.rates().get("lr") for seat in seats]
    lead: Algorithm[Any, Any] = first.method
    if any(rate != rates[0] for rate in rates):
        lead = first.method.with_lr(Rates([r for r in rates if r is not None]))
    while True:
        for seat in seats:
            seat.advance()
        asking = [seat for seat in seats if seat.asked is not None]
        if not asking:
            return
        if len(asking) != len(seats):
            raise FairleadError("these runs do not exchange alike: train them one by one")
        _exchange(seats, lead, dry)


def _exchange(seats: Sequence[Seat], lead: Algorithm[Any, Any], dry: bool) -> None:
    """One exchange of every run, executed as one and committed one by one. `lead` has the step sizes of
    all runs."""
    requests = []
    for seat in seats:
        assert seat.asked is not None
        requests.append(seat.cohort.request(seat.asked.program, seat.asked.broadcast))
    for seat, answer in zip(seats, executed(seats, requests, lead), strict=True):
        assert seat.asked is not None
        cohort, broadcast = seat.cohort, seat.asked.broadcast
        if not dry:
            commit(cohort, answer, cohort.sent.bits(broadcast), broadcast)
        seat.answers.append(cohort.replies(answer))


def executed(
    seats: Sequence[Seat], requests: Sequence[Request], lead: Algorithm[Any, Any]
) -> list[Answer]:
    """The answers of several runs to one exchange of each."""
    counts = [len(request.clients) for request in requests]
    down: dict[str, Any] = {}
    for name, value in requests[0].broadcast.items():
        values = [request.broadcast[name] for request in requests]
        down[name] = value
        if isinstance(value, Tensor):
            pairs = zip(values, counts, strict=True)
            down[name] = torch.cat([rows_of(v, n) for v, n in pairs if isinstance(v, Tensor)])
        elif any(v != value for v in values):
            raise FairleadError("these runs broadcast different numbers: train them one by one")
    clients = Joined(seats, requests, down)
    returned = lead.program(requests[0].program)(clients, **down)
    return clients.split(returned, requests)


class _Part:
    """The clients of one run, of which an answer is made."""

    def __init__(self, clients: Joined, place: int) -> None:
        self.outbox = clients.outboxes[place]
        self.gradients = int(clients.counted_by_run[place])
        self.measured: Sums = clients.measured_by_run[place]
        after, span = clients.moved_buffers(), clients.spans[place]
        self.after = None if after is None else rows_of(after, clients.count)[span]

    @property
    def held(self) -> dict[str, Tensor]:
        return self.outbox.held

    def bits(self, upload: Upload) -> tuple[int | Tensor, float]:
        return self.outbox.bits(upload)

    def moved_buffers(self) -> Tensor | None:
        return self.after


class Joined(Stacked):
    """The clients of several runs at once."""

    def __init__(
        self, seats: Sequence[Seat], requests: Sequence[Request], down: Mapping[str, Any]
    ) -> None:
        ends = np.cumsum([len(request.clients) for request in requests])
        self.spans = [
            slice(int(e) - len(r.clients), int(e)) for e, r in zip(ends, requests, strict=True)
        ]
        self.count = int(ends[-1])
        sessions = [seat.session for seat in seats]
        self.works: list[Work] = [s.work(r.round) for s, r in zip(sessions, requests, strict=True)]
        self.outboxes: list[Outbox] = [
            s.outbox(r.round, r.exchange, r.clients)
            for s, r in zip(sessions, requests, strict=True)
        ]
        self.sent: list[Upload | None] = [None for _ in seats]
        self.counted_by_run = np.zeros(len(seats), np.int64)
        self.measured_by_run: list[Sums] = [{} for _ in seats]
        rows = np.concatenate([request.clients for request in requests])
        states = [s.states.read(r.clients) for s, r in zip(sessions, requests, strict=True)]
        whole = self.outboxes[0]
        keys = torch.cat([outbox.keys for outbox in self.outboxes])
        together = Outbox(whole.residuals, whole.seed, whole.round, whole.exchange, rows, keys)
        draw = _padded([request.draw for request in requests])
        super().__init__(
            self.works[0], rows, draw, _joined([s for s in states if s is not None]), together,
            requests[0].measures, down,
        )  # fmt: skip
        self.gradients = np.zeros(len(seats), np.int64)

    def split(self, returned: Any, requests: Sequence[Request]) -> list[Answer]:
        """An answer per run, from what the program returned for all."""
        upload, kept = returned if isinstance(returned, tuple) else (returned, None)
        self.counted_by_run = self.gradients
        answers = []
        for place, (request, span) in enumerate(zip(requests, self.spans, strict=True)):

            def rows(v: Tensor, span: slice = span) -> Tensor:
                return rows_of(v, self.count)[span]

            mine = self.sent[place]
            if mine is None:
                mine = upload.map(rows) if isinstance(upload, Upload) else upload
            own = mine if kept is None else (mine, kept.map(rows))
            answer = Answer(len(request.clients))
            places = np.arange(len(request.clients))
            answer.take(_Part(self, place), own, places, request, request.weights)
            answers.append(answer)
        return answers

    def starting_buffers(self) -> Tensor:
        pairs = zip(self.works, self.spans, strict=True)
        return torch.cat([rows_of(work.buffers, part.stop - part.start) for work, part in pairs])

    def rates(self, lr: Rate, count: int) -> NDArray[np.float64]:
        each = lr.each if isinstance(lr, Rates) else [lr] * len(self.works)
        rows = [work.rates(rate, count) for work, rate in zip(self.works, each, strict=True)]
        return np.repeat(np.stack(rows), [part.stop - part.start for part in self.spans], axis=0)

    def counted(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.add.reduceat(samples, [part.start for part in self.spans])

    def drawn_large(self, size: int) -> Draw:
        pairs = zip(self.works, self.spans, strict=True)
        return _padded([large_batch(work, self.rows[part], size) for work, part in pairs])

    def step_keys(self, purpose: Purpose, step: int) -> Tensor:
        pairs = zip(self.works, self.spans, strict=True)
        return torch.cat([step_keys(work, purpose, self.keys[part], step) for work, part in pairs])

    def gradient_noise(self, step: int, d: int) -> Tensor:
        pairs = zip(self.works, self.spans, strict=True)
        return torch.cat([normal(w.seed, w.round, self.keys[part], step, d) for w, part in pairs])

    def noise(self, like: Tensor) -> Tensor:
        self._noises += 1
        pairs, d = zip(self.works, self.spans, strict=True), like.shape[-1]
        drawn = [
            normal(w.seed, w.round, self.keys[part], self._noises, d, Purpose.METHOD)
            for w, part in pairs
        ]
        return torch.cat(drawn).to(like)

    def measure(self, y: Any, active: Any) -> None:
        assert self.start is not None
        start = rows_of(self.start, self.count)
        for place, part in enumerate(self.spans):
            for measure in self.measures:
                found = measure.point(rows_of(y, self.count)[part], start[part], active[part])
                mine = self.measured_by_run[place].setdefault(measure.name, {})
                for name, value in found.items():
                    mine[name] = mine[name] + value if name in mine else value

    def encode(self, upload: U, by: Compressor | None) -> U:
        if by is None:
            return upload
        for place, part in enumerate(self.spans):
            mine = upload.map(lambda v, part=part: rows_of(v, self.count)[part])
            self.sent[place] = self.outboxes[place].encode(mine, by)
        whole: Any = _joined([sent for sent in self.sent if sent is not None])
        return whole


def _joined(records: Sequence[Any]) -> Any:
    """The rows of several records in one, or nothing."""
    if not records:
        return None
    flat = [record.tensors() for record in records]
    return records[0].filled({name: torch.cat([f[name] for f in flat]) for name in flat[0]})


def _padded(draws: Sequence[Draw]) -> Draw:
    """The batches of all, in one shape."""
    steps = max(draw.count.shape[1] for draw in draws)
    width = max(draw.index.shape[2] for draw in draws)
    index, count = [], []
    for draw in draws:
        _, k, b = draw.index.shape
        grown = (k, b) != (steps, width)
        index.append(
            torch.nn.functional.pad(draw.index, (0, width - b, 0, steps - k))
            if grown
            else draw.index
        )
        count.append(np.pad(draw.count, ((0, 0), (0, steps - k))))
    return Draw(torch.cat(index), np.concatenate(count))
