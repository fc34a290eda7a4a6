"""Everything that lives for a run: client states, buffers, accounts, and how the run is executed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Algorithm
from fairlead.core.records import Memory
from fairlead.data.batches import Batches, Draw
from fairlead.engine.accounting import Accounts
from fairlead.engine.api import Executor, Ids
from fairlead.engine.captured_evaluation import CapturedEvaluation
from fairlead.engine.group import Group
from fairlead.engine.heap import Heap
from fairlead.engine.precision import restore_units
from fairlead.engine.state.outbox import Outbox, Residuals
from fairlead.engine.state.store import ClientStore, Keep
from fairlead.engine.state.versions import Versions
from fairlead.engine.work import Work, large_batch
from fairlead.errors import FairleadError
from fairlead.gradients.form import Form
from fairlead.gradients.oracle import Gradients
from fairlead.gradients.products import LayersByOneDNN
from fairlead.probe.base import Measure, Sums
from fairlead.task.task import Task

MOST_WORKERS = 4096
"""More processes than any run has."""


@dataclass(frozen=True)
class Execution:
    """How a run is executed: settled before its first gradient, and kept in its checkpoints.

    mode: "vmap" (chunks of clients as matrices), "loop" (one client at a time) or "debug".
    room: how many clients fit in memory together. form: how gradients are computed.
    """

    mode: Literal["vmap", "loop", "debug"]
    room: int
    form: Form
    why: str
    workers: int = 1

    def saved(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def read(cls, saved: Any) -> Execution:
        """From what `saved` gave."""
        try:
            found = cls(**{**saved, "form": Form.read(saved["form"])})
            right = found.mode in ("vmap", "loop", "debug") and isinstance(found.why, str)
            if right and min(found.room, found.workers) >= 1 and found.workers <= MOST_WORKERS:
                return found
        except (TypeError, KeyError):
            pass
        raise FairleadError(
            "a checkpoint does not say how its run was executed: start the run again"
        )


class States:
    """What clients keep between rounds. Reading makes no rows."""

    def __init__(self, start: Memory | None, keep: Keep) -> None:
        self.start, self.keep = start, keep
        self.store: ClientStore[Any] | None = None if start is None else keep.store(start)

    def read(self, ids: Ids) -> Any:
        """The states of some clients, with a leading client axis; None if the method keeps none."""
        return None if self.store is None else self.store.read(ids)

    def one(self, client: int) -> Any:
        """The state of one client."""
        return None if self.store is None else self.store.view(client).map(torch.clone)

    def view(self, client: int) -> Any:
        """The state of one client, not copied where that is possible: to be read only, before the next
        write."""
        return None if self.store is None else self.store.view(client)

    def write(self, ids: Ids, memory: Memory) -> None:
        """Keep new states."""
        if self.store is None:
            raise FairleadError(
                "a client program returned a memory, but the method's `memory` starts none"
            )
        self.store.write(ids, memory)

    @property
    def touched(self) -> Ids:
        """The clients whose state was ever written."""
        return np.zeros(0, np.int64) if self.store is None else self.store.touched


class Session:
    """A run's states, buffers and accounts, and the cohorts made from them."""

    def __init__(
        self,
        task: Task,
        method: Algorithm[Any, Any],
        batches: Batches,
        weights: NDArray[np.float64],
        seed: int,
        keep: Keep,
        group: Group,
    ) -> None:
        self.task, self.method, self.batches = task, method, batches
        self.weights, self.seed, self.keep, self.group = weights, seed, keep, group
        self.identities = np.arange(task.clients)
        self.noise_seed = seed
        """Of the noise that the server adds; a deployed server has one of its own."""
        x, self.buffers = task.start(seed)
        self.server_bytes = sum(t.nbytes for t in method.init(x).tensors().values())
        self.states = States(method.memory(x), keep)
        self.residuals = Residuals(keep)
        self.versions = Versions(task.clients, task.device)
        self.accounts = Accounts()
        self.measures: tuple[Measure, ...] = ()
        """Those taken in the present round."""
        self.measured: Sums = {}
        self.programs: dict[str, Callable[..., Any]] = {}
        """Client programs of measures, by name."""
        self.gradients = Gradients(task)
        self.execution: Execution | None = None
        self.executor: Executor | None = None
        self.evaluation: CapturedEvaluation | None = None
        self.remark = self.precision = ""
        self.says: Callable[[str], None] = lambda text: None
        """Shows what is being prepared."""
        self.large: Callable[[int, Ids, int], Draw] = self.large_alone
        """One large batch of each of some clients in a round."""
        self._weighed: tuple[Ids, tuple[float, Tensor]] | None = None
        self.units: dict[str, Any] = {}
        self.heap = Heap()
        self.operator_threads = torch.get_num_threads()

    # -- how it is executed ---------------------------------------------------------------------

    @property
    def mode(self) -> str:
        """The mode it is executed in."""
        return "" if self.execution is None else self.execution.mode

    @property
    def settled(self) -> Execution:
        """How it is executed, once that is settled."""
        assert self.execution is not None, "the session is not prepared"
        return self.execution

    @property
    def report(self) -> str:
        """How the run is executed, and why."""
        why = "" if self.execution is None else self.execution.why
        more = "" if self.executor is None else self.executor.remark
        return "; ".join(filter(None, (why, self.precision, more, self.remark)))

    def use(self, execution: Execution) -> None:
        """Execute in this way from now on. Equal bytes need equal operators and sums; where the number of
        processes differs sums do anyway, and the way is settled anew."""
        if execution.workers == self.group.size:
            self.execution = execution
            self.gradients = Gradients(self.task, execution.form)

    def program(self, name: str) -> Callable[..., Any]:
        """The client program with this name, of the method or of a measure."""
        return self.programs.get(name) or self.method.program(name)

    # -- rounds ---------------------------------------------------------------------------------

    def cohort_weights(self, ids: Ids) -> tuple[float, Tensor]:
        """The weight of some clients among all, and their weights in means over them."""
        if self._weighed is None or self._weighed[0] is not ids:
            share = float(self.weights[ids].sum())
            weights = torch.from_numpy(self.weights[ids] / share)
            there = weights.to(self.task.device, self.task.dtype, non_blocking=True)
            self._weighed = ids, (share, there)
        return self._weighed[1]

    def draw(self, round: int, ids: Ids, idle: bool = False) -> Draw:
        """The batches of some clients in a round."""
        if idle:
            none = torch.zeros((len(ids), 0, 1), dtype=torch.int64)
            return Draw(none, np.zeros((len(ids), 0), np.int64))
        task, who = self.task, self.identities[ids]
        return self.batches.draw(
            self.seed, round, who, task.sizes[ids], device=task.store, rows=ids
        )

    def large_alone(self, round: int, ids: Ids, size: int) -> Draw:
        """Such batches of this round alone."""
        return large_batch(self.work(round), ids, size)

    def work(self, round: int) -> Work:
        """What is the same for all clients of a round."""
        return Work(
            self.gradients, self.seed, round, self.accounts.counters.steps, self.buffers,
            self.identities, check=self.mode == "debug",
        )  # fmt: skip

    def outbox(self, round: int, exchange: int, ids: Ids) -> Outbox:
        """For what some clients send in one exchange."""
        keys = torch.from_numpy(self.identities[ids]).to(self.task.device, non_blocking=True)
        check = self.mode == "debug"
        return Outbox(self.residuals, self.seed, round, exchange, ids, keys, check)

    # -- what is recorded -----------------------------------------------------------------------

    def evaluate(self, x: Tensor, weighting: Any, objective: bool) -> dict[str, float]:
        """The metrics of a model."""
        task = self.task
        plain = type(task).evaluate is Task.evaluate and not task.draws_always
        if self.evaluation is None or not plain:
            fast = self.execution is not None and self.execution.form.onednn
            with LayersByOneDNN() if fast else nullcontext():
                return task.evaluate(x, self.buffers, weighting, objective, self.group.spread)
        return self.evaluation(x, self.buffers, weighting, objective)

    def measurements(self, measures: tuple[Measure, ...]) -> dict[str, float]:
        """What measures have found since the last call."""
        found = {}
        for measure in measures:
            found.update(measure.value(self.measured.get(measure.name, {})))
        self.measured = {}
        return found

    def settle(self) -> None:
        """Bring the accounts up to date before they are read."""
        self.accounts.settle(self.group.total)

    # -- going on and ending --------------------------------------------------------------------

    @property
    def store(self) -> ClientStore[Any] | None:
        """The table of client states; None where the method keeps none."""
        return self.states.store

    def stores(self) -> list[ClientStore[Any]]:
        """Whatever has one row per client."""
        left = [self.residuals.stores[name] for name in sorted(self.residuals.stores)]
        return left if self.states.store is None else [self.states.store, *left]

    def continue_from(self, other: Session) -> None:
        """Go on from another run: its clients' states, buffers and accounts, executed as it was."""
        self.group.follow(other.group)
        if self.states.store is not None and other.states.store is not None:
            self.group.take_rows(self.states.store, other.states.store)
        for name, rows in other.residuals.stores.items():
            self.group.take_rows(self.residuals.of(name, rows.start.v), rows)
        self.buffers = other.buffers
        self.versions.load(other.versions.export())
        self.accounts.restored(other.accounts.counters, other.accounts.ledger.copy())
        if other.execution is not None:
            self.use(other.execution)

    def close(self) -> None:
        """Give back threads and settings."""
        torch.set_num_threads(self.operator_threads)
        restore_units(self.units)
        self.heap.close()
