"""A round over fixed inputs, so that its operators can be recorded and played again.

What differs from round to round are inputs that lie in tensors of their own: the server's state, the
clients' ids, batches, memories, step sizes and weights, and the round's number for random draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.algorithm import Algorithm, Cohort, Memory, Replies, State
from fairlead.data.batches import Draw
from fairlead.engine.clients import Stacked, large_batch
from fairlead.engine.mail import Mail
from fairlead.engine.replies import bits_of, rows_of, split_reply
from fairlead.engine.wire import message_bits
from fairlead.rng import Purpose, normal, words
from fairlead.schedules import Rate, rate_at
from fairlead.task import Block, Task

if TYPE_CHECKING:
    from fairlead.engine.cohort import SimulatedCohort
    from fairlead.engine.simulate import Session

Ids = NDArray[np.int64]
GATHERED = 1 << 31
"""Bytes of samples that are brought together for all steps of a round at once."""


def rung(n: int) -> int:
    """A size at most an eighth above n, so that few shapes stand for many."""
    step = 1 << max(0, n.bit_length() - 4)
    return -(-n // step) * step


def padded_size(task: Task, ids: Ids) -> int:
    """For how many samples of a client a full pass over a cohort makes room."""
    largest = int(task.sizes[ids].max())
    alike = task.mixes_samples or int(task.sizes.min()) == int(task.sizes.max())
    return largest if alike else rung(largest)


def padded(draw: Draw) -> Draw:
    """Batches in a shape that few others have, unless all are equally long."""
    _, k, b = draw.index.shape
    if (draw.count == b).all() or (k, b) == (rung(k), rung(b)):
        return draw
    grow = (0, rung(b) - b, 0, rung(k) - k)
    index = torch.nn.functional.pad(draw.index, grow)
    return Draw(index, np.pad(draw.count, ((0, 0), (0, rung(k) - k))))


@dataclass
class Exchanged:
    """What one exchange of a recorded round leaves, besides its means."""

    down: int
    exact: int | Tensor
    nominal: float
    walked: Tensor | None
    moved: bool = False
    """Whether the clients' steps moved the model's buffers."""
    steps: list[int] = field(default_factory=list)
    """The step of every gradient that was taken."""
    passes: int = 0
    large: list[int] = field(default_factory=list)


class Inputs:
    """The tensors that a round reads, filled anew before each."""

    def __init__(self, session: Session, state: State, at: SimulatedCohort, even: bool) -> None:
        self.session, self.at = session, at
        task, device = session.task, session.task.device
        self.state = state.map(torch.clone)
        self.buffers = session.buffers.clone()
        self.memory: Memory | None = None
        self.ids = torch.zeros(len(at.ids), dtype=torch.int64, device=device)
        self.index = torch.zeros(at.draw.index.shape, dtype=torch.int64, device=device)
        self.count = (
            None if even else torch.zeros(at.draw.count.shape, dtype=torch.int64, device=device)
        )
        self.weights = torch.zeros(len(at.ids), dtype=task.dtype, device=device)
        self.round = torch.zeros((), dtype=torch.int64, device=device)
        self.share = torch.zeros((), dtype=torch.float64, device=device)
        self.sizes = torch.from_numpy(task.sizes).to(device)
        self.largest = padded_size(task, at.ids)
        self.steps: list[tuple[Rate, Tensor, Tensor]] = []
        self.rates: list[tuple[Rate, Tensor]] = []
        self.large: list[tuple[int, Tensor, Tensor]] = []
        self.residuals: dict[str, Tensor] = {}
        self._known: dict[int, Any] = {}

    def put(self, into: Tensor, values: Any) -> None:
        """Bring host values in, unless they are there already."""
        new = np.array(values)
        old = self._known.get(id(into))
        if old is None or not np.array_equal(old, new):
            into.copy_(torch.from_numpy(new).to(into.dtype), non_blocking=True)
            self._known[id(into)] = new

    def fill(self, state: State, at: SimulatedCohort) -> None:
        """What the coming round reads."""
        self.at, session = at, self.session
        old, now = self.state.tensors(), state.tensors()
        into = [*old.values(), self.buffers]
        given = [*(now[name] for name in old), session.buffers]
        if session.store is not None:
            rows = session.store.read(at.ids)
            mine = self.memory = self.memory or rows.map(torch.clone)
            into += mine.tensors().values()
            given += rows.tensors().values()
        for name, held in self.residuals.items():
            into.append(held)
            given.append(session.residuals.read(name, at.ids, held))
        for tensor, values in zip(into, given, strict=True):
            tensor.copy_(values, non_blocking=True)
        self.index.copy_(at.draw.index, non_blocking=True)
        self.put(self.ids, at.ids)
        self.put(self.weights, at.host_weights)
        self.put(self.share, at.share)
        self.put(self.round, at.round)
        if self.count is not None:
            self.put(self.count, at.draw.count)
        for place in range(len(self.steps)):
            self._fill_steps(place)
        for rate, into_rate in self.rates:
            self.put(into_rate, rate_at(rate, at.round, at.round))
        for size, index, count in self.large:
            self._fill_large(size, index, count)

    # -- inputs that a program asks for; the first run finds out which ---------------------------

    def step_sizes(self, place: int, lr: Rate) -> tuple[Tensor, Tensor]:
        """The step sizes (S, K) of a `client.steps`, and their sums."""
        if place == len(self.steps):
            s, k = self.at.draw.count.shape
            rates = self.weights.new_zeros(s, k)
            self.steps.append((lr, rates, self.weights.new_zeros(s, 1)))
            self._fill_steps(place)
        return self.steps[place][1:]

    def _fill_steps(self, place: int) -> None:
        lr, rates, total = self.steps[place]
        count = self.at.draw.count
        applied = (count > 0) * self.session.work(self.at.round).rates(lr, count.shape[1])
        self.put(rates, applied)
        self.put(total, applied.sum(1, keepdims=True))

    def server_rate(self, place: int, rate: Rate) -> Tensor:
        if place == len(self.rates):
            self.rates.append((rate, torch.zeros_like(self.share)))
            self.put(self.rates[place][1], rate_at(rate, self.at.round, self.at.round))
        return self.rates[place][1]

    def large_batch(self, place: int, size: int) -> tuple[Tensor, Tensor]:
        if place == len(self.large):
            shape = (len(self.ids), min(size, self.largest))
            index = torch.zeros(shape, dtype=torch.int64, device=self.ids.device)
            self.large.append((size, index, torch.zeros_like(self.ids)))
            self._fill_large(*self.large[place])
        return self.large[place][1:]

    def _fill_large(self, size: int, index: Tensor, count: Tensor) -> None:
        draw = large_batch(self.session.work(self.at.round), self.at.ids, size)
        width = draw.index.shape[-1]
        index[:, width:] = 0
        index[:, :width].copy_(draw.index[:, 0], non_blocking=True)
        self.put(count, draw.count[:, 0])

    def residual(self, name: str, like: Tensor) -> Tensor:
        if name not in self.residuals:
            self.residuals[name] = self.session.residuals.read(name, self.at.ids, like).clone()
        return self.residuals[name]


class _Mail(Mail):
    """Mail whose remainders are inputs of the recording."""

    def __init__(self, take: Take, exchange: int) -> None:
        session = take.inputs.session
        super().__init__(session.residuals, session.seed, take.inputs.round, exchange, False)
        self.take, self.held = take, take.held

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
        count = self.given.count
        weights = None if count is None else self.inside(self.index[:, k], count[:, k])
        return self.take.samples(self, k), weights


class _Cohort(Cohort):
    """A recorded round's clients, as the server's program sees them."""

    def __init__(self, take: Take) -> None:
        self.take, at = take, take.inputs.at
        self.first, self.exchange = at.first, at.exchange
        self.share = at.share if take.even_weights else take.inputs.share

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
        noted = Exchanged(sum(map(bits_of, broadcast.values())), 0, 0.0, None)
        client = _Client(take, self.exchange, noted)
        upload, kept = split_reply(program(client, **broadcast), count, broadcast)
        if kept is not None:
            take.memory = take.kept = kept.map(lambda v: rows_of(v, count))
        w = take.inputs.weights
        means = {name: w @ rows_of(value, count) for name, value in upload.tensors().items()}
        after = client.moved_buffers()
        if after is not None and after.numel():
            take.buffers = w @ rows_of(after, count)
            noted.moved = True
        noted.exact, noted.nominal = message_bits(upload)
        noted.walked = upload.walked()
        take.exchanges.append(noted)
        self.exchange += 1
        return Replies(type(upload)(**means), count)


class Take:
    """One shape of a round: its inputs, what a run over them leaves, and its recording."""

    def __init__(self, algorithm: Algorithm[Any, Any], inputs: Inputs, even_weights: bool) -> None:
        self.algorithm, self.inputs, self.even_weights = algorithm, inputs, even_weights
        self.why = ""
        self.played = 0
        self.replay: Callable[[], None] | None = None

    def perform(self) -> None:
        """The round over its inputs."""
        given = self.inputs
        self._asked: dict[str, int] = {}
        self._blocks: Block | None = None
        self._keys: Tensor | None = None
        self.memory, self.buffers = given.memory, given.buffers
        self.kept: Memory | None = None
        self.held: dict[str, Tensor] = {}
        self.exchanges: list[Exchanged] = []
        self.after: State = self.algorithm.round(given.state, _Cohort(self))

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
        if self.replay is None and not self.why and self.played >= after:
            try:
                self.replay = record(self.perform)
            except RuntimeError as error:
                self.why = str(error).strip().split("\n")[0]
        self.played += 1
        (self.replay or self.perform)()

    def leave(self, at: SimulatedCohort) -> State:
        """Write down what the round did, and give the server's next state."""
        session, count = at.session, len(at.ids)
        per_step = at.draw.count.sum(0)
        sizes = session.task.sizes[at.ids]
        for noted in self.exchanges:
            up = np.zeros(count, np.int64)
            if isinstance(noted.exact, int):
                up += noted.exact
            else:
                session.owe(len(session.ledger.exchanges), at.answers, noted.exact.clone())
            if session.measure_drift and noted.walked is not None:
                session.walks.add(noted.walked, count)
            spent = int(per_step[noted.steps].sum()) + noted.passes * int(sizes.sum())
            spent += sum(int(np.minimum(sizes, size).sum()) for size in noted.large)
            session.counters.gradients += spent
            moved = self.buffers if noted.moved else None
            at.enter(noted.down, up, noted.nominal * count, moved)
        session.buffers = session.buffers.clone()
        if self.kept is not None:
            session.keep(at.ids, self.kept)
        session.residuals.write(at.ids, self.held)
        return self.after.map(torch.clone)
