"""The simulate engine: a cohort on one device.

`vmap` runs the cohort as an (S, d) matrix, in chunks that fit a memory budget; `loop` runs one
client at a time with plain autograd, or one a thread on a CPU; `debug` is `loop` on one thread
with every value looked at, and its errors name round, client and step. `auto` measures these.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Algorithm, Memory, State, Upload
from fairlead.data.batches import Batches, Draw
from fairlead.engine import cuda_graph as graphs, forms
from fairlead.engine.autotune import choose, is_small, unstackable
from fairlead.engine.clients import Counters, Single, Stacked, Work
from fairlead.engine.cohort import Ids, Program, SimulatedCohort
from fairlead.engine.accounting import Ledger
from fairlead.engine.state.residuals import Mail, Residuals
from fairlead.engine.resources import Needs, clients_that_fit, keep_freed_memory, needed
from fairlead.engine.precision import check_half, restore_units, use_matrix_units
from fairlead.engine.replies import split_reply
from fairlead.engine.state.store import ClientStore, Keep
from fairlead.engine.state.tiers import Memories
from fairlead.errors import FairleadError, unknown
from fairlead.task.evaluation import measured
from fairlead.gradients.deferred import settled
from fairlead.measure.drift import Walks
from fairlead.gradients.oracle import Form
from fairlead.task.task import Task
from fairlead.gradients.capture import TRACE_AFTER, TRACE_SMALL_AFTER

Weighting = str | Sequence[float]
Mode = Literal["auto", "vmap", "loop", "debug"]
Precision = Literal["float32", "tf32", "bfloat16"]
Compile = Literal["auto", "tuned", True, False]


@dataclass(frozen=True)
class Simulate:
    """How to simulate.

    mode: "vmap", "loop", "debug", or "auto" to measure.
    memory: bytes a chunk of clients may take; by default a share of what is free.
    threads: clients at a time in `loop` on a CPU; by default torch's number of threads.
    capture: record whole rounds as CUDA graphs; on a GPU by default, where the method allows it.
    precision: of local gradients: "float32" (that is, the task's own), "tf32" for the matrix units of
        GPUs, or "bfloat16". Models, control variates and sums stay in the task's own in any case.
    compile: whether `torch.compile` makes the rounds; "auto" where the run is long enough, "tuned" tries kernels too.
    memories: where clients' memories lie: on the "device", in the "host"'s memory or on "disk"; "auto"
        takes the first that has room for them.
    """

    mode: Mode = "auto"
    memory: int | None = None
    threads: int | None = None
    capture: bool | None = None
    precision: Precision = "float32"
    compile: Compile = "auto"
    memories: Memories = "auto"

    def __post_init__(self) -> None:
        for kind, given, known in (
            ("engine", self.mode, Mode), ("precision", self.precision, Precision),
            ("place for memories", self.memories, Memories), ("way to compile", self.compile, Compile),
        ):  # fmt: skip
            if given not in get_args(known):
                raise unknown(kind, str(given), map(str, get_args(known)))

    def open(
        self,
        task: Task,
        algorithm: Algorithm[Any, Any],
        batches: Batches,
        weights: NDArray[np.float64],
        seed: int,
        most: int | None = None,
    ) -> Session:
        """Everything that lives for a run, in which at most so many clients take part."""
        return Session(self, task, algorithm, batches, weights, seed, most)


class Session:
    """A run's client states, buffers and counters, and the cohorts made from them."""

    alone = True
    """Whether the run has no other processes."""
    crowd = 1
    """How many processes work at the same time."""
    first = True
    """Whether this is the process that writes and tells."""
    whole: tuple[int, ...] = ()
    """The shape of the first cohort's batches, where this process runs a part of it."""
    remark = ""
    """What else is to be told of how the run is executed."""

    def __init__(
        self,
        setting: Simulate,
        task: Task,
        algorithm: Algorithm[Any, Any],
        batches: Batches,
        weights: NDArray[np.float64],
        seed: int,
        most: int | None = None,
    ) -> None:
        if setting.precision == "bfloat16":
            check_half(task)
            task = task.formed(Form(half=True))
        self.task, self.batches, self.weights, self.seed = task, batches, weights, seed
        x, self.buffers = task.start(seed)
        start = algorithm.memory(x)
        self.server = sum(t.nbytes for t in algorithm.init(x).tensors().values())
        self._sized = 1, 1  # the batches and the size of a cohort
        self.where = Keep(task.clients, task.device, setting.memories, most, self.crowd)
        self.store = None if start is None else self.where.store(start)
        self.counters, self.ledger = Counters(), Ledger()
        self.residuals = Residuals(self.where)
        self.setting = setting
        self.mode: Mode = setting.mode
        self.report = f"{setting.mode}, as asked for"
        self.room = self.planned = 0
        self.rounds = 1  # of the whole run, as far as it is known
        self.form: Form | None = None  # as another process took it
        self.units: dict[str, Any] = {}
        self.compiles = False  # whether whole rounds are made by torch.compile
        self.operator_threads = torch.get_num_threads()
        self.threads = 1  # clients that run at the same time in `loop`
        if setting.mode != "debug" and task.device.type == "cpu" and not task.draws_masks:
            self.threads = setting.threads or torch.get_num_threads()
        self._owed: list[tuple[int, Ids, Tensor]] = []
        self.measure_drift, self.walks = False, Walks(task.layers)
        self._pool: ThreadPoolExecutor | None = None
        self._twins: dict[int, Task] = {}
        self.graphs: graphs.Graphs | None = None
        if self.alone and setting.capture is not False and graphs.captures(task.device):
            self.graphs = graphs.Graphs(self, after=0 if setting.capture else 1)

    @property
    def told(self) -> str:
        """How the run was executed, and why so."""
        more = "" if self.graphs is None else self.graphs.told
        return "; ".join(filter(None, (self.report, more, self.remark)))

    @property
    def needs(self) -> Needs:
        """The memory that the run takes; known when it is prepared."""
        return needed(self, *self._sized)

    def size_up(self, ids: Ids) -> Draw:
        """Find how many clients fit at a time, on the first cohort's batches."""
        draw = self.batches.draw(self.seed, 0, ids, self.task.sizes[ids])
        memory = self.setting.memory
        self.room = self.planned or clients_that_fit(self.task, draw, memory, self.crowd)
        self._sized = draw.index.shape[-1], len(ids)
        return draw

    def prepare(self, ids: Ids) -> None:
        """Settle how to run before the first round, on the first cohort's own shapes."""
        draw = self.size_up(ids)
        if not self.planned:
            self.needs.check()
        self.operator_threads = torch.get_num_threads()
        use_matrix_units(self.setting.precision == "tf32", self.units)
        if is_small(self.task, len(ids), draw):
            torch.set_num_threads(1)  # threads would only wait for each other
            self.task.record_after = TRACE_SMALL_AFTER
        else:
            keep_freed_memory()
        if self.graphs is not None and self.mode in ("auto", "vmap"):
            found = forms.choose_form(self, ids, draw)
            if found is not None:
                form, why = found
                self.compiles = form.compiled
                self.task = self.task.formed(dataclasses.replace(form, compiled=False))
                self.task.record_after = 1
                self.mode, self.report = "vmap", why or self.report
        self.task = forms.laid_out(self, ids, draw)
        if self.mode == "auto":
            choice = choose(self, ids, draw)
            self.mode, self.threads, self.report = choice.mode, choice.threads, choice.why
        if self.mode == "vmap":
            if why := unstackable(self.task, draw):
                raise FairleadError(
                    f'the vmap engine cannot run this task: {why}; use engine="loop"'
                )
            if self.room < len(ids):
                self.report += f", {self.room} of {len(ids)} clients at a time"

    def how(self) -> dict[str, Any]:
        """How the run is executed, for another process to do the same."""
        form = dataclasses.astuple(dataclasses.replace(self.task.form, compiled=self.compiles))
        way = {"mode": self.mode, "threads": self.threads, "room": self.room, "form": form}
        return {**way, "workers": self.crowd, "why": self.report}

    def take(self, how: dict[str, Any]) -> None:
        """Execute as another process did: equal bytes need equal sums."""
        if how.get("workers", self.crowd) != self.crowd:
            return  # sums are others anyway, and so is what is best
        self.mode, self.threads, self.report = how["mode"], how["threads"], how["why"]
        self.setting = dataclasses.replace(self.setting, mode=self.mode)
        self.planned = how["room"]
        self.form = Form(*how["form"]) if "form" in how else None

    def continue_from(self, other: Session) -> None:
        """Take over the clients' memories, buffers and counts of another run."""
        if self.store is not None and other.store is not None:
            self.store.take(other.store)
        for name, rows in other.residuals.stores.items():
            self.residuals.of(name, rows.start.v).take(rows)
        self.continue_counts(other)

    def continue_counts(self, other: Session) -> None:
        """Take over the buffers and counts of another run."""
        self.buffers = other.buffers
        self.counters, self.ledger = copy.copy(other.counters), copy.copy(other.ledger)
        self.ledger.exchanges = list(other.ledger.exchanges)

    def cohort(self, round: int, ids: Ids, sampled: Ids | None = None) -> SimulatedCohort:
        """The clients of a round that will answer, of those sampled."""
        return SimulatedCohort(self, round, ids, ids if sampled is None else sampled)

    def everyone(self) -> SimulatedCohort:
        """All clients before the first round: they have data, but no steps to take."""
        ids = np.arange(self.task.clients)
        cohort = self.cohort(0, ids)
        cohort.exchange = 1 << 20  # its messages share no noise with those of round 0
        cohort.idle = True
        return cohort

    def play(self, algorithm: Algorithm[Any, Any], state: State, at: SimulatedCohort) -> State:
        """A round of the server's program."""
        if self.graphs is None or self.mode != "vmap":
            return algorithm.round(state, at)
        return self.graphs.play(algorithm, state, at)

    def evaluate(self, x: Tensor, weighting: Weighting, objective: bool) -> dict[str, float]:
        """What is recorded about a model."""
        task = self.task
        if self.graphs is None or type(task).evaluate is not Task.evaluate:
            return task.evaluate(x, self.buffers, weighting, objective)
        return self.graphs.measure(
            x, self.buffers, lambda x, b: measured(task, x, b, weighting, objective)
        )

    def settle(self) -> None:
        """Bring counts up to date before they are read: bits that were counted on the device."""
        if self._owed:
            sizes = torch.cat([bits for _, _, bits in self._owed]).cpu().numpy()
            for entry, places, bits in self._owed:
                mine, sizes = sizes[: len(bits)], sizes[len(bits) :]
                self.ledger.amend(entry, places, mine, 0.0)
            self._owed.clear()

    def owe(self, entry: int, places: Ids, bits: Tensor) -> None:
        """Bits up of an exchange's clients that are still on the device."""
        self._owed.append((entry, places, bits))

    def agree(self, *asked: bool) -> list[bool]:
        """What any of the processes asks for."""
        return list(asked)

    def places(self) -> dict[str, Tensor]:
        """Which process has which clients, where there are several."""
        return {}

    def place(self, saved: dict[str, Tensor]) -> None:
        """Have clients lie where they lay: equal bytes need equal shares."""

    def load_rows(self, store: ClientStore[Any], rows: dict[str, Tensor]) -> None:
        """Put clients' rows back."""
        store.load(rows)

    def mail(self, round: int, exchange: int) -> Mail:
        """For what a chunk of clients sends in one exchange."""
        return Mail(self.residuals, self.seed, round, exchange, self.mode == "debug")

    def work(self, round: int, task: Task | None = None) -> Work:
        task, check = task or self.task, self.mode == "debug"
        return Work(task, self.seed, round, self.counters.steps, self.buffers, check=check)

    # -- running a program --------------------------------------------------------------------

    def stacked(
        self,
        program: Program,
        down: dict[str, Tensor],
        round: int,
        ids: Ids,
        draw: Draw,
        exchange: int = 0,
    ) -> Iterator[tuple[Ids, Upload, Stacked]]:
        """Run chunks of clients as matrices."""
        order = np.argsort(-draw.steps, kind="stable")  # clients of like length run together
        for part in np.array_split(order, -(-len(ids) // max(1, self.room))):
            some = draw
            if not np.array_equal(part, np.arange(len(ids))):
                some = Draw(draw.index[torch.from_numpy(part)], draw.count[part])
            some = Draw(some.index[:, : some.longest], some.count[:, : some.longest])
            memory = None if self.store is None else self.store.read(ids[part])
            mail = self.mail(round, exchange)
            client = Stacked(self.work(round), ids[part], some, memory, mail)
            upload, kept = split_reply(program(client, **down), len(part), down)
            if kept is not None:
                self.keep(ids[part], kept)
            self.residuals.write(ids[part], mail.held)
            yield part, upload, client

    def one_by_one(
        self,
        program: Program,
        down: dict[str, Tensor],
        round: int,
        ids: Ids,
        draw: Draw,
        exchange: int = 0,
    ) -> Iterator[tuple[Ids, Upload, Single]]:
        """Run one client at a time, or one a thread."""
        if self.store is not None:
            self.store.slots(ids)  # rows exist before threads write to them

        def run(place: int) -> tuple[Ids, Upload, Single]:
            i = int(ids[place])
            memory = None if self.store is None else self.store.one(i)
            mine = Draw(draw.index[place : place + 1], draw.count[place : place + 1])
            mail = self.mail(round, exchange)
            client = Single(self.work(round, self._twin()), i, mine, memory, mail)
            try:
                upload, kept = split_reply(settled(program(client, **down)), 1, down)
                for name, value in upload.tensors().items():
                    client.finite(f"the upload {name}", value)
            except Exception as error:
                if self.mode != "debug":
                    raise
                raise FairleadError(f"round {round}, client {i}, {client.at}: {error}") from error
            if kept is not None:
                self._store().write_one(i, kept)
            self.residuals.write(ids[place : place + 1], mail.held)
            return np.array([place]), upload, client

        places = range(len(ids))  # the first ones in this thread, which may record their gradients
        here = len(ids) if self.threads == 1 else 0 if self._pool else TRACE_AFTER
        yield from map(run, places[:here])
        if places[here:]:
            yield from self._workers().map(run, places[here:])

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            # one core a client: no thread of a client's operators waits for another
            self._pool = ThreadPoolExecutor(self.threads, "clients", torch.set_num_threads, (1,))
        return self._pool

    def _twin(self) -> Task:
        """The task with a model of this thread's own."""
        if self.threads == 1 or self._pool is None:
            return self.task
        if (me := threading.get_ident()) not in self._twins:
            self._twins[me] = self.task.twin()
        return self._twins[me]

    def keep(self, ids: Ids, rows: Memory) -> None:
        """Write what clients keep."""
        self._store().write(ids, rows)

    def _store(self) -> ClientStore[Any]:
        if self.store is None:
            raise FairleadError("a client program returned a memory, but the method starts none")
        return self.store

    def expect(self, ids: Ids) -> None:
        """Have what these clients keep brought to the device, while others are at work."""
        for store in self.stores():
            store.prefetch(ids)

    def stores(self) -> list[ClientStore[Any]]:
        """Whatever has a row a client."""
        left = [self.residuals.stores[name] for name in sorted(self.residuals.stores)]
        return left if self.store is None else [self.store, *left]

    def close(self) -> None:
        torch.set_num_threads(self.operator_threads)
        restore_units(self.units)
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._twins.clear()
        for store in self.stores():
            store.settle()
