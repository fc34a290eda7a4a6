"""The exchange between the server and a cohort: whom to ask, what they lack, what becomes of the answer.

method.round ── cohort.run(program, broadcast) ──▶ Request
    executor:  runs the program for its clients → Answer; writes nothing
    commit:    the one place that applies an answer: client states, residuals, buffers, accounts, measures
◀── Replies (means, count, share)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fairlead.core.method import Broadcast, Cohort, Lasting, Replies, program_name
from fairlead.core.records import Memory, Upload
from fairlead.data.batches import Draw
from fairlead.engine.accounting import Exchange
from fairlead.engine.api import Answer, Executor, Ids, Request
from fairlead.engine.session import Session
from fairlead.probe.base import added
from fairlead.rng import Purpose, Word, normal

U = TypeVar("U", bound=Upload)
WARM_UP = 1 << 20
"""The first exchange before round 0: its messages share no noise with those of round 0."""


class Sent:
    """The vectors that a cohort has received in this round; none is sent twice."""

    def __init__(self) -> None:
        self._known: dict[str, Tensor] = {}

    def bits(self, broadcast: Mapping[str, Broadcast]) -> int:
        """Bits of what is new to the clients; lasting vectors are counted apart."""
        total = 0
        for name, value in broadcast.items():
            if isinstance(value, Tensor):
                if self._known.get(name) is not value:
                    total += 8 * value.element_size() * value.numel()
                self._known[name] = value
            elif not isinstance(value, Lasting):
                total += 64  # a number
        return total


class RoundCohort(Cohort):
    """The clients of one round that answer.

    ids: their rows in the task; sampled: those the server asked. draw: their batches, where they have
    been drawn before. idle: they have data, but no steps to take.
    """

    def __init__(
        self,
        session: Session,
        round: int,
        ids: Ids,
        sampled: Ids,
        executor: Executor,
        draw: Draw | None = None,
        idle: bool = False,
    ) -> None:
        self.session, self.round, self.ids, self.sampled = session, round, ids, sampled
        self.executor, self.idle = executor, idle
        self.first = session.accounts.counters.steps == 0
        self.exchange = WARM_UP if idle else 0
        self.sent = Sent()
        self._draws: dict[bytes, Draw] = {}
        self._noises = 0
        if draw is not None:
            self._draws[ids.tobytes()] = draw

    def draw_of(self, ids: Ids) -> Draw:
        """The batches of some of the clients, the same in all exchanges of the round."""
        key = ids.tobytes()
        if key not in self._draws:
            self._draws[key] = self.session.draw(self.round, ids, self.idle)
        return self._draws[key]

    @property
    def draw(self) -> Draw:
        """The batches of all clients."""
        return self.draw_of(self.ids)

    @property
    def longest(self) -> int:
        """Steps of the client that takes most."""
        known, session = self._draws.get(self.ids.tobytes()), self.session
        if known is not None:
            return known.longest
        sizes = session.task.sizes[self.ids]
        return session.batches.longest(session.seed, self.round, self.ids, sizes)

    def noise(self, like: Tensor) -> Tensor:
        self._noises += 1
        return self.numbered_noise(self._noises, like)

    def numbered_noise(self, call: int, like: Tensor) -> Tensor:
        """The noise of one of the calls of `noise` in this round."""
        return server_noise(self.session.noise_seed, self.round, call, like)

    def run(
        self, program: Callable[..., U | tuple[U, Memory]], **broadcast: Broadcast
    ) -> Replies[U]:
        request = self.request(program, broadcast)
        answer = self.executor.execute(request)
        self._without_absent(answer)
        commit(self, answer, self.sent.bits(broadcast), broadcast)
        self.sampled = self.sampled if answer.answered is None else self.ids
        return self.replies(answer)

    def _without_absent(self, answer: Answer) -> None:
        """Go on with the clients that answered."""
        if answer.answered is not None:
            absent = len(self.ids) - len(answer.answered)
            self.session.accounts.counters.lost += absent
            self.ids = self.ids[answer.answered]

    def replies(self, answer: Answer) -> Replies[Any]:
        """What the server's program sees of an answer."""
        share, weights = self.session.cohort_weights(self.ids)
        rows = answer.kind(**answer.rows) if self.session.method.sees_each() else None
        mean = answer.kind(**answer.sums)
        return Replies(mean, answer.count, share, weights, rows, self.noise)

    def request(self, program: Callable[..., Any], broadcast: Mapping[str, Broadcast]) -> Request:
        """The exchange, for all of the clients."""
        return Request(
            program=program_name(program), broadcast=plain(broadcast), round=self.round,
            exchange=self.exchange, clients=self.ids, weights=self.session.cohort_weights(self.ids)[1],
            draw_of=self.draw_of, measures=self.session.measures,
            rows=self.session.method.sees_each(),
            lasting=frozenset(n for n, v in broadcast.items() if isinstance(v, Lasting)),
        )  # fmt: skip

    @property
    def places(self) -> Ids:
        """The positions of the clients that answer among those sampled."""
        if self.ids is self.sampled:
            return np.arange(len(self.ids))
        return np.searchsorted(self.sampled, self.ids)


class DryCohort(RoundCohort):
    """A cohort whose answers are not committed: to see what a round would do."""

    def run(
        self, program: Callable[..., U | tuple[U, Memory]], **broadcast: Broadcast
    ) -> Replies[U]:
        answer = self.executor.execute(self.request(program, broadcast))
        self.exchange += 1
        return self.replies(answer)


def cohort_of(
    session: Session, round: int, ids: Ids, sampled: Ids | None = None, draw: Draw | None = None
) -> RoundCohort:
    """The clients of a round that will answer, of those sampled."""
    assert session.executor is not None, "the session is not prepared"
    return RoundCohort(
        session, round, ids, ids if sampled is None else sampled, session.executor, draw
    )


def everyone(session: Session) -> RoundCohort:
    """All clients before the first round: they have data, but no steps to take."""
    assert session.executor is not None, "the session is not prepared"
    ids = np.arange(session.task.clients)
    return RoundCohort(session, 0, ids, ids, session.executor, idle=True)


def plain(broadcast: Mapping[str, Broadcast]) -> dict[str, Tensor | float]:
    """The broadcast as a client program sees it."""
    return {n: v.value if isinstance(v, Lasting) else v for n, v in broadcast.items()}


def server_noise(seed: int, round: Word, call: int, like: Tensor) -> Tensor:
    """Standard normal numbers for the server's program."""
    key = torch.full((1,), -1, dtype=torch.int64, device=like.device)
    return normal(seed, round, key, call, like.numel(), Purpose.METHOD).reshape(like.shape).to(like)


def commit(at: RoundCohort, answer: Answer, down: int, broadcast: Mapping[str, Broadcast]) -> None:
    """Apply the answer to one exchange. Nothing was written before, and nothing is written elsewhere."""
    session, places = at.session, at.places
    for ids, kept in answer.states:
        session.states.write(ids, kept)
    for ids, held in answer.residuals:
        session.residuals.write(ids, held)
    statistics = 0  # they travel both ways
    if answer.buffers is not None:
        session.buffers = answer.buffers
        statistics = 8 * answer.buffers.element_size() * answer.buffers.numel()
    session.measured = added(session.measured, answer.measured)
    up = np.zeros(len(at.sampled), np.int64)
    up[places] = answer.up
    all_up = up.copy()
    all_up[places] += statistics
    nominal = answer.nominal + statistics * len(at.ids)
    session.accounts.enter(
        Exchange(at.round, at.sampled, down + statistics, all_up, nominal),
        answer.gradients,
        up_later=[(places[some], bits) for some, bits in answer.up_later],
        extra_later=_lasting_bits(at, broadcast),
        partial=None if session.group.total is None else (up, answer.nominal),
    )
    session.group.wrote(at.ids)
    at.exchange += 1


def _lasting_bits(at: RoundCohort, broadcast: Mapping[str, Broadcast]) -> Tensor | None:
    """Bits of lasting vectors to each sampled client, which depend on the versions that it has."""
    total: Tensor | None = None
    for name, value in broadcast.items():
        if isinstance(value, Lasting):
            missing = at.session.versions.missing(name, value.version, at.sampled, at.ids)
            bits = missing * (8 * value.value.element_size() * value.value.numel())
            total = bits if total is None else total + bits
    return total
