"""A round's clients, as the server's program sees them, run on one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Cohort, Memory, Replies, Upload
from fairlead.data.batches import Draw
from fairlead.engine.autotune import unstackable
from fairlead.engine.accounting import Exchange
from fairlead.engine.replies import Collected, bits_of, rows_of
from fairlead.core.message import message_bits

if TYPE_CHECKING:
    from fairlead.engine.simulate import Session

U = TypeVar("U", bound=Upload)
Ids = NDArray[np.int64]
Program = Callable[..., Any]


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
        return self.draw.longest

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
            found.kind, w = type(upload), weights[part]
            session.counters.gradients += client.gradients
            for name, value in upload.tensors().items():
                found.add(name, value, w)
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

    def enter(self, down: int, up: Ids | int, nominal: float, buffers: Tensor | None) -> None:
        """Note an exchange: its bits, from each client or from all alike, and the buffers it moved."""
        session = self.session
        extra = 0 if buffers is None else bits_of(buffers)  # statistics travel both ways
        if buffers is not None:
            session.buffers = buffers
        everyone = np.zeros(len(self.sampled), np.int64)
        everyone[slice(None) if self.ids is self.sampled else self.answers] = up + extra
        nominal += extra * len(self.ids)
        session.ledger.add(Exchange(self.round, self.sampled, down + extra, everyone, nominal))
        session.counters.exchanges += 1
        self.exchange += 1
