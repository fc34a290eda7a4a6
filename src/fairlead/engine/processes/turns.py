"""Processes that share memory take turns: each runs the next chunk of a cohort as soon as it is free.

A cohort is cut into chunks by a fixed rule. A process runs the chunk with its own number, then takes others
until none is left, so one that is slowed down by other work runs fewer. The bytes of a run do not depend on
that: a chunk's sums are kept apart and added in the order of chunks, clients' rows are in memory that all
processes share, and torch's generator is seeded for every chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead.engine.api import Answer, Executor, Ids, Request
from fairlead.engine.processes.answers import Blanks, among, flat_sums, with_sums
from fairlead.engine.processes.rank_group import RankGroup
from fairlead.engine.processes.ranks import SharingRanks
from fairlead.engine.processes.shares import balanced, chunks
from fairlead.engine.session import Session
from fairlead.engine.state.store import ClientStore
from fairlead.task.task import Task


class TurnGroup(RankGroup):
    """Processes that all have the rows of all clients and know everything about an exchange."""

    ranks: SharingRanks

    def __init__(self, ranks: SharingRanks, task: Task) -> None:
        super().__init__(ranks, task, sharded=False)
        self.stores = False

    @property
    def total(self) -> Any:
        return None

    def wrote(self, ids: Ids) -> None:
        """Wait until the others have written their rows of this exchange."""
        if self.stores:
            self.ranks.wait()

    def part(self, store: ClientStore[Any]) -> Ids:
        self.ranks.wait()
        return np.array_split(store.touched, self.size)[self.ranks.rank]

    def bring_home(self, stores: list[ClientStore[Any]]) -> None:
        self.spread = None

    def take_rows(self, into: ClientStore[Any], rows: ClientStore[Any]) -> None:
        into.reserve(rows.touched)
        if self.first:
            into.take(rows, rows.touched)
        self.ranks.wait()

    def load_rows(self, store: ClientStore[Any], rows: dict[str, Tensor]) -> None:
        store.reserve(rows["ids"].numpy())
        if self.first:
            store.load(rows)
        self.ranks.wait()

    def saved(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Nothing: who runs a client is found out again in every round."""


class Turns(Executor):
    """Runs chunks of the clients with another executor as long as there are any, and sums all answers."""

    def __init__(self, session: Session, group: TurnGroup, executor: Executor) -> None:
        self.session, self.group, self.executor = session, group, executor
        self.blanks = Blanks(executor)
        self.turn = 0
        self._cut: tuple[int, Ids, list[Ids]] = (-1, np.zeros(0, np.int64), [])

    @property
    def remark(self) -> str:
        return self.executor.remark

    def execute(self, request: Request) -> Answer:
        places = self._chunks(request)
        self.turn += 1
        with torch.random.fork_rng(devices=[]):
            mine = {k: self._answer(request, k, places[k]) for k in self._taken(len(places))}
        found = self._joined(request, places, mine)
        self._make_room(request.clients, found)
        flat = {k: flat_sums(answer) for k, answer in mine.items()}
        if not len(next(iter(flat.values()))):
            return found
        return with_sums(found, self.group.ranks.sum_in_order(flat, len(places)))

    def _chunks(self, request: Request) -> list[Ids]:
        """The positions of the clients of each chunk."""
        round, ids, found = self._cut
        if ids is not request.clients or round != request.round:
            session, ids, size = self.session, request.clients, self.group.size
            cost = session.batches.cost(session.seed, request.round, ids, session.task.sizes[ids])
            if session.mode == "vmap":  # a matrix pays by its rows: one for each process
                share = balanced(cost, np.arange(len(ids)) % size, size)
                found = [np.flatnonzero(share == rank) for rank in range(size)]
            else:
                found = chunks(cost, size, session.task.dim * session.task.dtype.itemsize)
            self._cut = request.round, ids, found
        return found

    def _taken(self, count: int) -> Iterator[int]:
        """The chunks that this process runs: its own one first."""
        yield self.group.ranks.rank
        while count > self.group.size and (k := self.group.ranks.take(self.turn)) < count:
            yield k

    def _answer(self, request: Request, chunk: int, places: Ids) -> Answer:
        if not len(places):
            blank = self.blanks.of(request, request.clients[:1])
            rows = {n: among(t, places, len(request.clients)) for n, t in blank.rows.items()}
            return replace(blank, rows=rows)
        key = (self.session.seed, request.round, request.exchange, chunk)
        torch.default_generator.manual_seed(_number(*key))  # for dropout layers
        some = request.of(places, request.weights[torch.from_numpy(places)])
        found = self.executor.execute(some)
        rows = {n: among(t, places, len(request.clients)) for n, t in found.rows.items()}
        return replace(found, rows=rows)

    def _joined(self, request: Request, places: list[Ids], mine: dict[int, Answer]) -> Answer:
        """The answers of this process's chunks as one, with the counts of all processes."""
        up, chunk = np.zeros(len(request.clients)), np.zeros((len(places), 2))
        for k, answer in mine.items():
            up[places[k]] = answer.up
            for some, bits in answer.up_later:
                up[places[k][some]] += bits.reshape(-1).numpy()
            chunk[k] = answer.gradients, answer.nominal
        everything = self.group.ranks.total(np.concatenate([up, chunk.reshape(-1)]))
        up, chunk = everything[: len(up)], everything[len(up) :].reshape(chunk.shape)
        return replace(
            next(iter(mine.values())),
            count=len(request.clients),
            states=[state for answer in mine.values() for state in answer.states],
            residuals=[held for answer in mine.values() for held in answer.residuals],
            up=up.astype(np.int64),
            up_later=[],
            nominal=float(sum(chunk[:, 1].tolist())),
            gradients=int(chunk[:, 0].sum()),
        )

    def _make_room(self, ids: Ids, found: Answer) -> None:
        """Give the clients the same rows in all processes, before anything is written to them."""
        residuals = self.session.residuals
        for name, v in sorted((found.residuals[0][1] if found.residuals else {}).items()):
            residuals.of(name, v)
        for store in self.session.stores():
            store.reserve(ids)
            self.group.stores = True


def _number(*key: int) -> int:
    """A seed of its own for every key."""
    found = 0
    for word in key:
        found = (found * 6364136223846793005 + word + 1442695040888963407) % 2**63
    return found
