"""The distribute engine: every process executes its share of each cohort, and all sum the answers.

All processes (ranks) run the same server program on the same numbers: cohorts, batches and noise are
functions of the seed, sums are one all-reduce of one flat vector per exchange, and a client's state is
on the rank that ran it last and moves only when another one runs it. Processes that share memory take turns
instead (see `turns`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fairlead.core.method import Algorithm
from fairlead.data.batches import Batches, Draw
from fairlead.describe import counted
from fairlead.engine import autotune
from fairlead.engine.api import Answer, Executor, Ids, Request
from fairlead.engine.executors import unstackable
from fairlead.engine.precision import check_half
from fairlead.engine.processes.answers import Blanks, among, flat_sums, with_sums
from fairlead.engine.processes.rank_group import RankGroup
from fairlead.engine.processes.ranks import Ranks, SharingRanks, TorchRanks
from fairlead.engine.processes.turns import TurnGroup, Turns
from fairlead.engine.session import Execution, Session
from fairlead.engine.simulate import Preparation, Simulate
from fairlead.engine.state.store import Keep
from fairlead.errors import FairleadError, unknown
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

    Without torchrun it is one process, so that a script runs anywhere:

    >>> import fairlead as fl
    >>> run = fl.train(fl.problems.theorem2(), fl.FedAvg(lr=0.1), rounds=2, steps=3, engine=Distributed())
    >>> run.session.group.size
    1
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
        if isinstance(ranks, SharingRanks) and not group.sharded and self.sums == "exact":
            group = TurnGroup(ranks, task)
            keep = replace(keep, sharing=1, files=ranks.shared_file)
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
        idle = group.sharded and mine[0] not in ids
        known = _stand_in(session, whole, mine) if idle else None
        here = Preparation(self, session, mine, rounds, known)
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
        session.executor = (
            Turns(session, group, here.executor())
            if isinstance(group, TurnGroup)
            else Shared(session, group, here.executor(), self.sums == "bfloat16")
        )


class Shared(Executor):
    """Runs this rank's share of the clients with another executor and sums the answers over ranks."""

    def __init__(
        self, session: Session, group: RankGroup, executor: Executor, half_sums: bool
    ) -> None:
        self.session, self.group, self.executor = session, group, executor
        self.half_sums = half_sums
        self.blanks = Blanks(executor)
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
            one = self.group.own[:1] if self.group.sharded else request.clients[:1]
            known = request
            if one[0] not in request.clients:
                other = request.draw_of(request.clients[:1])
                known = replace(request, draw_of=lambda ids: _stand_in(self.session, other, ids))
            mine = self.blanks.of(known, one)
        up = np.zeros(count, np.int64)
        up[places] = mine.up
        rows = {name: among(t, places, count) for name, t in mine.rows.items()}
        later = [(places[some], bits) for some, bits in mine.up_later]
        whole = replace(mine, count=count, rows=rows, up=up, up_later=later)
        return self._summed(whole, self.half_sums and not request.measuring)

    def _places(self, request: Request) -> Ids:
        """The positions of the clients that this rank runs, after moving their rows here."""
        round, ids, places = self._here
        if ids is not request.clients or round != request.round:
            session, ids = self.session, request.clients
            sizes = session.task.sizes[ids]
            cost = sizes.astype(float)
            if not request.measuring:
                cost = session.batches.cost(session.seed, request.round, ids, sizes)
            share = self.group.share(ids, cost)
            self.group.bring(session.stores(), ids, share)
            places = np.flatnonzero(share == self.group.ranks.rank)
            self._here = request.round, ids, places
        return places

    def _summed(self, mine: Answer, half: bool) -> Answer:
        """The sums over all ranks, in one all-reduce."""
        flat = flat_sums(mine)
        if not len(flat):
            return mine
        ranks = self.group.ranks
        if half and ranks.size > 1:
            flat = ranks.sum_(flat.bfloat16()).to(flat.dtype)
        else:
            flat = ranks.sum_(flat)
        return with_sums(mine, flat)


def _stand_in(session: Session, like: Draw, client: Ids) -> Draw:
    """Batches of a client that has none in this round, shaped like the first of another's."""
    size = int(session.task.sizes[client[0]])
    return Draw(like.index[:1] % size, like.count[:1])


def _shards(setting: Distributed, ranks: Ranks, task: Task) -> bool:
    """Whether each rank holds only the data of its own clients."""
    if setting.data != "auto" or ranks.size == 1:
        return setting.data == "shard" and ranks.size > 1
    wants = task.keep == "auto" and task.device.type == "cuda" and task.store != task.device
    return bool(ranks.most([int(wants)])[0])
