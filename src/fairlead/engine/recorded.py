"""A round over fixed inputs, so that its operators can be recorded and played again.

What differs from round to round are inputs that lie in tensors of their own: the server's state, the
clients' ids, batches, memories, step sizes and weights, and the round's number for random draws.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fairlead.core.method import Algorithm, Cohort, Memory, Replies, State
from fairlead.engine.clients import Stacked
from fairlead.engine.graph_inputs import Inputs
from fairlead.engine.state.residuals import Mail
from fairlead.engine.replies import bits_of, rows_of, split_reply
from fairlead.core.message import message_bits
from fairlead.rng import Purpose, Word, normal, words
from fairlead.schedules import Rate
from fairlead.task.task import Block
from fairlead.gradients.capture import compiled

if TYPE_CHECKING:
    from fairlead.engine.cohort import SimulatedCohort

GATHERED = 1 << 31
"""Bytes of samples that are brought together for all steps of a round at once."""


@dataclass
class Exchanged:
    """What one exchange of a recorded round leaves, besides its means."""

    down: int
    exact: int | Tensor
    nominal: float
    moved: bool = False
    """Whether the clients' steps moved the model's buffers."""
    steps: list[int] = field(default_factory=list)
    """The step of every gradient that was taken."""
    passes: int = 0
    large: list[int] = field(default_factory=list)

    def spent(self, at: SimulatedCohort) -> int:
        """Gradients of single samples that the clients of a round took."""
        per_step, sizes = at.draw.per_step, at.session.task.sizes
        whole = self.steps == list(range(len(per_step)))
        spent = int(per_step.sum() if whole else per_step[self.steps].sum())
        if self.passes or self.large:
            own = sizes[at.ids]
            spent += self.passes * int(own.sum())
            spent += sum(int(np.minimum(own, size).sum()) for size in self.large)
        return spent


class _Mail(Mail):
    """Mail whose remainders are inputs of the recording."""

    def __init__(self, take: Take, exchange: int) -> None:
        session = take.inputs.session
        super().__init__(session.residuals, session.seed, 0, exchange, False)
        self.take, self.held = take, take.held

    def when(self) -> Word:
        return self.take.inputs.round

    def remainder(self, name: str, ids: Any, like: Tensor) -> Tensor:
        return self.take.inputs.residual(name, like)


class _Client(Stacked):
    """The clients of a recorded round: all that changes lies in inputs."""

    def __init__(self, take: Take, exchange: int, noted: Exchanged) -> None:
        given, session = take.inputs, take.inputs.session
        self.take, self.noted, self.given = take, noted, given
        self.work, self.draw, self.mail = session.work(0), given.at.draw, _Mail(take, exchange)
        self.memory: Any = take.memory
        self.host_ids = given.at.ids
        self.ids = self.owners = given.ids
        self.index = given.index
        self.buffers = rows_of(take.buffers, len(given.ids))
        self.moved: Any = None
        self.stepped = False
        self.passed: Tensor | None = None

    @property
    def largest(self) -> int:
        return self.given.largest

    def steps(self, lr: Rate) -> Iterator[Any]:
        rates, self.moved = self.given.step_sizes(self.take.asked("steps"), lr)
        for k in range(rates.shape[1]):
            yield self.step(k, rates[:, k : k + 1])

    def step_taken(self, k: int) -> None:
        self.noted.steps.append(k)

    def full_pass(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.noted.passes += 1
        task, sizes = self.work.task, self.given.sizes[self.ids]
        return task.passed(self.ids, sizes, self.largest, x, self.buffers, self.work.limit)

    def large_batch(self, size: int) -> tuple[Block, Tensor | None]:
        self.noted.large.append(size)
        index, count = self.given.large_batch(self.take.asked("large"), size)
        return self.work.task.samples(self.ids, index, None), self.inside(index, count)

    def inside(self, index: Tensor, count: Tensor) -> Tensor:
        """The weights of samples of batches with so many of them."""
        n = count[:, None]
        inside = torch.arange(index.shape[1], device=index.device) < n
        return inside.to(self.work.task.dtype) / n.clamp(min=1)

    def keys(self, step: int) -> Tensor | None:
        if self.work.task.transform is None:
            return None
        return self.take.keys[:, step]

    def noise(self, step: int, d: int) -> Tensor:
        return normal(self.work.seed, self.given.round, self.ids, step, d)

    def batch(self, k: int) -> tuple[Block, Tensor | None]:
        block, given = self.take.samples(self, k), self.given
        return block, None if given.even else self.inside(self.index[:, k], given["count"][:, k])


class _Cohort(Cohort):
    """A recorded round's clients, as the server's program sees them."""

    def __init__(self, take: Take) -> None:
        self.take, at = take, take.inputs.at
        self.first, self.exchange = at.first, at.exchange
        self.share = at.share if take.even_weights else take.inputs["share"]

    def __getattr__(self, name: str) -> Any:
        if name != "round":
            raise AttributeError(name)
        self.take.why = "its server program asks for the round's number: use cohort.rate(…)"
        return self.take.inputs.at.round

    def rate(self, rate: Rate) -> Any:
        if not callable(rate):
            return rate
        return self.take.inputs.server_rate(self.take.asked("rates"), rate)

    def run(self, program: Callable[..., Any], **broadcast: Tensor) -> Replies[Any]:
        take, count = self.take, len(self.take.inputs.ids)
        noted = Exchanged(sum(map(bits_of, broadcast.values())), 0, 0.0)
        client = _Client(take, self.exchange, noted)
        upload, kept = split_reply(program(client, **broadcast), count, broadcast)
        if kept is not None:
            take.memory = take.kept = kept.map(lambda v: rows_of(v, count))
        w, place = take.inputs["weights"], len(take.exchanges)
        means = {name: w @ rows_of(value, count) for name, value in upload.tensors().items()}
        after = client.moved_buffers()
        if after is not None and after.numel():
            take.buffers = w @ rows_of(after, count)
            noted.moved = True
        noted.exact, noted.nominal = message_bits(upload)
        if isinstance(noted.exact, Tensor):
            take.out[f"exact/{place}"] = noted.exact
        walked = upload.walked() if take.measure_drift else None
        if walked is not None:
            take.out[f"walked/{place}"] = walked
        take.exchanges.append(noted)
        self.exchange += 1
        return Replies(type(upload)(**means), count)


class Take:
    """One shape of a round: its inputs, what a run over them leaves, and its recording."""

    def __init__(self, algorithm: Algorithm[Any, Any], inputs: Inputs, even_weights: bool) -> None:
        self.algorithm, self.inputs, self.even_weights = algorithm, inputs, even_weights
        self.measure_drift = inputs.session.measure_drift
        self.why = ""
        self.once = False
        """Whether the round will not come again: then it is neither compiled nor recorded."""
        self.played = 0
        self._sorted: tuple[dict[str, Tensor], ...] = ({}, {}, {}, {})
        self.run: Callable[[], None] = self.perform
        self.replay: Callable[[], None] | None = None
        self.out: dict[str, Tensor] = {}
        """What a run leaves: the server's state, memories, remainders, buffers, counted bits."""

    def perform(self) -> None:
        """The round over its inputs."""
        given = self.inputs
        self._asked: dict[str, int] = {}
        self._blocks: Block | None = None
        self._keys: Tensor | None = None
        self.memory, self.buffers = given.memory, given["buffers"]
        self.kept: Memory | None = None
        self.held: dict[str, Tensor] = {}
        self.exchanges: list[Exchanged] = []
        self.out = {}
        self.after: State = self.algorithm.round(given.state, _Cohort(self))
        kept = {} if self.kept is None else self.kept.tensors()
        for head, found in (("after", self.after.tensors()), ("kept", kept), ("held", self.held)):
            self.out.update({f"{head}/{name}": t for name, t in found.items()})
        self.out["buffers"] = self.buffers

    def compiled(self) -> Callable[[], None]:
        """The round made into few kernels by `torch.compile`."""
        given = self.inputs
        names, tensors = list(given.tensors), given.tensors

        def run(*values: Tensor) -> list[Tensor]:
            given.tensors = dict(zip(names, values, strict=True))
            try:
                self.perform()
            finally:
                given.tensors = tensors
            return list(self.out.values())

        tuned = given.session.setting.compile == "tuned"
        made = compiled(run, list(tensors.values()), tuned)
        left = list(self.out)

        def play() -> None:
            self.out = dict(zip(left, made(*tensors.values()), strict=True))

        return play

    def _compile(self) -> None:
        session = self.inputs.session
        try:
            self.run = self.compiled()
        except Exception as error:  # a compiler has many ways to fail
            session.compiles = False
            lines = [line.strip() for line in str(error).splitlines()] or [type(error).__name__]
            named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
            session.remark = f"not compiled: {(named[-1:] or lines)[0][:200]}"

    def asked(self, what: str) -> int:
        """How often a program asked for this kind of input before."""
        place = self._asked.get(what, 0)
        self._asked[what] = place + 1
        return place

    @property
    def keys(self) -> Tensor:
        """Random words for the transform, of every client and step: (S, K, 2)."""
        if self._keys is None:
            given, seed = self.inputs, self.inputs.session.seed
            k = torch.arange(given.index.shape[1], device=given.ids.device)
            client = given.ids[:, None]
            self._keys = words(seed, Purpose.AUGMENT, given.round, client, k, 0)[..., :2]
        return self._keys

    def samples(self, client: _Client, k: int) -> Block:
        """The samples of step k; those of all steps come together where they fit."""
        task, index = self.inputs.session.task, self.inputs.index
        s, steps, b = index.shape
        item = torch.empty((), dtype=task.dtype).element_size()
        if index.numel() * sum(t[0].numel() for t in task.data) * item > GATHERED:
            return task.samples(client.owners, index[:, k], client.keys(k))
        if self._blocks is None:
            keys = None if task.transform is None else self.keys.transpose(0, 1).reshape(-1, 2)
            owners = client.owners.repeat(steps)
            everything = index.transpose(0, 1).reshape(steps * s, b)
            found = task.samples(owners, everything, keys)
            self._blocks = tuple(t.unflatten(0, (steps, s)) for t in found)
        return tuple(t[k] for t in self._blocks)

    def play(self, record: Callable[[Callable[[], None]], Callable[[], None]], after: int) -> None:
        """Run the round, or play its recording."""
        if self.replay is None and not self._settled(record, after):
            return
        (self.replay or self.run)()

    def _settled(self, record: Callable[..., Callable[[], None]], after: int) -> bool:
        """Find out what the round reads, compile and record it when it is time; whether the round is
        still to be run. What it draws from torch's generator is drawn once."""
        if self.once:
            self.perform()
            return False
        drawn = _Generator(self.inputs.session.task.device)
        first, self.played = self.played == 0, self.played + 1
        if first:
            self.perform()
            if self.inputs.session.compiles and not self.why:
                self._compile()
        if not self.why and self.played > after:
            try:
                self.replay = record(self.run)
            except RuntimeError as error:
                self.why = str(error).strip().split("\n")[0]
        elif first and self.run == self.perform:
            return False
        drawn.restore()
        return True

    def leave(self, at: SimulatedCohort) -> State:
        """Write down what the round did, and give the server's next state."""
        session, count, out = at.session, len(at.ids), self.out
        for place, noted in enumerate(self.exchanges):
            up = 0
            if isinstance(noted.exact, int):
                up = noted.exact
            else:
                entry = len(session.ledger.exchanges)
                session.owe(entry, at.answers, out[f"exact/{place}"].clone())
            if f"walked/{place}" in out:
                session.walks.add(out[f"walked/{place}"], count)
            session.counters.gradients += noted.spent(at)
            moved = out["buffers"] if noted.moved else None
            at.enter(noted.down, up, noted.nominal * count, moved)
        if session.buffers.numel():
            session.buffers = session.buffers.clone()
        if self._sorted[0] is not out:
            self._sorted = out, *(_under(out, head) for head in ("after/", "kept/", "held/"))
        _, after, kept, held = self._sorted
        if self.kept is not None:
            session.keep(at.ids, self.kept.filled(kept))
        if held:
            session.residuals.write(at.ids, held)
        return self.after.filled({name: t.clone() for name, t in after.items()})


class _Generator:
    """Where torch's generator of a device is."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.state = _rng(device).get_rng_state()

    def restore(self) -> None:
        _rng(self.device).set_rng_state(self.state)


def _rng(device: torch.device) -> Any:
    return torch.cuda if device.type == "cuda" else torch


def _under(out: dict[str, Tensor], head: str) -> dict[str, Tensor]:
    return {name[len(head) :]: t for name, t in out.items() if name.startswith(head)}
