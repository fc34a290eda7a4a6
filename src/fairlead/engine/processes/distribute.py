"""The distribute engine: every process executes its share of each cohort, and all sum the answers.

All processes (ranks) run the same server program on the same numbers: cohorts, batches and noise are
functions of the seed, sums are one all-reduce of one flat vector per exchange, and a client's state is
on the rank that ran it last and moves only when another one runs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Algorithm
from fairlead.data.batches import Batches
from fairlead.describe import counted
from fairlead.engine import autotune
from fairlead.engine.api import Answer, Executor, Ids, Request
from fairlead.engine.executors import unstackable
from fairlead.engine.group import Group
from fairlead.engine.precision import check_half
from fairlead.engine.processes.ranks import Ranks, TorchRanks
from fairlead.engine.processes.shares import balanced, move_rows
from fairlead.engine.session import Execution, Session
from fairlead.engine.simulate import Preparation, Simulate
from fairlead.engine.state.store import ClientStore, Keep
from fairlead.errors import FairleadError, unknown
from fairlead.task.evaluation import Spread
from fairlead.task.shard import holding
from fairlead.task.task import Task


@dataclass(frozen=True)
class Distributed(Simulate):
    """How to run on several processes, started by torchrun or anything else that sets RANK and WORLD_SIZE.
    (On one machine without GPUs, `train(workers=…)` starts them itself.)

    data: "replicate" (every rank can run every client), "shard" (a rank holds the data of its own
        clients, and runs only these), or "auto" to shard data that do not fit on a device.
    sums: "exact", or "bfloat16" to halve the bytes of sums.
    timeout: seconds after which a rank that does not answer counts as lost.
    backend: of torch.distributed; by default NCCL on GPUs and gloo elsewhere.
    ranks: the processes, if they are not torch.distributed's.
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
            raise FairleadError(f"timeout is {self.timeout}: must be a positive number of seconds")

    def open(
        self,
        task: Task,
        method: Algorithm[Any, Any],
        batches: Batches,
        weights: NDArray[np.float64],
        seed: int,
        most: int | None = None,
    ) -> Session:
        if self.precision == "bfloat16":
            check_half(task)
        ranks = self.ranks or TorchRanks(task.device, self.backend, self.timeout)
        group = RankGroup(ranks, task, _shards(self, ranks, task))
        if group.sharded:
            task = holding(task, group.own)
        keep = Keep(task.clients, task.device, self.memories, most, ranks.size)
        session = Session(task, method, batches, weights, seed, keep, group)
        session.remark = counted(ranks.size, "rank")
        return session

    def prepare(self, session: Session, ids: Ids, rounds: int) -> None:
        group = session.group
        assert isinstance(group, RankGroup)
        share = group.share(ids, session.task.sizes[ids].astype(float))
        mine = ids[share == group.ranks.rank]
        if not len(mine):
            mine = group.own[:1] if group.sharded else ids[:1]
        whole = session.batches.draw(
            session.seed, 0, session.identities[ids], session.task.sizes[ids], rows=ids
        )
        here = Preparation(self, session, mine, rounds)
        here.shape = tuple(whole.index.shape)
        group.ranks.wait()
        here.begin()
        if session.execution is None:
            problem = here.problem
            why = unstackable(session.task, whole)  # of the whole cohort, not only this share
            if problem.mode == "auto" and why:
                found = autotune.chosen(replace(problem, mode="loop"))
                found = replace(found, why=f"loop: {why}")
            else:
                found = autotune.chosen(problem)  # all ranks measure at once, as they will run
            shared = group.tell(found.saved() if group.first else None)
            session.use(Execution.read(shared))
        session.executor = Shared(session, group, here.executor(), self.sums == "bfloat16")


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

    def part(self, ids: Ids) -> Ids:
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


class Shared(Executor):
    """Runs this rank's share of the clients with another executor and sums the answers over ranks."""

    def __init__(
        self, session: Session, group: RankGroup, executor: Executor, half_sums: bool
    ) -> None:
        self.session, self.group, self.executor = session, group, executor
        self.half_sums = half_sums
        self._like: dict[Any, Answer] = {}
        self._here: tuple[int, Ids, Ids] = (-1, np.zeros(0, np.int64), np.zeros(0, np.int64))

    @property
    def remark(self) -> str:
        return self.executor.remark

    def execute(self, request: Request) -> Answer:
        places = self._places(request)
        count = len(request.clients)
        if len(places):
            at = torch.from_numpy(places).to(request.weights.device)
            mine = self.executor.execute(request.of(places, request.weights[at]))
        else:
            mine = self._blank(request)
        up = np.zeros(count, np.int64)
        up[places] = mine.up
        rows = {name: self._among(t, places, count) for name, t in mine.rows.items()}
        later = [(places[some], bits) for some, bits in mine.up_later]
        return self._summed(replace(mine, count=count, rows=rows, up=up, up_later=later))

    def _places(self, request: Request) -> Ids:
        """The positions of the clients that this rank runs, after moving their rows here."""
        round, ids, places = self._here
        if ids is not request.clients or round != request.round:
            session, ids = self.session, request.clients
            sizes = session.task.sizes[ids]
            cost = session.batches.cost(session.seed, request.round, ids, sizes)
            share = self.group.share(ids, cost)
            self.group.bring(session.stores(), ids, share)
            places = np.flatnonzero(share == self.group.ranks.rank)
            self._here = request.round, ids, places
        return places

    def _among(self, rows: Tensor, places: Ids, count: int) -> Tensor:
        """This rank's rows among those of the others, which are zero here: their sum is all of them."""
        whole = rows.new_zeros((count, rows.shape[-1]))
        whole[torch.from_numpy(places).to(rows.device)] = rows
        return whole

    def _blank(self, request: Request) -> Answer:
        """The zeros that a rank without clients adds, shaped like a discarded answer of one client."""
        shapes = [getattr(v, "shape", ()) for v in request.broadcast.values()]
        key = (request.program, request.exchange, tuple(shapes), len(request.measures))
        if key not in self._like:
            one = self.group.own[:1] if self.group.sharded else request.clients[:1]
            some = replace(request, clients=one, weights=request.weights[:1])
            found = self.executor.execute(some)
            for _, held in found.residuals:
                for name, v in held.items():
                    self.session.residuals.of(name, v)
            self._like[key] = found
        like = self._like[key]
        return Answer(
            0,
            kind=like.kind,
            sums={name: torch.zeros_like(v) for name, v in like.sums.items()},
            rows={name: v[:0] for name, v in like.rows.items()},
            buffers=None if like.buffers is None else torch.zeros_like(like.buffers),
            measured={
                measure: {n: torch.zeros_like(v) for n, v in sums.items()}
                for measure, sums in like.measured.items()
            },
        )

    def _summed(self, mine: Answer) -> Answer:
        """The sums over all ranks, in one all-reduce."""
        parts = {("sum", name): t for name, t in mine.sums.items()}
        parts |= {("rows", name): t for name, t in mine.rows.items()}
        if mine.buffers is not None:
            parts["buffers", ""] = mine.buffers
        for measure, sums in mine.measured.items():
            parts |= {(measure, name): t for name, t in sums.items()}
        if not parts:
            return mine
        flat = torch.cat([t.reshape(-1) for t in parts.values()])
        ranks = self.group.ranks
        if self.half_sums and ranks.size > 1:
            flat = ranks.sum_(flat.bfloat16()).to(flat.dtype)
        else:
            flat = ranks.sum_(flat)
        pieces = flat.split([t.numel() for t in parts.values()])
        found = {
            key: piece.reshape(t.shape)
            for (key, t), piece in zip(parts.items(), pieces, strict=True)
        }
        return replace(
            mine,
            sums={name: found["sum", name] for name in mine.sums},
            rows={name: found["rows", name] for name in mine.rows},
            buffers=found.get(("buffers", "")),
            measured={
                measure: {name: found[measure, name] for name in sums}
                for measure, sums in mine.measured.items()
            },
        )


def _shards(setting: Distributed, ranks: Ranks, task: Task) -> bool:
    """Whether each rank holds only the data of its own clients."""
    if setting.data != "auto" or ranks.size == 1:
        return setting.data == "shard" and ranks.size > 1
    wants = task.keep == "auto" and task.device.type == "cuda" and task.store != task.device
    return bool(ranks.most([int(wants)])[0])
