"""The cohorts and batches of upcoming rounds, drawn many at a time: they are functions of the seed alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fairlead.data.batches import Draw
from fairlead.data.sampling import Dropouts, Sampler, answered_many
from fairlead.engine.exchange import RoundCohort, cohort_of
from fairlead.engine.session import Session

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
        self._drawn: dict[int, Draw] = {}

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
        session = self.session
        if draw is None and not session.group.several and session.batches.ahead:
            if round not in self._drawn:
                self._draw(round)
            draw = self._drawn.pop(round)
        return cohort_of(session, round, ids, sampled, draw)

    def _draw(self, first: int) -> None:
        """Draw the batches of a round and of some after it."""
        session = self.session
        task, batches = session.task, session.batches
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
        many = batches.draw(session.seed, when, who, sizes, device=task.store, rows=everyone)
        indices, counts = many.index.split(lengths), np.split(many.count, np.cumsum(lengths)[:-1])
        alike = many.even and len(set(lengths)) == 1
        first_draw = Draw(indices[0], counts[0])
        for k, index, count in zip(rounds, indices, counts, strict=True):
            if alike:
                self._drawn[k] = first_draw.over(index)
                continue
            steps, width = int((count > 0).sum(1).max()), int(count.max())
            self._drawn[k] = Draw(index[:, :steps, :width], count[:, :steps])
