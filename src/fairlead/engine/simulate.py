"""The simulate engine: a cohort on one device.

`vmap` runs the cohort as an (S, d) matrix, in chunks that fit a memory budget; `loop` runs one
client at a time with plain autograd, or one a thread on a CPU; `debug` is `loop` on one thread
with every value looked at, and its errors name round, client and step. `auto` measures these on
the task's own shapes and takes the fastest.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.algorithm import Algorithm, Cohort, Memory, Replies, State, Upload
from fairlead.data.batches import Batches, Draw
from fairlead.engine import graphs
from fairlead.engine.choose import choose, is_small, unstackable
from fairlead.engine.clients import Counters, Single, Stacked, Work
from fairlead.engine.ledger import Exchange, Ledger
from fairlead.engine.mail import Mail, Residuals
from fairlead.engine.memory import clients_that_fit, keep_freed_memory
from fairlead.engine.replies import Collected, bits_of, rows_of, split_reply
from fairlead.engine.store import ClientStore
from fairlead.engine.wire import message_bits
from fairlead.errors import FairleadError, unknown
from fairlead.evaluation import measured
from fairlead.measure.drift import Walks
from fairlead.task import Task
from fairlead.trace import TRACE_SMALL_AFTER

U = TypeVar("U", bound=Upload)
Ids = NDArray[np.int64]
Weighting = str | Sequence[float]
Program = Callable[..., Any]
Mode = Literal["auto", "vmap", "loop", "debug"]


@dataclass(frozen=True)
class Simulate:
    """How to simulate.

    mode: "vmap", "loop", "debug", or "auto" to measure.
    memory: bytes a chunk of clients may take; by default a share of what is free.
    threads: clients at a time in `loop` on a CPU; by default torch's number of threads.
    capture: record whole rounds as CUDA graphs; on a GPU by default, where the method allows it.
    """

    mode: Mode = "auto"
    memory: int | None = None
    threads: int | None = None
    capture: bool | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise unknown("engine", self.mode, get_args(Mode))

    def open(
        self,
        task: Task,
        algorithm: Algorithm[Any, Any],
        batches: Batches,
        weights: NDArray[np.float64],
        seed: int,
    ) -> Session:
        """Everything that lives for a run."""
        return Session(self, task, algorithm, batches, weights, seed)


class Session:
    """A run's client states, buffers and counters, and the cohorts made from them."""

    alone = True
    """Whether the run has no other processes."""
    crowd = 1
    """How many processes work at the same time."""
    first = True
    """Whether this is the process that writes and tells."""

    def __init__(
        self,
        setting: Simulate,
        task: Task,
        algorithm: Algorithm[Any, Any],
        batches: Batches,
        weights: NDArray[np.float64],
        seed: int,
    ) -> None:
        self.task, self.batches, self.weights, self.seed = task, batches, weights, seed
        x, self.buffers = task.start(seed)
        start = algorithm.memory(x)
        self.store = None if start is None else ClientStore(task.clients, start)
        self.counters, self.ledger = Counters(), Ledger()
        self.residuals = Residuals(task.clients)
        self.setting = setting
        self.mode: Mode = setting.mode
        self.report = f"{setting.mode}, as asked for"
        self.room = self.planned = 0
        self.operator_threads = torch.get_num_threads()
        self.threads = 1  # clients that run at the same time in `loop`
        if setting.mode != "debug" and task.device.type == "cpu" and not task.draws_masks:
            self.threads = setting.threads or torch.get_num_threads()
        self._owed: list[tuple[int, Ids, Tensor]] = []
        self.measure_drift = False
        self.walks = Walks(task.layers)
        self._pool: ThreadPoolExecutor | None = None
        self._twins: dict[int, Task] = {}
        self.graphs: graphs.Graphs | None = None
        if self.alone and setting.capture is not False and graphs.captures(task.device):
            self.graphs = graphs.Graphs(self, after=0 if setting.capture else 1)

    @property
    def told(self) -> str:
        """How the run was executed, and why so."""
        more = "" if self.graphs is None else self.graphs.told
        return f"{self.report}; {more}" if more else self.report

    def prepare(self, ids: Ids) -> None:
        """Settle how to run before the first round, on the first cohort's own shapes."""
        draw = self.batches.draw(self.seed, 0, ids, self.task.sizes[ids])
        self.room = self.planned or clients_that_fit(self.task, draw, self.setting.memory)
        self.operator_threads = torch.get_num_threads()
        if is_small(self.task, len(ids), draw):
            torch.set_num_threads(1)  # threads would only wait for each other
            self.task.record_after = TRACE_SMALL_AFTER
        else:
            keep_freed_memory()
        if self.mode == "auto":
            choice = choose(self, ids, draw)
            self.mode, self.threads, self.report = choice.mode, choice.threads, choice.why
        if self.mode == "vmap":
            why = unstackable(self.task, draw)
            if why:
                raise FairleadError(
                    f'the vmap engine cannot run this task: {why}; use engine="loop"'
                )
            if self.room < len(ids):
                self.report += f", {self.room} of {len(ids)} clients at a time"

    def how(self) -> dict[str, Any]:
        """How the run is executed, for another process to do the same."""
        return {"mode": self.mode, "threads": self.threads, "room": self.room, "why": self.report}

    def take(self, how: dict[str, Any]) -> None:
        """Execute as another process did: equal bytes need equal sums."""
        self.mode, self.threads, self.report = how["mode"], how["threads"], how["why"]
        self.setting = replace(self.setting, mode=self.mode)
        self.planned = how["room"]

    def continue_from(self, other: Session) -> None:
        """Take over the clients' memories, buffers and counts of another run."""
        if self.store is not None and other.store is not None:
            self.store.load(other.store.export())
        self.residuals.load(other.residuals.export())
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
        return Work(
            task or self.task, self.seed, round, self.counters.steps, self.buffers,
            check=self.mode == "debug",
        )  # fmt: skip

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
            last = int(some.steps.max())
            some = Draw(some.index[:, :last], some.count[:, :last])
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
                upload, kept = split_reply(program(client, **down), 1, down)
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

        places = range(len(ids))
        yield from map(run, places) if self.threads == 1 else self._workers().map(run, places)

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            # one core a client: no thread of a client's operators waits for another
            self._pool = ThreadPoolExecutor(
                self.threads, initializer=torch.set_num_threads, initargs=(1,)
            )
        return self._pool

    def _twin(self) -> Task:
        """The task with a model of this thread's own."""
        if self.threads == 1:
            return self.task
        me = threading.get_ident()
        if me not in self._twins:
            self._twins[me] = self.task.twin()
        return self._twins[me]

    def keep(self, ids: Ids, rows: Memory) -> None:
        """Write what clients keep."""
        self._store().write(ids, rows)

    def _store(self) -> ClientStore[Any]:
        if self.store is None:
            raise FairleadError("a client program returned a memory, but the method starts none")
        return self.store

    def close(self) -> None:
        torch.set_num_threads(self.operator_threads)
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._twins.clear()


class SimulatedCohort(Cohort):
    """The clients of one round that answer, run on one device."""

    def __init__(self, session: Session, round: int, ids: Ids, sampled: Ids) -> None:
        self.session, self.round, self.ids, self.sampled = session, round, ids, sampled
        self.first = session.counters.steps == 0
        self.exchange, self.idle = 0, False
        self.share = float(session.weights[ids].sum())
        self.host_weights = session.weights[ids] / self.share

    @cached_property
    def weights(self) -> Tensor:
        """The clients' weights in means over the cohort."""
        task = self.session.task
        return torch.from_numpy(self.host_weights).to(task.device, task.dtype)

    @property
    def here(self) -> Ids:
        """Those that this process runs."""
        return self.ids

    @property
    def here_weights(self) -> Tensor:
        """Their weights."""
        return self.weights

    @cached_property
    def draw(self) -> Draw:
        """The batches of all exchanges of the round, of those that this process runs."""
        session, ids = self.session, self.here
        if self.idle:
            none = torch.zeros((len(ids), 0, 1), dtype=torch.int64)
            return Draw(none, np.zeros((len(ids), 0), np.int64))
        sizes, place = session.task.sizes[ids], session.task.store
        return session.batches.draw(session.seed, self.round, ids, sizes, device=place)

    @property
    def longest(self) -> int:
        """Steps of the client that takes most."""
        return int(self.draw.steps.max())

    def run(self, program: Callable[..., U | tuple[U, Memory]], **broadcast: Tensor) -> Replies[U]:
        found = self.collect(program, broadcast)
        down = sum(map(bits_of, broadcast.values()))
        self.enter(down, found.up, found.nominal, found.buffers)
        return Replies(found.kind(**found.sums), len(self.ids))

    def collect(self, program: Program, broadcast: dict[str, Tensor]) -> Collected:
        """Let the clients of this process run the program."""
        session, ids, weights = self.session, self.here, self.here_weights
        found = Collected(np.zeros(len(ids), np.int64))
        together = session.mode == "vmap" and not unstackable(session.task, self.draw)
        execute = session.stacked if together else session.one_by_one
        for part, upload, client in execute(
            program, broadcast, self.round, ids, self.draw, self.exchange
        ):
            exact, named = message_bits(upload)
            if isinstance(exact, int):
                found.up[part] = exact
            elif session.alone:  # counted on the device, and read when someone looks
                session.owe(len(session.ledger.exchanges), self.answers[part], exact)
            else:
                found.up[part] = exact.cpu().numpy()
            found.nominal += named * len(part)
            found.kind, w = type(upload), weights[torch.from_numpy(part)]
            session.counters.gradients += client.gradients
            for name, value in upload.tensors().items():
                found.sums[name] = found.sums.get(name, 0) + w @ rows_of(value, len(part))
            if session.measure_drift:
                session.walks.add(upload.walked(), len(part))
            after = client.moved_buffers()
            if after is not None and after.numel():
                moved = w @ rows_of(after, len(part))
                found.buffers = moved if found.buffers is None else found.buffers + moved
        return found

    @cached_property
    def answers(self) -> Ids:
        """The places among those sampled of those who answer."""
        return np.searchsorted(self.sampled, self.ids)

    def enter(self, down: int, up: Ids, nominal: float, buffers: Tensor | None) -> None:
        """Note an exchange: its bits, and the buffers it moved."""
        session = self.session
        extra = 0 if buffers is None else bits_of(buffers)  # statistics travel both ways
        if buffers is not None:
            session.buffers = buffers
        everyone = np.zeros(len(self.sampled), np.int64)
        everyone[self.answers] = up + extra
        nominal += extra * len(self.ids)
        session.ledger.add(Exchange(self.round, self.sampled, down + extra, everyone, nominal))
        session.counters.exchanges += 1
        self.exchange += 1
