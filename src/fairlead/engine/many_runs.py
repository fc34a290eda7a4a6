"""Several runs of one method at once: the clients of all their cohorts as one matrix.

The runs differ in seed and local step size. Each keeps its own session and its own server program,
which is a pure function: it is called until it asks for an exchange, the exchanges of all runs are
made together, and it is called again with the answers so far. So a method needs nothing of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Algorithm, Cohort, Replies, State, Upload
from fairlead.compress import Compressor
from fairlead.data.batches import Draw
from fairlead.engine.autotune import unstackable
from fairlead.engine.clients import Stacked, Work, augment_keys, large_batch
from fairlead.engine.cohort import SimulatedCohort
from fairlead.engine.state.residuals import Mail
from fairlead.engine.replies import bits_of, rows_of, split_reply
from fairlead.engine.simulate import Session
from fairlead.core.message import message_bits
from fairlead.errors import FairleadError
from fairlead.rng import normal
from fairlead.schedules import Rate

U = TypeVar("U", bound=Upload)


class Rates:
    """The step sizes of several runs; a client program hands it to `client.steps`, and a server
    program gets those of the first run."""

    def __init__(self, each: Sequence[Rate]) -> None:
        self.each = each
        self.per = getattr(each[0], "per", "round")

    def __call__(self, k: int) -> float:
        first = self.each[0]
        return first(k) if callable(first) else first


class _Ask(BaseException):
    """A server program has reached an exchange whose answer is not there yet."""

    def __init__(self, program: Callable[..., Any], broadcast: dict[str, Tensor]) -> None:
        super().__init__()
        self.program, self.broadcast = program, broadcast


class _Asking(Cohort):
    """A cohort that gives the answers so far, and then stops the program that asks."""

    def __init__(self, cohort: SimulatedCohort, answers: list[Replies[Any]]) -> None:
        self.round, self.first, self.share = cohort.round, cohort.first, cohort.share
        self.answers = iter(answers)

    def run(self, program: Callable[..., Any], **broadcast: Tensor) -> Replies[Any]:
        found = next(self.answers, None)
        if found is None:
            raise _Ask(program, broadcast)
        return found


@dataclass
class Seat:
    """One of the runs in a round."""

    method: Algorithm[Any, Any]
    state: State
    cohort: SimulatedCohort
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


def joined_rounds(seats: Sequence[Seat]) -> None:
    """One round of every run; `seat.after` is the state it ends in."""
    first, task = seats[0], seats[0].session.task
    if unstackable(task, _padded([seat.cohort.draw for seat in seats])):
        for seat in seats:  # batches that differ between runs, in a model that mixes their samples
            seat.after = seat.method.round(seat.state, seat.cohort)
        return
    rates = [seat.method.rates().get("lr") for seat in seats]
    lead: Algorithm[Any, Any] = first.method
    if any(rate != rates[0] for rate in rates):
        lead = first.method.with_lr(Rates([r for r in rates if r is not None]))
    leader = Seat(lead, first.state, first.cohort, first.answers)
    while True:
        for seat in seats:
            seat.advance()
        asking = [seat for seat in seats if seat.asked is not None]
        if not asking:
            return
        leader.advance()  # its client program takes the step sizes of all runs
        if leader.asked is None:
            raise FairleadError("these runs do not exchange alike: train them one by one")
        _exchange(asking, leader.asked.program)


def _exchange(seats: Sequence[Seat], program: Callable[..., Any]) -> None:
    """One exchange of every run, as one."""
    client = Joined(seats)
    counts = [len(seat.cohort.ids) for seat in seats]
    asks = [seat.asked.broadcast for seat in seats if seat.asked is not None]
    down = {
        name: torch.cat([rows_of(ask[name], n) for ask, n in zip(asks, counts, strict=True)])
        for name in asks[0]
    }
    upload, kept = split_reply(program(client, **down), sum(counts), down)
    after = client.moved_buffers()
    means = {name: client.mean(value) for name, value in upload.tensors().items()}
    buffers = None if after is None or not after.numel() else client.mean(after)
    for place, seat in enumerate(seats):
        part, session = client.spans[place], seat.session
        mine = client.sent[place] or upload.map(lambda v, part=part: rows_of(v, part.stop)[part])
        if kept is not None:
            rows = kept.map(lambda v, part=part: rows_of(v, part.stop)[part])
            session.keep(seat.cohort.ids, rows)
        session.residuals.write(seat.cohort.ids, client.mails[place].held)
        session.counters.gradients += int(client.gradients[place])
        if session.measure_drift:
            session.walks.add(mine.walked(), counts[place])
        moved = None if buffers is None else buffers[place]
        exact, nominal = message_bits(mine)
        bits = np.full(counts[place], exact if isinstance(exact, int) else 0)
        if not isinstance(exact, int):
            session.owe(len(session.ledger.exchanges), seat.cohort.answers, exact)
        down = sum(map(bits_of, asks[place].values()))
        seat.cohort.enter(down, bits, nominal * counts[place], moved)
        mean = type(upload)(**{name: value[place] for name, value in means.items()})
        seat.answers.append(Replies(mean, counts[place]))


class Joined(Stacked):
    """The clients of several runs at once."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        cohorts = [seat.cohort for seat in seats]
        ends = np.cumsum([len(c.ids) for c in cohorts])
        self.spans = [slice(e - len(c.ids), e) for e, c in zip(ends, cohorts, strict=True)]
        self.works: list[Work] = [c.session.work(c.round) for c in cohorts]
        self.mails = [c.session.mail(c.round, c.exchange) for c in cohorts]
        self.sent: list[Upload | None] = [None for _ in seats]
        ids = np.concatenate([c.ids for c in cohorts])
        stores = [(c.session.store, c.ids) for c in cohorts]
        memories = [store.read(own) for store, own in stores if store is not None]
        super().__init__(
            self.works[0], ids, _padded([c.draw for c in cohorts]), _joined(memories), self.mails[0]
        )
        self.gradients = np.zeros(len(seats), np.int64)
        weights = torch.zeros(len(seats), len(ids), dtype=cohorts[0].weights.dtype)
        for place, (part, cohort) in enumerate(zip(self.spans, cohorts, strict=True)):
            weights[place, part] = torch.from_numpy(cohort.host_weights).to(weights.dtype)
        self.weights = weights.to(self.ids.device, non_blocking=True)

    def mean(self, value: Tensor) -> Tensor:
        """The weighted mean over every run's clients: (runs, …)."""
        return self.weights @ rows_of(value, len(self.host_ids))

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
        return _padded([large_batch(work, self.host_ids[part], size) for work, part in pairs])

    def keys(self, step: int) -> Tensor | None:
        pairs = zip(self.works, self.spans, strict=True)
        found = [augment_keys(work, self.ids[part], step) for work, part in pairs]
        return None if found[0] is None else torch.cat([keys for keys in found if keys is not None])

    def noise(self, step: int, d: int) -> Tensor:
        pairs = zip(self.works, self.spans, strict=True)
        return torch.cat([normal(w.seed, w.round, self.ids[part], step, d) for w, part in pairs])

    def encode(self, upload: U, by: Compressor | None) -> U:
        if by is None:
            return upload
        for place, part in enumerate(self.spans):
            mine = upload.map(lambda v, part=part: rows_of(v, len(self.host_ids))[part])
            mail: Mail = self.mails[place]
            self.sent[place] = mail.encode(mine, by, self.host_ids[part], self.ids[part])
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
