"""The ranks of a run as its session sees them: who has which client's rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.engine.api import Ids
from fairlead.engine.group import Group
from fairlead.engine.processes.ranks import Ranks
from fairlead.engine.processes.shares import balanced, move_rows
from fairlead.engine.state.store import ClientStore
from fairlead.errors import FairleadError
from fairlead.task.evaluation import Spread
from fairlead.task.task import Task


class RankGroup(Group):
    """The ranks of a run, and which rank has which client's rows."""

    def __init__(self, ranks: Ranks, task: Task, sharded: bool) -> None:
        self.ranks, self.sharded = ranks, sharded
        self.size, self.first = ranks.size, ranks.first
        self.owner = np.arange(task.clients) % ranks.size
        self.held = np.zeros(task.clients, dtype=bool)
        """The clients that have a row on some rank."""
        positions = None
        if sharded:
            if ranks.size > task.clients or task.flip is not None:
                raise FairleadError(
                    "data cannot be sharded over more ranks than clients, or for saddle tasks: use "
                    'fl.Distributed(data="replicate")'
                )
            self.owner = balanced(task.sizes.astype(float), self.owner, ranks.size)
            mine = self.owner == ranks.rank
            positions = np.flatnonzero(np.repeat(mine, task.sizes))
        self.spread = Spread(ranks, positions)

    @property
    def own(self) -> Ids:
        """The clients of this rank."""
        return np.flatnonzero(self.owner == self.ranks.rank)

    def share(self, ids: Ids, cost: NDArray[np.float64]) -> Ids:
        """The rank that runs each client of a cohort."""
        if self.sharded:
            return self.owner[ids]
        return balanced(cost, self.owner[ids], self.ranks.size)

    def bring(self, stores: list[ClientStore[Any]], ids: Ids, share: Ids) -> None:
        """Move the rows of a cohort's clients to the ranks that run them."""
        moved = (self.owner[ids] != share) & self.held[ids]
        if moved.any() and stores:
            move_rows(self.ranks, stores, ids[moved], self.owner[ids][moved], share[moved])
        if not self.sharded:
            self.owner[ids] = share

    def bring_home(self, stores: list[ClientStore[Any]]) -> None:
        """Move all rows to rank 0 before the others end; owners are kept for a run that resumes this one."""
        for store in stores:
            for part in store.parts(np.flatnonzero(self.held)):
                move_rows(self.ranks, [store], part, self.owner[part], np.zeros_like(part))
        self.spread = None

    @property
    def total(self) -> Any:
        return self.ranks.total if self.ranks.size > 1 else None

    def agree(self, *asked: bool) -> list[bool]:
        return [bool(v) for v in self.ranks.most([int(a) for a in asked])]

    def evaluates(self, ids: Ids) -> Ids:
        if self.spread is None:  # the others have ended
            return ids
        if self.sharded:
            return ids[self.owner[ids] == self.ranks.rank]
        return ids[self.ranks.rank :: self.ranks.size]

    def check_alike(self, x: Tensor) -> None:
        width = torch.int32 if x.element_size() == 4 else torch.int64
        bits = x.detach().contiguous().view(width).to(torch.int64)
        digest = int((bits * (torch.arange(len(bits), device=x.device) % 1021 + 1)).sum()) >> 8
        most, least = self.ranks.most([digest, -digest])
        if most != -least:
            raise FairleadError(
                "the processes of this run have different models: a method must compute the same in all of "
                "them, so draw random numbers only with cohort.noise and client.noise"
            )

    def tell(self, value: Any) -> Any:
        return self.ranks.tell(value)

    def follow(self, other: Group) -> None:
        if isinstance(other, RankGroup):
            self.held |= other.held
            if other.size == self.size and not self.sharded:
                self.owner = other.owner.copy()

    def take_rows(self, into: ClientStore[Any], rows: ClientStore[Any]) -> None:
        ids = rows.touched
        self.held[ids] = True
        into.take(rows, ids[self.owner[ids] == self.ranks.rank])

    def load_rows(self, store: ClientStore[Any], rows: dict[str, Tensor]) -> None:
        ids = rows["ids"].numpy()
        self.held[ids] = True
        mine = torch.from_numpy(np.flatnonzero(self.owner[ids] == self.ranks.rank))
        store.load({name: t[mine.to(t.device)] for name, t in rows.items()})

    def wrote(self, ids: Ids) -> None:
        self.held[ids] = True

    def saved(self) -> dict[str, Tensor]:
        count = torch.tensor([self.ranks.size])
        return {"owner": torch.from_numpy(self.owner.copy()), "count": count}

    def restore(self, saved: dict[str, Tensor]) -> None:
        if saved and int(saved["count"]) == self.ranks.size and not self.sharded:
            self.owner = saved["owner"].numpy().copy()
