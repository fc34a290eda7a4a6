"""The inputs of a captured exchange: tensors at fixed addresses, filled before each replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from fairlead.core.records import Memory
from fairlead.data.batches import Draw
from fairlead.engine.api import Request, rows_of
from fairlead.engine.session import Session
from fairlead.rng import Word
from fairlead.schedules import Rate
from fairlead.task.task import Task

Ids = NDArray[np.int64]
_torch: Any = torch  # copying many tensors at once has no public API


def rounded_up(n: int) -> int:
    """A size at most one eighth above n, so that few distinct shapes occur."""
    step = 1 << max(0, n.bit_length() - 4)
    return -(-n // step) * step


def padded_size(task: Task, ids: Ids) -> int:
    """The padded number of samples per client in a full pass over a cohort."""
    if task.split.even:
        return int(task.sizes[0])
    largest = int(task.sizes[ids].max())
    return largest if task.mixes_samples else rounded_up(largest)


class Inputs:
    """The inputs of one shape of exchange, by name. What has a row per step has room for `room` steps.
    The first run determines which step sizes, large batches and residuals are needed, by asking for them."""

    def __init__(self, session: Session, request: Request, room: int, width: int) -> None:
        self.session, self.request, self.room, self.width = session, request, room, width
        self.even = request.draw.even
        self.largest = padded_size(session.task, request.clients)
        self.tensors: dict[str, Tensor] = {}
        self._asked: dict[str, Callable[[], None]] = {}
        self._known: dict[str, NDArray[Any]] = {}
        self._rows: dict[str, Tensor] = {}
        self._ids: Ids | None = None
        self._rates: Any = None
        self._weights: Tensor | None = None

    # -- what a program reads ---------------------------------------------------------------------

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def name_of(self, t: Tensor) -> str | None:
        """The name of a tensor that is an input."""
        return next((name for name, own in self.tensors.items() if own is t), None)

    @property
    def broadcast(self) -> dict[str, Tensor | float]:
        """What the server sent; numbers are inputs too."""
        return {name: self.tensors[f"sent/{name}"] for name in self.request.broadcast}

    @property
    def buffers(self) -> Tensor:
        """The clients' buffers before their first step, (S, nb)."""
        return rows_of(self.tensors["buffers"], len(self.request.clients))

    @property
    def seed(self) -> Word:
        """The seed of what clients draw."""
        return self.session.seed

    @property
    def weights(self) -> Any:
        """`weights @ rows` is the clients' mean."""
        return self.tensors["weights"]

    @property
    def memory(self) -> Memory | None:
        start = self.session.states.start
        return None if start is None else start.filled(self._rows)

    def _ask(self, name: str, fill: Callable[[], None]) -> Tensor:
        if name not in self._asked:
            self._asked[name] = fill
            with _disable_current_modes():  # it is asked for while a program is traced
                fill()
        return self.tensors[name]

    @property
    def round(self) -> Tensor:
        """The round's number, for random draws."""
        return self._ask("round", lambda: self.put("round", self.request.round, torch.int64))

    def step_sizes(self, lr: Rate) -> tuple[Tensor, Tensor]:
        """The step sizes (K, S, 1) of the steps, and their sums (S, 1)."""
        dtype = self.session.task.dtype

        def fill() -> None:
            count, fixed = self.request.draw.count, self.fixed_rates(lr)
            known = count.shape[1], fixed
            if self.even and fixed is not None and self._rates == known:
                return  # as they were
            self._rates = known
            applied = (count > 0) * self.rates(lr, count.shape[1])
            self.put("rates", self._by_step(applied)[..., None], dtype)
            self.put("moved", applied.sum(1, keepdims=True), dtype)

        return self._ask("rates", fill), self.tensors["moved"]

    def large_batch(self, place: int, size: int) -> tuple[Tensor, Tensor]:
        """The samples of a large batch for every client, and their number."""
        name = f"large/{place}"

        def fill() -> None:
            draw = self.drawn_large(size)
            room = min(size, self.largest) - draw.index.shape[-1]
            self.copy(name, torch.nn.functional.pad(draw.index[:, 0], (0, room)))
            self.put(f"{name}/count", draw.count[:, 0], torch.int64)

        return self._ask(name, fill), self.tensors[f"{name}/count"]

    def residual(self, field: str, like: Tensor) -> Tensor:
        """The compression residual of a field."""
        width, dtype = like.shape[-1], like.dtype

        def fill() -> None:
            zeros = torch.zeros(width, dtype=dtype, device=self.session.task.device)
            self.copy(f"residual/{field}", self.read_residual(field, zeros))

        return self._ask(f"residual/{field}", fill)

    # -- where it comes from ----------------------------------------------------------------------

    def rates(self, lr: Rate, steps: int) -> NDArray[np.float64]:
        """The step sizes of the steps, (K,) or (S, K)."""
        return self.session.work(self.request.round).rates(lr, steps)

    def fixed_rates(self, lr: Rate) -> Any:
        """The step sizes, if they are the same in all steps and rounds."""
        return lr if isinstance(lr, int | float) else None

    def drawn_large(self, size: int) -> Draw:
        """A large batch of every client."""
        return self.session.large(self.request.round, self.request.clients, size)

    def read_residual(self, field: str, like: Tensor) -> Tensor:
        """The clients' residuals of a field."""
        return self.session.residuals.read(field, self.request.clients, like)

    # -- filling ----------------------------------------------------------------------------------

    def put(self, name: str, values: Any, dtype: torch.dtype) -> None:
        """Copy host values in, unless unchanged."""
        new, old = np.array(values), self._known.get(name)
        if old is None or not np.array_equal(old, new):
            self.copy(name, torch.from_numpy(new).to(dtype))
            self._known[name] = new

    def copy(self, name: str, values: Tensor) -> None:
        """Copy the values of another tensor in."""
        into = self.tensors.get(name)
        if into is None:
            self.tensors[name] = values.to(self.session.task.device, copy=True).contiguous()
        else:
            into.copy_(values, non_blocking=True)

    def _by_step(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values (S, K) with steps first and room for more."""
        return np.pad(values.T, ((0, self.room - values.shape[1]), (0, 0)))

    def fill(self, request: Request) -> None:
        """Fill in what the next replay reads."""
        self.request, session, task = request, self.session, self.session.task
        store, draw, sent = session.states.store, request.draw, request.broadcast
        _, steps, width = draw.index.shape
        if not self.tensors:
            self._begin(request)
        elif store is not None:
            store.read_into(request.clients, self._rows)
        coming = {f"sent/{name}": v for name, v in sent.items() if isinstance(v, Tensor)}
        for name, value in sent.items():
            if not isinstance(value, Tensor):
                self.put(f"sent/{name}", value, torch.float64)
        if session.buffers.numel():
            coming["buffers"] = session.buffers
        if self._window.shape != draw.index.shape:
            self._index.zero_()  # what is left of other clients may lie outside of these clients' data
            self._window = self._index[:, :steps, :width]
        into = [*(self.tensors[name] for name in coming), self._window]
        _torch._foreach_copy_(into, [*coming.values(), draw.index], non_blocking=True)
        if self._ids is not request.clients:  # with full participation they never change
            self._ids = request.clients
            self.put("ids", request.clients, torch.int64)
            self.put("keys", session.identities[request.clients], torch.int64)
            self.put("sizes", task.sizes[request.clients], torch.int64)
        if self._weights is not request.weights:
            self._weights = request.weights
            self.copy("weights", request.weights)
        if not self.even:
            self.put("count", self._by_step(draw.count), torch.int64)
        for fill in self._asked.values():
            fill()

    def _begin(self, request: Request) -> None:
        session = self.session
        for name, value in request.broadcast.items():
            if isinstance(value, Tensor):
                self.copy(f"sent/{name}", value)
        self.copy("buffers", session.buffers)
        if session.states.store is not None:
            self._keep(session.states.store.lend(request.clients))
        self._make_room()
        self._window = self._index[:, :0]

    def _keep(self, rows: dict[str, Tensor]) -> None:
        """The tensors in which the clients' states are read."""
        self._rows = rows
        self.tensors.update({f"memory/{name}": v for name, v in rows.items()})

    def _make_room(self) -> None:
        """For the positions of the samples of all steps."""
        shape = (len(self.request.clients), self.room, self.width)
        self._index = torch.zeros(shape, dtype=torch.int64, device=self.session.task.device)
        self.tensors["index"] = self._index.transpose(0, 1)
        self.put("steps", np.arange(self.room), torch.int64)
