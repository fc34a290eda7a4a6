"""Exchanges captured as CUDA graphs and replayed; what is captured does not grow with the number of steps.

A client program is traced once per shape (see `rolled`). What differs from round to round are inputs with a
fixed place: the broadcast, the clients' ids, batches, states, step sizes and weights, and the round's number
for random draws. An exchange of a few steps is run as it is the first time, and one graph from then on. One of
many steps is captured at once, as blocks of steps that read their inputs at a counter on the device.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from fairlead.data.batches import Draw
from fairlead.engine.api import Answer, Executor, Request
from fairlead.engine.compiled_program import CompiledProgram
from fairlead.engine.exchange import WARM_UP
from fairlead.engine.executors import unstackable
from fairlead.engine.graph_inputs import Inputs, padded_size, rounded_up
from fairlead.engine.rolled import TRACED, Program, rolled, unrolled
from fairlead.engine.session import Session
from fairlead.engine.traced_clients import Counted, TracedClients
from fairlead.engine.tracing import BEFORE, Key, Recorder, Untraceable
from fairlead.gradients import cuda_graph

SHAPES = 16
"""How many shapes of exchanges are kept; a run with more traces the least recent ones again."""
WHOLE, BLOCK = 24, 16
"""Steps up to which an exchange is one graph, and steps of the blocks of a longer one."""
UNROLLED = 64
"""Steps up to which a program whose steps differ is captured."""

T = TypeVar("T", bound="Take")


class Takes(Generic[T]):
    """What is captured of exchanges, by shape. why: why the newest one was not captured."""

    def __init__(self) -> None:
        self.known: OrderedDict[Any, T | str] = OrderedDict()
        self.why = ""

    def of(self, key: Any, steps: int, make: Callable[[], T]) -> T | str:
        """What is captured for a shape, or why nothing is."""
        if key not in self.known:
            try:
                self.known[key] = make()
            except (Untraceable, DataDependentOutputException) as error:
                self.known[key] = str(error).split("\n")[0]
            if len(self.known) > SHAPES:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        take = self.known[key]
        return (
            "a round has too few steps" if isinstance(take, Take) and not take.fits(steps) else take
        )

    @property
    def remark(self) -> str:
        """What to report."""
        takes = [take for take in self.known.values() if isinstance(take, Take)]
        said = " ".join(dict.fromkeys(take.remark for take in takes if take.remark))
        if self.why:
            return f"not captured: {self.why}"
        count = sum(bool(take.replays) for take in takes)
        shown = f"exchanges captured as CUDA graphs in {count} shape{'s' * (count != 1)}"
        return "; ".join(filter(None, (shown if count else "", said)))


def hindrance(session: Session, clients: int, draw: Draw) -> str:
    """Why an exchange of so many clients cannot be captured."""
    task, execution = session.task, session.execution
    if task.ahead:
        return "the data are not on the device"
    if execution is not None and execution.room < clients:
        return f"memory has room for {execution.room} of {clients} clients at a time"
    return "the model has hooks" if task.hooked else unstackable(task, draw)


class CapturedExecutor(Executor):
    """Replays captured exchanges; runs what cannot be captured by another executor.

    after: how often a shape of few steps is run before it is captured. tuned: compilers try several kernels.
    """

    def __init__(
        self, session: Session, plain: Executor, after: int = 1, tuned: bool = False
    ) -> None:
        self.session, self.plain, self.after, self.tuned = session, plain, after, tuned
        self.takes = Takes[Take]()
        self._recent: dict[Any, tuple[Any, ...]] = {}

    def execute(self, request: Request) -> Answer:
        if request.measuring:
            return self.plain.execute(request)
        take = self._take(request)
        if isinstance(take, str):
            self.takes.why = take
            return self.plain.execute(request)
        take.inputs.fill(request)
        take.play(request.draw.longest, self.after)
        self.takes.why = take.why
        return take.answer(request)

    def _take(self, request: Request) -> Take | str:
        """What is captured of exchanges of this shape, or why nothing is."""
        draw, place = request.draw, (request.program, request.exchange)
        clients, count, measures, take = self._recent.get(place, (None,) * 4)
        same = clients is request.clients and count is draw.count and measures == request.measures
        if take is None or not same:
            take = hindrance(self.session, len(request.clients), request.draw)
            take = take or self._known(request)
            self._recent[place] = request.clients, draw.count, request.measures, take
        return take

    def _known(self, request: Request) -> Take | str:
        session = self.session

        def make() -> Take:
            inputs = Inputs(session, request, *room_of(request))
            inputs.fill(request)
            return Take(inputs, session.method.program(request.program), self.tuned)

        return self.takes.of(key_of(session, request), request.draw.longest, make)

    @property
    def remark(self) -> str:
        return self.takes.remark


def room_of(request: Request) -> tuple[int, int]:
    """The steps and the batch width that a capture has room for."""
    draw, width = request.draw, request.draw.index.shape[2]
    return max(TRACED, rounded_up(draw.longest)), width if draw.even else rounded_up(width)


def key_of(session: Session, request: Request) -> tuple[Any, ...]:
    """The shape of an exchange."""
    sent = tuple((n, getattr(v, "shape", ())) for n, v in request.broadcast.items())
    return (
        request.program, sent, request.exchange, len(request.clients), *room_of(request), request.draw.even,
        padded_size(session.task, request.clients), tuple(m.name for m in request.measures),
    )  # fmt: skip


class Take:
    """One shape of an exchange: its inputs, which are filled, the client program, and the captures of it."""

    def __init__(self, inputs: Inputs, program: Callable[..., Any], tuned: bool) -> None:
        self.inputs, self.tuned = inputs, tuned
        self.session = session = inputs.session
        request = inputs.request
        self.made, self.program = self._traced(program)
        self.why = self.remark = ""
        self.played = 0
        self.together: int | None = None
        """The number of steps that are captured as one graph."""
        self.replays: dict[Any, Callable[[], None]] = {}
        self.left: dict[str, dict[str, Tensor]] = {}
        """The outputs of the exchange as a whole, and of its end."""
        self.last = "all"
        self.counter: Tensor | None = None
        """The step that comes next, where steps are replayed in blocks."""
        self.slots: list[Tensor] = []
        """What is carried from block to block."""
        self.values: dict[Key, Any] = {}
        self._pool: Any = None
        execution = session.execution
        again = request.exchange < WARM_UP
        self._compiles = execution is not None and execution.form.compiled and again

    def fits(self, steps: int) -> bool:
        """Whether the program can be run for so many steps."""
        return not self.program.loops or steps > self.program.first

    # -- tracing --------------------------------------------------------------------------------

    def _traced(self, program: Callable[..., Any]) -> tuple[Answer, Program]:
        try:
            return self._trace(program, TRACED, rolled)
        except Untraceable:
            if self.inputs.room > UNROLLED:
                raise
            return self._trace(program, self.inputs.room, unrolled)

    def _trace(self, program: Callable[..., Any], steps: int, made: Any) -> tuple[Answer, Program]:
        given, request = self.inputs, self.inputs.request
        count = len(request.clients)
        recorder, self.counted = Recorder(given.name_of), Counted([0] * steps)
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), recorder:
            client = TracedClients(given, recorder, self.counted, steps)
            returned = program(client, **given.broadcast)
            answer = Answer(count)
            answer.take(client, returned, np.arange(count), request, given.weights)
        return answer, made(recorder, dict(_tensors(answer)))

    # -- playing --------------------------------------------------------------------------------

    def play(self, steps: int, after: int) -> None:
        """Run the exchange over its inputs, or replay its captures."""
        self.played += 1
        if self._compiles:
            self._compile()
        if self.why or (self.played <= after and steps <= WHOLE):
            self.perform(steps)
            self.last = "all"
            return
        if not self.replays:
            self.together = steps if steps <= WHOLE else None
        parts = self._parts(steps)
        missing = [name for name, _ in parts if name not in self.replays]
        if missing and not self._recorded(missing):
            self.perform(steps)
            self.last = "all"
            return
        for name, often in parts:
            for _ in range(often):
                self.replays[name]()
        self.last = parts[-1][0]

    def _recorded(self, names: list[Any]) -> bool:
        """Capture parts, if that is possible; random draws go on as if they had not been run for it."""
        drawn = cuda_graph.Generator(self.session.task.device)
        try:
            for name in names:
                if self.counter is not None:
                    self.counter.fill_(self.program.first)
                self.replays[name] = self._record(self._part(name))
                drawn.restore()
        except RuntimeError as error:
            self.why = str(error).strip().split("\n")[0]
            self.replays = {}
            drawn.restore()
        return not self.why

    def _parts(self, steps: int) -> list[tuple[Any, int]]:
        """The captures that make up an exchange of so many steps, and how often each is replayed."""
        if not self.program.loops or steps == self.together:
            return [("all", 1)]
        left = steps - self.program.first
        parts = [("start", 1), (BLOCK, left // BLOCK), (1, left % BLOCK), ("end", 1)]
        return [(name, often) for name, often in parts if often]

    def _part(self, name: Any) -> Callable[[], None]:
        if name == "all":
            steps = self.together or 0
            return lambda: self.perform(steps)
        if isinstance(name, int):
            return lambda: self._block(name)
        return self._start if name == "start" else self._end

    def _record(self, perform: Callable[[], None]) -> Callable[[], None]:
        """Capture what `perform` does; all captures of a take share their memory."""
        self._pool = self._pool or cuda_graph.pool(self.session.task.device)
        return cuda_graph.record(perform, self._pool)

    @property
    def _given(self) -> dict[Key, Tensor]:
        return {Key(BEFORE, name): t for name, t in self.inputs.tensors.items()}

    def perform(self, steps: int) -> None:
        """The whole exchange."""
        self.left["all"] = self.program.run(self._given, steps)

    def _start(self) -> None:
        self.values = self.program.begin(self._given)
        slots = self.program.first_slots(self.values)
        if self.counter is None:
            self.slots = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in slots]
            self.counter = torch.zeros(1, dtype=torch.int64, device=self.session.task.device)
        for slot, t in zip(self.slots, slots, strict=True):
            slot.copy_(t)
        self.counter.fill_(self.program.first)

    def _block(self, steps: int) -> None:
        assert self.counter is not None
        slots: list[Any] = self.slots
        for k in range(steps):
            slots = self.program.step(slots, self.values, self.counter + k)
        # what was carried further may lie in one of the slots that are written here
        own = {slot.untyped_storage().data_ptr() for slot in self.slots}
        slots = [t.clone() if t.untyped_storage().data_ptr() in own else t for t in slots]
        for slot, t in zip(self.slots, slots, strict=True):
            slot.copy_(t)
        self.counter.add_(steps)

    def _end(self) -> None:
        self.left["end"] = self.program.finish(self.values, self.slots)

    def _compile(self) -> None:
        """Compile the parts of the program: one step, what comes before, and what comes after."""
        self._compiles = False
        self.session.says("compiling the local steps")
        try:
            self.program = CompiledProgram(self.program, self._given, self.tuned)
        except Exception as error:  # a compiler has many ways to fail
            lines = [line.strip() for line in str(error).splitlines()] or [type(error).__name__]
            named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
            self.remark = f"not compiled: {(named[-1:] or lines)[0][:200]}"

    # -- what it leaves -------------------------------------------------------------------------

    def answer(self, request: Request) -> Answer:
        """The answer to a request, with what the newest run left. Client states and residuals are copied
        where they are kept; the rest is copied here."""
        made, out, ids = self.made, self.left[self.last], request.clients
        return replace(
            made,
            sums={n: out[f"sum/{n}"].clone() for n in made.sums},
            rows={n: out[f"rows/{n}"].clone() for n in made.rows},
            buffers=out["buffers"].clone() if "buffers" in out else None,
            states=[(ids, kept.filled(_under(out, "state/"))) for _, kept in made.states],
            residuals=[(ids, _under(out, "held/")) for _ in made.residuals],
            up_later=[(places, out["bits"].clone()) for places, _ in made.up_later],
            gradients=self.counted.total(request, self.session.task.sizes),
            measured={
                measure: {n: t.clone() for n, t in _under(out, f"measured/{measure}/").items()}
                for measure in made.measured
            },
        )


def _tensors(answer: Answer) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an answer, by name."""
    yield from ((f"sum/{name}", t) for name, t in answer.sums.items())
    yield from ((f"rows/{name}", t) for name, t in answer.rows.items())
    if answer.buffers is not None:
        yield "buffers", answer.buffers
    for _, kept in answer.states:
        yield from ((f"state/{name}", t) for name, t in kept.tensors().items())
    for _, held in answer.residuals:
        yield from ((f"held/{name}", t) for name, t in held.items())
    for _, bits in answer.up_later:
        yield "bits", bits
    for measure, sums in answer.measured.items():
        yield from ((f"measured/{measure}/{name}", t) for name, t in sums.items())


def _under(out: dict[str, Tensor], head: str) -> dict[str, Tensor]:
    return {name[len(head) :]: t for name, t in out.items() if name.startswith(head)}
