"""Several runs of one method at once: the clients of all their cohorts as one matrix.

The runs differ in seed and local step size. Each keeps its own session and its own server program,
which is a pure function: it is called until it asks for an exchange, the exchanges of all runs are
executed together, and it is called again with the answers so far. So a method needs nothing special.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Algorithm, Broadcast, Cohort, Replies
from fairlead.core.records import State
from fairlead.data.batches import Draw
from fairlead.engine.api import Answer, Request, rows_of
from fairlead.engine.clients import Stacked
from fairlead.engine.exchange import DryCohort, RoundCohort, commit
from fairlead.engine.executors import unstackable
from fairlead.engine.session import Session
from fairlead.engine.state.outbox import Outbox
from fairlead.engine.work import Work
from fairlead.errors import FairleadError
from fairlead.probe.base import Sums, added
from fairlead.schedules import Rate


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


def joinable(seats: Sequence[Seat], executor: RunsExecutor) -> bool:
    """Whether the runs give together what they give one by one: a dry round of each, both ways."""
    alone = []
    for seat in seats:
        c = seat.cohort
        dry = DryCohort(c.session, c.round, c.ids, c.sampled, c.executor, c.draw)
        alone.append(seat.method.round(seat.state, dry).x)
    try:
        joined_rounds(seats, executor, dry=True)
    except (RuntimeError, FairleadError, AttributeError, IndexError, AssertionError):
        return False
    rough = 1e-3 if alone[0].dtype != torch.float64 else 1e-7
    for seat, x in zip(seats, alone, strict=True):
        assert seat.after is not None
        if not float((seat.after.x - x).abs().max()) <= rough * float(x.abs().max()):
            return False
    return True


def joined_rounds(seats: Sequence[Seat], executor: RunsExecutor, dry: bool = False) -> None:
    """One round of every run; `seat.after` is the state it ends in. dry: nothing is committed."""
    first, task = seats[0], seats[0].session.task
    picky = not task.stackable or task.mixes_samples
    if picky and unstackable(task, padded([seat.cohort.draw for seat in seats])):
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
        _exchange(seats, lead, executor, dry)


def _exchange(
    seats: Sequence[Seat], lead: Algorithm[Any, Any], executor: RunsExecutor, dry: bool
) -> None:
    """One exchange of every run, executed as one and committed one by one. `lead` has the step sizes of
    all runs."""
    parts = []
    for seat in seats:
        assert seat.asked is not None
        request = seat.cohort.request(seat.asked.program, seat.asked.broadcast)
        parts.append(Part(seat.session, request))
    for seat, answer in zip(seats, executor.execute(parts, lead), strict=True):
        assert seat.asked is not None
        cohort, broadcast = seat.cohort, seat.asked.broadcast
        if not dry:
            commit(cohort, answer, cohort.sent.bits(broadcast), broadcast)
        seat.answers.append(cohort.replies(answer))


# -- the clients of all runs at once --------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One of several runs in an exchange."""

    session: Session
    request: Request

    @property
    def count(self) -> int:
        """Its clients."""
        return len(self.request.clients)

    @property
    def work(self) -> Work:
        """What its clients share."""
        return self.session.work(self.request.round)

    @property
    def keys(self) -> NDArray[np.int64]:
        """Its clients' numbers for random draws."""
        return self.session.identities[self.request.clients]


class RunsExecutor:
    """Runs one exchange of several runs as a matrix of all their clients."""

    @property
    def remark(self) -> str:
        """What to report about how it runs."""
        return ""

    def execute(self, parts: Sequence[Part], lead: Algorithm[Any, Any]) -> list[Answer]:
        """The answers to one exchange of each run. lead: the method, with the step sizes of all."""
        down: dict[str, Any] = {}
        for name, values in broadcasts(parts).items():
            pairs = zip(values, parts, strict=True)
            rows = [rows_of(v, part.count) for v, part in pairs if isinstance(v, Tensor)]
            down[name] = torch.cat(rows) if rows else values[0]
        clients, whole = Joined(parts, down), merged(parts)
        returned = lead.program(whole.program)(clients, **down)
        answer = Answer(len(clients.rows))
        weights = RunWeights(torch.cat([part.request.weights for part in parts]), counts(parts))
        answer.take(clients, returned, np.arange(answer.count), whole, weights)
        found = split(answer, spans(parts), clients.gradients.tolist())
        upload = returned[0] if isinstance(returned, tuple) else returned
        triples = zip(found, clients.measured_by_run, spans(parts), strict=True)
        for mine, inside, (part, span) in triples:
            mine.measured = inside
            own = upload.map(lambda v, span=span: rows_of(v, answer.count)[span])
            for measure in part.request.measures:
                mine.measured = added(
                    mine.measured, {measure.name: measure.upload(own, part.count)}
                )
        return found


def counts(parts: Sequence[Part]) -> tuple[int, ...]:
    """The clients of each run."""
    return tuple(part.count for part in parts)


def spans(parts: Sequence[Part]) -> list[tuple[Part, slice]]:
    """The runs, with the places of their clients."""
    ends = np.cumsum(counts(parts)).tolist()
    return [(part, slice(end - part.count, end)) for part, end in zip(parts, ends, strict=True)]


def broadcasts(parts: Sequence[Part]) -> dict[str, list[Any]]:
    """What each server sends, by name; numbers are the same in all runs."""
    found = {
        name: [p.request.broadcast[name] for p in parts] for name in parts[0].request.broadcast
    }
    for values in found.values():
        if not isinstance(values[0], Tensor) and any(v != values[0] for v in values):
            raise FairleadError("these runs broadcast different numbers: train them one by one")
    return found


def merged(parts: Sequence[Part]) -> Request:
    """One request for the clients of all runs; measures are taken run by run."""
    first = parts[0].request
    rows = np.concatenate([part.request.clients for part in parts])
    draw = padded([part.request.draw for part in parts])
    return replace(first, clients=rows, draw_of=lambda ids: draw, measures=())


def split(
    answer: Answer, places: Sequence[tuple[Part, slice]], gradients: Sequence[int]
) -> list[Answer]:
    """The answers of each run, from that of all: its clients are in these places, and so many gradients are its own."""
    found = []
    nominal = answer.nominal / max(1, answer.count)
    for place, (part, span) in enumerate(places):
        ids = part.request.clients

        def mine(rows: Tensor, span: slice = span) -> Tensor:
            return rows_of(rows, answer.count)[span]

        found.append(replace(
            answer, count=part.count, sums={n: v[place] for n, v in answer.sums.items()},
            rows={n: v[span] for n, v in answer.rows.items()},
            buffers=None if answer.buffers is None else answer.buffers[place],
            states=[(ids, kept.map(mine)) for _, kept in answer.states],
            residuals=[(ids, {n: v[span] for n, v in held.items()}) for _, held in answer.residuals],
            up=answer.up[span], up_later=[(np.arange(part.count), bits[span]) for _, bits in answer.up_later],
            nominal=nominal * part.count, gradients=gradients[place],
            measured={},
        ))  # fmt: skip
    return found


class RunWeights:
    """The weights of all clients in the mean of their run: `weights @ rows` gives a row per run."""

    def __init__(self, weights: Tensor, counts: Sequence[int]) -> None:
        self.weights, self.counts = weights, counts

    def __len__(self) -> int:
        return len(self.weights)

    def __matmul__(self, rows: Tensor) -> Tensor:
        if len(set(self.counts)) == 1:  # sums in full precision, whatever products have
            return (self.weights[:, None] * rows).unflatten(0, (len(self.counts), -1)).sum(1)
        pairs = zip(
            self.weights.split(list(self.counts)), rows.split(list(self.counts)), strict=True
        )
        return torch.stack([weights @ own for weights, own in pairs])


class _Outbox(Outbox):
    """What the clients of several runs send."""

    parts: Sequence[Part]

    def residual(self, name: str, like: Tensor) -> Tensor:
        read = [
            part.session.residuals.read(name, part.request.clients, like) for part in self.parts
        ]
        return torch.cat(read)


class Joined(Stacked):
    """The clients of several runs at once: a seed, step sizes and buffers for each."""

    def __init__(self, parts: Sequence[Part], down: Mapping[str, Any]) -> None:
        self.parts, first = parts, parts[0]
        rows = np.concatenate([part.request.clients for part in parts])
        device = first.session.task.device
        keys = torch.from_numpy(np.concatenate([part.keys for part in parts]))
        seeds = torch.from_numpy(seeds_of(parts)).to(device, non_blocking=True)
        request, residuals = first.request, first.session.residuals
        keys = keys.to(device, non_blocking=True)
        outbox = _Outbox(residuals, seeds, request.round, request.exchange, rows, keys)
        outbox.parts = parts
        states = [p.session.states.read(p.request.clients) for p in parts]
        draw = padded([part.request.draw for part in parts])
        self.measured_by_run: list[Sums] = [{} for _ in parts]
        super().__init__(
            replace(first.work, seed=seeds), rows, draw, _joined(states), outbox, request.measures, down
        )  # fmt: skip
        self.gradients = np.zeros(len(parts), np.int64)

    def starting_buffers(self) -> Tensor:
        return torch.cat([part.session.buffers.expand(part.count, -1) for part in self.parts])

    def rates(self, lr: Rate, count: int) -> NDArray[np.float64]:
        return rates_of(self.parts, lr, count)

    def counted(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.add.reduceat(samples, [span.start for _, span in spans(self.parts)])

    def drawn_large(self, size: int) -> Draw:
        return drawn_large(self.parts, size)

    def measure(self, y: Any, active: Any) -> None:
        assert self.start is not None
        count = len(self.rows)
        start = rows_of(self.start, count)
        for found, (_, span) in zip(self.measured_by_run, spans(self.parts), strict=True):
            for measure in self.measures:
                new = measure.point(rows_of(y, count)[span], start[span], active[span])
                found.update(added(found, {measure.name: new}))


def seeds_of(parts: Sequence[Part]) -> NDArray[np.int64]:
    """The seed of every client's run."""
    each = np.array([part.session.seed % 2**64 for part in parts], np.uint64).view(np.int64)
    return np.repeat(each, counts(parts))


def rates_of(parts: Sequence[Part], lr: Rate, count: int) -> NDArray[np.float64]:
    """The step sizes of every client's steps."""
    each = lr.each if isinstance(lr, Rates) else [lr] * len(parts)
    rows = [part.work.rates(rate, count) for part, rate in zip(parts, each, strict=True)]
    return np.repeat(np.stack(rows), counts(parts), axis=0)


def drawn_large(parts: Sequence[Part], size: int) -> Draw:
    """The large batches of all clients."""
    each = (p.session.large(p.request.round, p.request.clients, size) for p in parts)
    return padded(list(each))


def _joined(records: Sequence[Any]) -> Any:
    """The rows of several records in one, or nothing."""
    if records[0] is None:
        return None
    flat = [record.tensors() for record in records]
    return records[0].filled({name: torch.cat([f[name] for f in flat]) for name in flat[0]})


def padded(draws: Sequence[Draw]) -> Draw:
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
        count.append(more_steps(draw.count, steps))
    return Draw(torch.cat(index), np.concatenate(count))


def more_steps(count: NDArray[np.int64], steps: int) -> NDArray[np.int64]:
    """The sizes of clients' batches, with empty ones at the end of so many steps."""
    more = steps - count.shape[1]
    return np.pad(count, ((0, 0), (0, more))) if more else count
