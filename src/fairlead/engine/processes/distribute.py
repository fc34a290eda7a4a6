"""The distribute engine: every process runs its share of each cohort, and all sum what came back.

All processes (ranks) run the same server program on the same numbers: cohorts, batches and noise are
functions of the seed, sums are one all-reduce of one flat vector an exchange, and a client's memory
lies with the rank that ran it last and moves only when another one runs it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Algorithm, Memory, Replies, Upload
from fairlead.data.batches import Batches, Draw
from fairlead.engine.autotune import unstackable
from fairlead.engine.clients import Single
from fairlead.engine.cohort import Ids, Program, SimulatedCohort
from fairlead.engine.state.residuals import Mail, Residuals
from fairlead.engine.processes.ranks import Ranks, TorchRanks
from fairlead.engine.replies import Collected, bits_of, split_reply
from fairlead.engine.processes.shares import balanced, move_rows
from fairlead.engine.simulate import Session, Simulate
from fairlead.engine.state.store import ClientStore
from fairlead.errors import FairleadError, unknown
from fairlead.task.evaluation import Spread
from fairlead.gradients.deferred import settled
from fairlead.task.task import Task

U = TypeVar("U", bound=Upload)

MOVED = 64 << 20
"""Bytes of rows on their way at a time, when all are brought together."""


@dataclass(frozen=True)
class Distributed(Simulate):
    """How to run on several processes, started by torchrun or anything else that sets RANK and WORLD_SIZE.
    (On one machine without GPUs, `train(workers=…)` starts them itself.)

    data: "replicate" (every rank can run every client), "shard" (a rank holds the data of its own
        clients, and runs these alone), or "auto" to shard what no device can hold.
    sums: "exact", or "bfloat16" to send sums in half the bytes.
    timeout: seconds after which a rank that does not answer is taken for lost.
    backend: of torch.distributed; NCCL on GPUs and gloo elsewhere by default.
    ranks: the processes, where they are others than torch.distributed's.
    """

    data: Literal["auto", "replicate", "shard"] = "auto"
    sums: Literal["exact", "bfloat16"] = "exact"
    timeout: float = 600.0
    backend: str | None = None
    ranks: Ranks | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data not in ("auto", "replicate", "shard"):
            raise unknown("way to spread data", self.data, ["auto", "replicate", "shard"])
        if self.sums not in ("exact", "bfloat16"):
            raise unknown("kind of sums", self.sums, ["exact", "bfloat16"])
        if not self.timeout > 0:
            raise FairleadError(f"timeout is {self.timeout}: give a positive number of seconds")

    def open(
        self,
        task: Task,
        algorithm: Algorithm[Any, Any],
        batches: Batches,
        weights: NDArray[np.float64],
        seed: int,
        most: int | None = None,
    ) -> Session:
        ranks = self.ranks or TorchRanks(task.device, self.backend, self.timeout)
        return DistributedSession(self, ranks, task, algorithm, batches, weights, seed, most)


class DistributedSession(Session):
    """One rank's part of a run."""

    setting: Distributed
    alone = False

    def __init__(
        self,
        setting: Distributed,
        ranks: Ranks,
        task: Task,
        algorithm: Algorithm[Any, Any],
        batches: Batches,
        weights: NDArray[np.float64],
        seed: int,
        most: int | None = None,
    ) -> None:
        self.ranks = ranks
        clients = np.arange(task.clients)
        self.owner = clients % ranks.size
        self.pinned = _shards(setting, ranks, task)
        self.first, self.crowd, mine = ranks.first, ranks.size, None
        self.remark = f"{ranks.size} ranks"
        task = copy.copy(task)
        if self.pinned:
            self.owner = balanced(task.sizes.astype(float), self.owner, ranks.size)
            mine = self.owner == ranks.rank
            if ranks.size > task.clients or task.flip is not None:
                raise FairleadError(
                    "data can be spread over at most as many ranks as there are clients, and not for "
                    'saddle tasks: use fl.Distributed(data="replicate")'
                )
            task.hold(np.flatnonzero(mine))
        positions = None if mine is None else np.flatnonzero(np.repeat(mine, task.sizes))
        task.spread = Spread(ranks, positions)
        self.touched = np.zeros(task.clients, dtype=bool)
        self._known: dict[Any, Collected] = {}
        self._pending: list[tuple[int, Ids, Ids, float]] = []
        self._counted = 0
        super().__init__(setting, task, algorithm, batches, weights, seed, most)

    # -- what all ranks do alike ----------------------------------------------------------------

    def prepare(self, ids: Ids) -> None:
        share = self.share(ids, self.task.sizes[ids].astype(float))
        mine = ids[share == self.ranks.rank] if (share == self.ranks.rank).any() else ids[:1]
        whole = self.batches.draw(self.seed, 0, ids, self.task.sizes[ids])
        self.whole = tuple(whole.index.shape)
        why = unstackable(self.task, whole)
        if self.mode == "auto" and why:  # of the whole cohort, also where a share of it would do
            self.mode, self.report = "loop", f"loop: {why}"
        self.ranks.wait()
        super().prepare(mine)  # all measure at once, as they will run
        how = self.ranks.tell(self.how() if self.ranks.first else None)
        if not self.ranks.first:
            self.take(how)
            torch.set_num_threads(self.operator_threads)
            super().prepare(mine)

    def take(self, how: dict[str, Any]) -> None:
        super().take(how)
        self._counted = self.counters.gradients  # what was restored is everyone's

    def continue_from(self, other: Session) -> None:
        """Take over from another run, of whose rows all lie here or those of this rank's clients."""
        if isinstance(other, DistributedSession):
            self.touched |= other.touched
            if other.crowd == self.crowd and not self.pinned:
                self.owner = other.owner.copy()
        if self.store is not None and other.store is not None:
            self._take_rows(self.store, other.store)
        for name, rows in other.residuals.stores.items():
            self._take_rows(self.residuals.of(name, rows.start.v), rows)
        self.continue_counts(other)
        self._counted = self.counters.gradients

    def _take_rows(self, into: ClientStore[Any], rows: ClientStore[Any]) -> None:
        ids = rows.touched
        self.touched[ids] = True
        for part in _parts(rows, ids[self.owner[ids] == self.ranks.rank]):
            into.write(part, rows.read(part))

    def share(self, ids: Ids, cost: NDArray[np.float64]) -> Ids:
        """The rank of every client of a cohort."""
        if self.pinned:
            return self.owner[ids]
        return balanced(cost, self.owner[ids], self.ranks.size)

    def settle(self) -> None:
        """Sum what every rank counted for itself: gradients, bits, ways of clients."""
        if self.ranks.size == 1:
            self._pending.clear()
            return
        mine = [self.counters.gradients - self._counted]
        flat = np.concatenate([[*mine], *([*up, nominal] for _, _, up, nominal in self._pending)])
        total = self.ranks.total(flat.astype(np.float64))
        self.counters.gradients = self._counted = self._counted + int(total[0])
        first = 1
        for entry, places, up, nominal in self._pending:
            last = first + len(up)
            self.ledger.amend(
                entry, places, total[first:last].astype(np.int64) - up, total[last] - nominal
            )
            first = last + 1
        self._pending.clear()
        if self.measure_drift and self.agree(self.walks.told)[0]:
            self.walks.reduce(self.task.dim, self.ranks.sum_, self.buffers)

    def agree(self, *asked: bool) -> list[bool]:
        return [bool(v) for v in self.ranks.most([int(a) for a in asked])]

    def note(self, entry: int, places: Ids, up: Ids, nominal: float) -> None:
        """Bits of an exchange that other ranks do not know yet."""
        if self.ranks.size > 1:
            self._pending.append((entry, places, up, nominal))

    # -- rows -----------------------------------------------------------------------------------

    def bring(self, ids: Ids, share: Ids) -> None:
        """Have the rows of a cohort's clients lie with the ranks that run them."""
        moved = (self.owner[ids] != share) & self.touched[ids]
        stores = self.stores()
        if moved.any() and stores:
            move_rows(self.ranks, stores, ids[moved], self.owner[ids][moved], share[moved])
        if not self.pinned:
            self.owner[ids] = share
        self.touched[ids] = True

    def bring_home(self) -> None:
        """Have all rows lie with the first rank, when the others are about to end. Whose clients they
        are is still known, for a run that goes on from this one."""
        for store in self.stores():
            for part in _parts(store, np.flatnonzero(self.touched)):
                move_rows(self.ranks, [store], part, self.owner[part], np.zeros_like(part))
        self.task.spread = None

    def places(self) -> dict[str, Tensor]:
        count = torch.tensor([self.ranks.size])
        return {"owner": torch.from_numpy(self.owner.copy()), "count": count}

    def place(self, saved: dict[str, Tensor]) -> None:
        if saved and int(saved["count"]) == self.ranks.size and not self.pinned:
            self.owner = saved["owner"].numpy().copy()

    def load_rows(self, store: Any, rows: dict[str, Tensor]) -> None:
        ids = rows["ids"].numpy()
        self.touched[ids] = True
        mine = torch.from_numpy(np.flatnonzero(self.owner[ids] == self.ranks.rank))
        store.load({name: t[mine.to(t.device)] for name, t in rows.items()})

    def cohort(self, round: int, ids: Ids, sampled: Ids | None = None) -> DistributedCohort:
        return DistributedCohort(self, round, ids, ids if sampled is None else sampled)

    # -- exchanges ------------------------------------------------------------------------------

    def blank(
        self, key: Any, program: Program, down: dict[str, Tensor], at: SimulatedCohort
    ) -> Collected:
        """What a rank without clients adds: zeros in the shapes that others have. They are found once, by
        running the program for a client whose results are thrown away."""
        if key not in self._known:
            ids = at.ids[:1]
            draw = self.batches.draw(self.seed, at.round, ids, self.task.sizes[ids])
            if self.pinned:  # it has no data of others: any of its own will do
                own = np.flatnonzero(self.owner == self.ranks.rank)[:1]
                draw, ids = (
                    Draw(torch.zeros(1, 1, 1, dtype=torch.int64), np.ones((1, 1), np.int64)),
                    own,
                )
            aside = Residuals(self.where)
            mail = Mail(aside, self.seed, at.round, at.exchange, through_bytes=False)
            memory = None if self.store is None else self.store.start
            client = Single(self.work(at.round), int(ids[0]), draw, memory, mail)
            upload, _ = split_reply(settled(program(client, **down)), 1, down)
            found = Collected(np.zeros(0, np.int64), kind=type(upload))
            found.sums = {name: v.reshape(-1) for name, v in upload.tensors().items()}
            moved = client.moved_buffers()
            found.buffers = None if moved is None or not moved.numel() else moved
            for name in aside.stores:
                self.residuals.read(name, ids[:0], aside.stores[name].start.v)
            self._known[key] = found
        like = self._known[key]
        sums = {name: torch.zeros_like(v) for name, v in like.sums.items()}
        buffers = None if like.buffers is None else torch.zeros_like(like.buffers)
        return replace(like, sums=sums, buffers=buffers, up=np.zeros(0, np.int64), nominal=0.0)


class DistributedCohort(SimulatedCohort):
    """A round's clients, of which this rank runs its share."""

    session: DistributedSession

    def __init__(self, session: DistributedSession, round: int, ids: Ids, sampled: Ids) -> None:
        super().__init__(session, round, ids, sampled)
        self.session = session

    @cached_property
    def places(self) -> Ids:
        """Which of the clients this rank runs; their rows are brought here."""
        session, ids = self.session, self.ids
        sizes = session.task.sizes[ids]
        share = session.share(ids, session.batches.cost(session.seed, self.round, ids, sizes))
        session.bring(ids, share)
        return np.flatnonzero(share == session.ranks.rank)

    @property
    def here(self) -> Ids:
        return self.ids[self.places]

    @property
    def here_weights(self) -> Tensor:
        return self.weights[torch.from_numpy(self.places).to(self.weights.device)]

    @property
    def longest(self) -> int:
        session = self.session
        sizes = session.task.sizes[self.ids]
        return session.batches.longest(session.seed, self.round, self.ids, sizes)

    def run(self, program: Callable[..., U | tuple[U, Memory]], **broadcast: Tensor) -> Replies[U]:
        session = self.session
        named = getattr(program, "__qualname__", repr(program))
        key = (named, self.exchange, tuple((name, t.shape) for name, t in broadcast.items()))
        if len(self.here):
            found = self.collect(program, broadcast)
        else:
            found = session.blank(key, program, broadcast, self)
        parts = list(found.sums.values()) + ([] if found.buffers is None else [found.buffers])
        total = _summed(session, parts)
        sums = dict(zip(found.sums, total, strict=False))
        buffers = None if found.buffers is None else total[-1]
        up = np.zeros(len(self.ids), np.int64)
        up[self.places] = found.up
        self.enter(sum(map(bits_of, broadcast.values())), up, found.nominal, buffers)
        answered = np.searchsorted(self.sampled, self.ids)
        entry = len(session.ledger.exchanges) - 1
        session.note(entry, answered, up, found.nominal)
        return Replies(found.kind(**sums), len(self.ids))


def _parts(store: ClientStore[Any], ids: Ids) -> list[Ids]:
    """Clients, some at a time, whose rows are not too many bytes together."""
    size = max(1, sum(t.nbytes for t in store.start.tensors().values()))
    step = max(1, MOVED // size)
    return [ids[k : k + step] for k in range(0, len(ids), step)]


def _summed(session: DistributedSession, parts: list[Tensor]) -> list[Tensor]:
    """All-reduce several tensors as one."""
    if not parts:
        return []
    flat = torch.cat([t.reshape(-1) for t in parts])
    if session.setting.sums == "bfloat16" and session.ranks.size > 1:
        flat = session.ranks.sum_(flat.bfloat16()).to(flat.dtype)
    else:
        flat = session.ranks.sum_(flat)
    cut = flat.split([t.numel() for t in parts])
    return [piece.reshape(t.shape) for piece, t in zip(cut, parts, strict=True)]


def _shards(setting: Distributed, ranks: Ranks, task: Task) -> bool:
    """Whether each rank is to hold the data of its own clients only."""
    if setting.data != "auto" or ranks.size == 1:
        return setting.data == "shard" and ranks.size > 1
    wants = task.keep == "auto" and task.device.type == "cuda" and task.store != task.device
    return bool(ranks.most([int(wants)])[0])
