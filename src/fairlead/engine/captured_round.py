"""Whole rounds over fixed inputs, captured as CUDA graphs and replayed.

What differs from round to round are inputs with a fixed place: the server's state, the clients' ids,
batches, states, step sizes and weights, and the round's number for random draws. A round is first run as it
is, and captured when its shape comes again. A method that reads something that a capture cannot know is run
as it is, and `remark` says why. What a round leaves is an `Answer` per exchange, committed like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead.core.method import Broadcast, Cohort, Replies, program_name
from fairlead.core.records import State
from fairlead.data.batches import Draw
from fairlead.engine.api import Answer, Request, rows_of
from fairlead.engine.clients import Stacked, StackedStep
from fairlead.engine.cuda_graph import Generator
from fairlead.engine.exchange import RoundCohort, Sent, commit, plain, server_noise
from fairlead.engine.graph_inputs import Inputs
from fairlead.engine.session import Session
from fairlead.engine.state.outbox import Outbox
from fairlead.gradients.capture import compiled
from fairlead.rng import Purpose, normal, words
from fairlead.schedules import Rate
from fairlead.task.task import Block

GATHERED = 1 << 31
"""Bytes of samples that are gathered for all steps of a round at once."""


@dataclass
class _Exchanged:
    """One exchange of a captured round: its answer, and what it counts."""

    answer: Answer
    down: int
    broadcast: dict[str, Broadcast]
    steps: list[int] = field(default_factory=list)
    """The step of every gradient that was taken."""
    passes: int = 0
    large: list[int] = field(default_factory=list)

    def gradients(self, at: RoundCohort, draw: Draw) -> int:
        """Gradients of single samples that the clients of a round took."""
        per_step, sizes = draw.per_step, at.session.task.sizes
        whole = self.steps == list(range(len(per_step)))
        spent = int(per_step.sum() if whole else per_step[self.steps].sum())
        if self.passes or self.large:
            own = sizes[at.ids]
            spent += self.passes * int(own.sum())
            spent += sum(int(np.minimum(own, size).sum()) for size in self.large)
        return spent


class _Outbox(Outbox):
    """An outbox whose residuals are inputs of the capture."""

    def __init__(self, take: CapturedRound, exchange: int) -> None:
        given, session = take.inputs, take.inputs.session
        super().__init__(session.residuals, session.seed, 0, exchange, given.at.ids, given.keys)
        self.take, self.held = take, dict(take.held)

    @property
    def round(self) -> Any:
        return self.take.inputs.round

    @round.setter
    def round(self, value: Any) -> None:
        """It is an input."""

    def residual(self, name: str, like: Tensor) -> Tensor:
        return self.take.inputs.residual(name, like)


class _Clients(Stacked):
    """The clients of a captured round: all that changes is in inputs."""

    def __init__(self, take: CapturedRound, request: Request, noted: _Exchanged) -> None:
        given, session = take.inputs, take.inputs.session
        self.take, self.noted, self.given = take, noted, given
        self.work, self.draw = session.work(0), given.draw
        self.outbox, self.memory = _Outbox(take, request.exchange), take.memory
        self.rows, self.owners, self.keys = given.at.ids, given.ids, given.keys
        self.index = given.index
        self.buffers = rows_of(take.buffers, len(given.ids))
        self._begin(request.measures, request.broadcast)

    @property
    def largest(self) -> int:
        return self.given.largest

    def steps(self, lr: Rate) -> Iterator[Any]:
        rates, self.moved = self.given.step_sizes(self.take.asked("steps"), lr)
        for k in range(rates.shape[1]):
            yield StackedStep(self, k, rates[:, k : k + 1])

    def step_taken(self, k: int) -> None:
        self.noted.steps.append(k)

    def full_pass(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.noted.passes += 1
        oracle, sizes = self.work.gradients, self.given.sizes[self.owners]
        return oracle.full_padded(
            self.owners, sizes, self.largest, x, self.buffers, self.work.limit
        )

    def large_batch(self, size: int) -> tuple[Block, Tensor | None]:
        self.noted.large.append(size)
        index, count = self.given.large_batch(self.take.asked("large"), size)
        return self.work.task.samples(self.owners, index, None), self.inside(index, count)

    def inside(self, index: Tensor, count: Tensor) -> Tensor:
        """The weights of the samples of batches with so many of them."""
        n = count[:, None]
        inside = torch.arange(index.shape[1], device=index.device) < n
        return inside.to(self.work.task.dtype) / n.clamp(min=1)

    def augment_keys(self, step: int) -> Tensor | None:
        return None if self.work.task.transform is None else self.take.augment_keys[:, step]

    def gradient_noise(self, step: int, d: int) -> Tensor:
        return normal(self.work.seed, self.given.round, self.keys, step, d)

    def noise(self, like: Tensor) -> Tensor:
        return self._noise(self.keys, self.given.round, like)

    def batch(self, k: int) -> tuple[Block, Tensor | None]:
        block, given = self.take.samples(self, k), self.given
        return block, None if given.even else self.inside(self.index[:, k], given["count"][:, k])


class _Cohort(Cohort):
    """The clients of a captured round, as the server's program sees them."""

    def __init__(self, take: CapturedRound) -> None:
        self.take, at = take, take.inputs.at
        self.first, self.exchange = at.first, at.exchange
        self.share = at.share if take.even_weights else take.inputs["share"]
        self.sent, self._noises = Sent(), 0

    def __getattr__(self, name: str) -> Any:
        if name != "round":
            raise AttributeError(name)
        self.take.why = "its server program reads the round's number: use cohort.rate(…)"
        return self.take.inputs.at.round

    def rate(self, rate: Rate) -> Any:
        if not callable(rate):
            return rate
        return self.take.inputs.server_rate(self.take.asked("rates"), rate)

    def noise(self, like: Tensor) -> Tensor:
        self._noises += 1
        given = self.take.inputs
        return server_noise(given.session.seed, given.round, self._noises, like)

    def run(self, program: Callable[..., Any], **broadcast: Broadcast) -> Replies[Any]:
        take, given = self.take, self.take.inputs
        at, session, count = given.at, given.session, len(given.ids)
        weights = given["weights"]
        request = Request(
            program_name(program), plain(broadcast), 0, self.exchange, at.ids, weights,
            at.draw_of, take.measures,
        )  # fmt: skip
        noted = _Exchanged(Answer(count), self.sent.bits(broadcast), broadcast)
        client = _Clients(take, request, noted)
        returned = session.method.program(request.program)(client, **request.broadcast)
        answer = noted.answer
        answer.take(client, returned, np.arange(count), request, weights)
        for _, kept in answer.states:
            take.memory = kept.map(lambda v: rows_of(v, count))
        for _, held in answer.residuals:
            take.held = held
        if answer.buffers is not None:
            take.buffers = answer.buffers
        take.exchanges.append(noted)
        self.exchange += 1
        return Replies(answer.kind(**answer.sums), count, self.share)


class CapturedRound:
    """One shape of a round: its inputs, what a run over them leaves, and its capture."""

    def __init__(self, session: Session, inputs: Inputs, tuned: bool) -> None:
        self.session, self.inputs, self.tuned = session, inputs, tuned
        self.even_weights = bool(np.ptp(session.weights) == 0)
        self.measures = session.measures
        self.why = ""
        self.once = inputs.at.first  # a first round does not come again
        self.played = 0
        execution = session.execution
        self.compiles = execution is not None and execution.form.compiled
        self.run: Callable[[], None] = self.perform
        self.replay: Callable[[], None] | None = None
        self.out: dict[str, Tensor] = {}
        """What a run leaves, by name."""

    def perform(self) -> None:
        """The round over its inputs."""
        given = self.inputs
        self._asked: dict[str, int] = {}
        self._blocks: Block | None = None
        self._augment: Tensor | None = None
        self.memory, self.buffers = given.memory, given["buffers"]
        self.held: dict[str, Tensor] = {}
        self.exchanges: list[_Exchanged] = []
        self.after: State = self.session.method.round(given.state, _Cohort(self))
        self.out = {f"after/{name}": t for name, t in self.after.tensors().items()}
        for place, noted in enumerate(self.exchanges):
            self.out.update({f"{place}/{name}": t for name, t in _tensors(noted.answer)})

    def asked(self, what: str) -> int:
        """How often the program asked for this kind of input before."""
        place = self._asked.get(what, 0)
        self._asked[what] = place + 1
        return place

    @property
    def augment_keys(self) -> Tensor:
        """Random words for the transform, of every client and step: (S, K, 2)."""
        if self._augment is None:
            given, seed = self.inputs, self.session.seed
            k = torch.arange(given.index.shape[1], device=given.keys.device)
            client = given.keys[:, None]
            self._augment = words(seed, Purpose.AUGMENT, given.round, client, k, 0)[..., :2]
        return self._augment

    def samples(self, client: _Clients, k: int) -> Block:
        """The samples of step k; those of all steps are gathered together where they fit."""
        task, index = self.session.task, self.inputs.index
        s, steps, b = index.shape
        item = torch.empty((), dtype=task.dtype).element_size()
        if index.numel() * sum(t[0].numel() for t in task.data) * item > GATHERED:
            return task.samples(client.owners, index[:, k], client.augment_keys(k))
        if self._blocks is None:
            keys = None
            if task.transform is not None:
                keys = self.augment_keys.transpose(0, 1).reshape(-1, 2)
            owners = client.owners.repeat(steps)
            everything = index.transpose(0, 1).reshape(steps * s, b)
            found = task.samples(owners, everything, keys)
            self._blocks = tuple(t.unflatten(0, (steps, s)) for t in found)
        return tuple(t[k] for t in self._blocks)

    # -- capturing ------------------------------------------------------------------------------

    def play(self, record: Callable[[Callable[[], None]], Callable[[], None]], after: int) -> None:
        """Run the round, or replay its capture."""
        if self.replay is None and not self._settled(record, after):
            return
        (self.replay or self.run)()

    def _settled(self, record: Callable[..., Callable[[], None]], after: int) -> bool:
        """Find out what the round reads, compile and capture it when it is time; whether the round is
        still to be run. What it draws from torch's generator is drawn once."""
        if self.once:
            self.perform()
            return False
        drawn = Generator(self.session.task.device)
        first, self.played = self.played == 0, self.played + 1
        if first:
            self.perform()
            if self.compiles and not self.why:
                self._compile()
        if not self.why and self.played > after:
            try:
                self.replay = record(self.run)
            except RuntimeError as error:
                self.why = str(error).strip().split("\n")[0]
        elif first and self.run == self.perform:
            return False
        drawn.restore()
        return True

    def _compile(self) -> None:
        given = self.inputs
        names, tensors = list(given.tensors), given.tensors

        def run(*values: Tensor) -> list[Tensor]:
            given.tensors = dict(zip(names, values, strict=True))
            try:
                self.perform()
            finally:
                given.tensors = tensors
            return list(self.out.values())

        try:
            made = compiled(run, list(tensors.values()), self.tuned)
        except Exception as error:  # a compiler has many ways to fail
            self.compiles = False
            lines = [line.strip() for line in str(error).splitlines()] or [type(error).__name__]
            named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
            self.session.remark = f"not compiled: {(named[-1:] or lines)[0][:200]}"
            return
        left = list(self.out)

        def play() -> None:
            self.out = dict(zip(left, made(*tensors.values()), strict=True))

        self.run = play

    # -- what it leaves -------------------------------------------------------------------------

    def leave(self, at: RoundCohort, draw: Draw) -> State:
        """Commit the answers of the round, and return the server's next state."""
        last_state = max((k for k, e in enumerate(self.exchanges) if e.answer.states), default=-1)
        last_held = max((k for k, e in enumerate(self.exchanges) if e.answer.residuals), default=-1)
        for place, noted in enumerate(self.exchanges):
            found = _under(self.out, f"{place}/")
            answer = _filled(noted.answer, found, at)
            answer.gradients = noted.gradients(at, draw)
            answer.states = answer.states if place == last_state else []
            answer.residuals = answer.residuals if place == last_held else []
            commit(at, answer, noted.down, noted.broadcast)
        after = _under(self.out, "after/")
        return self.after.filled({name: t.clone() for name, t in after.items()})


def _tensors(answer: Answer) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an answer that outlive the round."""
    if answer.buffers is not None:
        yield "buffers", answer.buffers
    for _, kept in answer.states:
        yield from ((f"state/{name}", t) for name, t in kept.tensors().items())
    for _, held in answer.residuals:
        yield from ((f"held/{name}", t) for name, t in held.items())
    for _, bits in answer.up_later:
        yield "bits", bits
    for measure, sums in answer.measured.items():
        yield from ((f"measured/{measure}/{name}", t) for name, t in sums.items())


def _filled(answer: Answer, found: dict[str, Tensor], at: RoundCohort) -> Answer:
    """An answer with the tensors of the newest replay, for the clients of this round. Client states and
    residuals are copied where they are kept; the rest is copied here."""
    return replace(
        answer,
        buffers=found["buffers"].clone() if "buffers" in found else None,
        states=[(at.ids, kept.filled(_under(found, "state/"))) for _, kept in answer.states],
        residuals=[(at.ids, _under(found, "held/")) for _ in answer.residuals],
        up_later=[(places, found["bits"].clone()) for places, _ in answer.up_later],
        measured={
            measure: {n: t.clone() for n, t in _under(found, f"measured/{measure}/").items()}
            for measure in answer.measured
        },
    )


def _under(out: dict[str, Tensor], head: str) -> dict[str, Tensor]:
    return {name[len(head) :]: t for name, t in out.items() if name.startswith(head)}
