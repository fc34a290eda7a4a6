"""The cohorts and batches of upcoming rounds, drawn many at a time: they are functions of the seed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fairlead.data.batches import Batches, Draw
from fairlead.data.sampling import Dropouts, Sampler, answered_many
from fairlead.engine.exchange import RoundCohort, cohort_of
from fairlead.engine.session import Session
from fairlead.engine.work import large_batch, one_batch
from fairlead.rng import Purpose

Ids = NDArray[np.int64]
ROUNDS = {"cuda": 256, "cpu": 64}
"""Rounds whose cohorts are drawn together; more on a device, where a drawing is many small kernels."""
SAMPLES = {"cuda": 1 << 22}
"""Samples that are shuffled together on a device; on a CPU as many as stay in its cache."""
CACHED = 1 << 15


class Upcoming:
    """The clients of each round of a run, and their batches."""

    def __init__(self, session: Session, sampler: Sampler, dropout: Dropouts, rounds: int) -> None:
        self.session, self.sampler, self.dropout, self.rounds = session, sampler, dropout, rounds
        self._known = range(0)
        self._sampled: list[Ids] = []
        self._answered: list[Ids] = []
        self._drawn: dict[Any, dict[int, Draw]] = {}
        """Batches by what they are for, and by round."""
        session.large = self.large

    def clients(self, round: int) -> tuple[Ids, Ids]:
        """The clients sampled in a round, and those of them that answer."""
        if round not in self._known:
            session = self.session
            many = ROUNDS.get(session.task.store.type, ROUNDS["cpu"])
            self._known = range(round, min(round + many, max(self.rounds, round + 1)))
            clients, seed = session.task.clients, session.seed
            self._sampled = self.sampler.cohorts(seed, self._known, clients)
            self._answered = answered_many(self._sampled, self.dropout, seed, self._known)
        place = round - self._known.start
        return self._sampled[place], self._answered[place]

    def cohort(self, round: int, draw: Draw | None = None) -> RoundCohort | None:
        """The clients of a round, with batches that are known or drawn here; None if no client answers."""
        sampled, ids = self.clients(round)
        if not len(ids):
            return None
        if draw is None and self._ahead:
            draw = self._batches(round, self.session.batches, Purpose.BATCH)
        return cohort_of(self.session, round, ids, sampled, draw)

    def large(self, round: int, ids: Ids, size: int) -> Draw:
        """One large batch of each of some clients in a round, the same however often it is asked for."""
        if not self._ahead or round not in self._known or self.clients(round)[1] is not ids:
            return large_batch(self.session.work(round), ids, size)
        return self._batches(round, one_batch(size), Purpose.LARGE_BATCH)

    def close(self) -> None:
        """Let go what has been drawn."""
        self._drawn.clear()
        self.session.large = self.session.large_alone

    @property
    def _ahead(self) -> bool:
        """Whether batches are drawn ahead."""
        return not self.session.group.several and self.session.batches.ahead

    def _batches(self, round: int, batches: Batches, purpose: Purpose) -> Draw:
        """The batches of a round, drawn with those of some rounds after it."""
        known = self._drawn.setdefault((purpose, batches.batch_size), {})
        if round not in known:
            known.clear()
            known.update(self._draw(round, batches, purpose))
        return known[round]

    def _draw(self, first: int, batches: Batches, purpose: Purpose) -> dict[int, Draw]:
        """The batches of a round and of some after it."""
        task, session = self.session.task, self.session
        limit = SAMPLES.get(task.store.type, CACHED)
        rounds, ids, samples = [first], [self.clients(first)[1]], 0
        for k in range(first, self._known.stop):
            mine = self.clients(k)[1]
            n = task.sizes[mine]
            steps = batches.steps_of(n, mine)
            samples += int(np.maximum(-(-steps // batches.per_epoch(n)) * n, steps).sum())
            if samples > limit:
                break
            if k > first and len(mine):
                rounds.append(k)
                ids.append(mine)
        lengths = [len(i) for i in ids]
        everyone = np.concatenate(ids)
        when = np.repeat(rounds, lengths)
        who, sizes = session.identities[everyone], task.sizes[everyone]
        many = batches.draw(session.seed, when, who, sizes, purpose, task.store, everyone)
        indices, counts = many.index.split(lengths), np.split(many.count, np.cumsum(lengths)[:-1])
        if many.even and len(set(lengths)) == 1:
            one = Draw(indices[0], counts[0])
            return {k: one.over(index) for k, index in zip(rounds, indices, strict=True)}
        return {
            k: _trimmed(index, count)
            for k, index, count in zip(rounds, indices, counts, strict=True)
        }


def _trimmed(index: Tensor, count: NDArray[np.int64]) -> Draw:
    """Batches without room that none of them needs."""
    steps, width = int((count > 0).sum(1).max()), int(count.max())
    return Draw(index[:, :steps, :width], count[:, :steps])
