"""The simulate engine: a cohort on one device.

`vmap` runs the cohort as an (S, d) matrix, in chunks that fit a memory budget; `loop` runs one
client at a time with plain autograd; `debug` is `loop` with every value checked, and its errors name
round, client and step. `auto` measures which is fastest. On a GPU whole rounds are captured as CUDA graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from fairlead.core.method import Algorithm, is_own
from fairlead.data.batches import Batches, Draw
from fairlead.engine import autotune
from fairlead.engine.api import Executor, Ids
from fairlead.engine.captured import CapturedExecutor
from fairlead.engine.captured_evaluation import CapturedEvaluation
from fairlead.engine.executors import OneByOne, StackedExecutor, unstackable
from fairlead.engine.first_round import Compared
from fairlead.engine.group import Group
from fairlead.engine.precision import check_half, use_matrix_units
from fairlead.engine.resources import Needs, clients_that_fit, needed
from fairlead.engine.session import Session
from fairlead.engine.state.store import Keep
from fairlead.engine.state.tiers import Memories
from fairlead.errors import FairleadError, unknown
from fairlead.gradients import cuda_graph
from fairlead.task.task import Task

Mode = Literal["auto", "vmap", "loop", "debug"]
Precision = Literal["auto", "float32", "tf32", "bfloat16"]
Compile = Literal["auto", "tuned", True, False]


@dataclass(frozen=True)
class Simulate:
    """How to simulate.

    mode: "vmap", "loop", "debug", or "auto" to measure.
    memory: bytes that a chunk of clients may use; by default a share of what is installed.
    threads: torch's threads per operator while the run goes on, on a CPU; by default as they are set.
    capture: capture whole rounds as CUDA graphs; on a GPU by default, where the method allows it.
    precision: of local gradients: "float32" (that is, the task's own), "tf32" for the matrix units of
        GPUs, or "bfloat16"; "auto" is TF32 on a GPU, as in other libraries. Models, control variates and
        sums stay in the task's own in any case; evaluations multiply in TF32 unless "float32" is asked for.
    compile: whether `torch.compile` makes the parts of an exchange on a GPU (one step, what comes before and what comes
        after); "auto" if it is expected to take less than a tenth of the run, "tuned" also tries several kernels.
    memories: where client states are kept: on the "device", in the "host"'s memory or on "disk"; "auto"
        takes the first that has room for them.

    >>> import fairlead as fl
    >>> task, method = fl.problems.random_quadratics(clients=4), fl.Scaffold(lr=0.1)
    >>> runs = [fl.train(task, method, rounds=3, steps=3, engine=Simulate(m)) for m in ("vmap", "loop")]
    >>> bool((runs[0].x - runs[1].x).abs().max() < 1e-12)
    True
    """

    mode: Mode = "auto"
    memory: int | None = None
    threads: int | None = None
    capture: bool | None = None
    precision: Precision = "auto"
    compile: Compile = "auto"
    memories: Memories = "auto"

    def __post_init__(self) -> None:
        for kind, given, known in (
            ("engine", self.mode, Mode), ("precision", self.precision, Precision),
            ("place for memories", self.memories, Memories), ("way to compile", self.compile, Compile),
        ):  # fmt: skip
            if given not in get_args(known):
                raise unknown(kind, str(given), map(str, get_args(known)))
        if self.threads is not None and self.threads < 1:
            raise FairleadError(f"threads is {self.threads}: it must be at least 1")

    def open(
        self,
        task: Task,
        method: Algorithm[Any, Any],
        batches: Batches,
        weights: NDArray[np.float64],
        seed: int,
        most: int | None = None,
    ) -> Session:
        """Everything that lives for a run, in which at most `most` clients take part."""
        if self.precision == "bfloat16":
            check_half(task)
        keep = Keep(task.clients, task.device, self.memories, most)
        return Session(task, method, batches, weights, seed, keep, Group())

    def prepare(self, session: Session, ids: Ids, rounds: int) -> None:
        """Settle how to run before the first gradient, on the first cohort's own shapes."""
        Preparation(self, session, ids, rounds).settle()


class Preparation:
    """How a run of so many rounds is executed, settled on the first cohort's own shapes."""

    def __init__(
        self, setting: Simulate, session: Session, ids: Ids, rounds: int, draw: Draw | None = None
    ) -> None:
        self.setting, self.session, self.ids, self.rounds = setting, session, ids, rounds
        self.draw = session.draw(0, ids) if draw is None else draw
        self.shape: tuple[int, ...] = tuple(self.draw.index.shape)

    @property
    def room(self) -> int:
        """How many clients fit in memory together."""
        known = self.session.execution
        if known is not None:
            return known.room
        sharing = self.session.group.size
        return clients_that_fit(self.session.task, self.draw, self.setting.memory, sharing)

    @property
    def needs(self) -> Needs:
        """The memory that the run needs."""
        return needed(self.session, self.room, self.draw.index.shape[-1], len(self.ids))

    def settle(self) -> None:
        """Settle it, and get the session ready for its first round."""
        try:
            self.begin()
            if self.session.execution is None:
                self.session.use(autotune.chosen(self.problem))
            self.session.executor = self.executor()
        except BaseException:
            self.session.close()
            raise

    def begin(self) -> None:
        """Check the memory, and set what holds for the whole process while the run goes on."""
        session, setting = self.session, self.setting
        if session.execution is None:
            self.needs.check()
        session.operator_threads = torch.get_num_threads()
        short = setting.precision != "float32"
        use_matrix_units(short, session.units)
        if short and session.task.device.type == "cuda" and session.task.dtype == torch.float32:
            half = setting.precision == "bfloat16"
            session.precision = "evaluations in TF32" if half else "products in TF32"
        if setting.threads is not None and not session.group.several:
            torch.set_num_threads(setting.threads)
        if autotune.is_small(session.task, len(self.ids), self.draw):
            torch.set_num_threads(1)  # threads would only wait for each other
        else:
            task = session.task
            on_host = task.device.type == "cpu"
            session.heap.keep(task.dim * task.dtype.itemsize if on_host else 0)
        if self.captures and not session.group.several:
            session.evaluation = CapturedEvaluation(session.task)

    @property
    def captures(self) -> bool:
        """Whether exchanges are captured as CUDA graphs where they can be."""
        asked = self.setting.capture is not False and self.setting.mode in ("auto", "vmap")
        return asked and cuda_graph.captures(self.session.task.device)

    @property
    def problem(self) -> autotune.Problem:
        """What the autotuner is asked."""
        setting = self.setting
        return autotune.Problem(
            self.session, setting.mode, setting.precision, setting.compile, self.ids,
            self.draw, self.shape, self.rounds, self.room, self.captures,
        )  # fmt: skip

    def executor(self) -> Executor:
        """The executor on this process's device."""
        session, execution = self.session, self.session.execution
        assert execution is not None
        if execution.mode != "vmap":
            return OneByOne(session)
        if why := unstackable(session.task, self.draw):
            raise FairleadError(f'the vmap engine cannot run this task: {why}; use engine="loop"')
        stacked = made = StackedExecutor(session, execution.room)
        if self.captures:
            after, tuned = int(not self.setting.capture), self.setting.compile == "tuned"
            made = CapturedExecutor(session, stacked, after, tuned)
        return made if is_own(session.method) else Compared(session, made, stacked)
