"""The inputs of a captured round: tensors at fixed addresses, filled before each round."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.records import Memory, State
from fairlead.data.batches import Draw
from fairlead.engine.clients import large_batch
from fairlead.engine.exchange import RoundCohort
from fairlead.engine.session import Session
from fairlead.schedules import Rate, rate_at
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


def padded(draw: Draw) -> Draw:
    """Batches padded to one of few shapes, unless all are equally long."""
    _, k, b = draw.index.shape
    if draw.even or (k, b) == (rounded_up(k), rounded_up(b)):
        return draw
    grow = (0, rounded_up(b) - b, 0, rounded_up(k) - k)
    index = torch.nn.functional.pad(draw.index, grow)
    return Draw(index, np.pad(draw.count, ((0, 0), (0, rounded_up(k) - k))))


class Inputs:
    """The inputs for one round shape, by name. The first run determines which step sizes, large batches
    and residuals are needed, by requesting them."""

    def __init__(self, session: Session, state: State, at: RoundCohort, draw: Draw) -> None:
        self.session, self.at, self.draw, self.even = session, at, draw, draw.even
        self.largest = padded_size(session.task, at.ids)
        self.sizes = torch.from_numpy(session.task.sizes).to(session.task.device)
        self.tensors: dict[str, Tensor] = {}
        self._state, self._memory = state, session.states.start
        self._asked: dict[str, Any] = {}
        self._known: dict[str, NDArray[Any]] = {}
        self._rows: dict[str, Tensor] = {}
        self._ids: Ids | None = None

    # -- what a program reads ---------------------------------------------------------------------

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def ids(self) -> Tensor:
        return self.tensors["ids"]

    @property
    def keys(self) -> Tensor:
        """The clients' numbers for random draws."""
        return self.tensors["keys"]

    @property
    def index(self) -> Tensor:
        return self.tensors["index"]

    @property
    def state(self) -> State:
        return self._state.filled(self._under("state/"))

    @property
    def memory(self) -> Memory | None:
        return None if self._memory is None else self._memory.filled(self._under("memory/"))

    def _under(self, head: str) -> dict[str, Tensor]:
        return {n[len(head) :]: t for n, t in self.tensors.items() if n.startswith(head)}

    @property
    def round(self) -> Tensor:
        """The round's number, for random draws."""
        if "round" not in self._asked:
            self._asked["round"] = None
            self._fill_asked("round")
        return self.tensors["round"]

    def step_sizes(self, place: int, lr: Rate) -> tuple[Tensor, Tensor]:
        """The step sizes (S, K) of a `client.steps`, and their sums."""
        name = f"steps/{place}"
        if name not in self._asked:
            self._asked[name] = lr
            self._fill_asked(name)
        return self.tensors[name], self.tensors[f"{name}/sum"]

    def server_rate(self, place: int, rate: Rate) -> Tensor:
        """A server step size that changes from round to round."""
        name = f"rate/{place}"
        if name not in self._asked:
            self._asked[name] = rate
            self._fill_asked(name)
        return self.tensors[name]

    def large_batch(self, place: int, size: int) -> tuple[Tensor, Tensor]:
        """The samples of a large batch for every client, and their number."""
        name = f"large/{place}"
        if name not in self._asked:
            self._asked[name] = size
            self._fill_asked(name)
        return self.tensors[name], self.tensors[f"{name}/count"]

    def residual(self, field: str, like: Tensor) -> Tensor:
        """The compression residual of a field."""
        name = f"residual/{field}"
        if name not in self._asked:
            self._asked[name] = torch.zeros_like(like)
            self._fill_asked(name)
        return self.tensors[name]

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

    def fill(self, state: State, at: RoundCohort, draw: Draw) -> None:
        """Fill in what the next round reads."""
        self.at, self.draw, session, task = at, draw, self.session, self.session.task
        coming = {f"state/{name}": value for name, value in state.tensors().items()}
        coming["index"] = draw.index
        begins, store = not self.tensors, session.states.store
        if session.buffers.numel() or begins:
            coming["buffers"] = session.buffers
        if store is not None and begins:
            self._rows = store.lend(at.ids)
            self.tensors.update({f"memory/{name}": v for name, v in self._rows.items()})
        elif store is not None:
            store.read_into(at.ids, self._rows)
        if begins:
            for name, value in coming.items():
                self.copy(name, value)
        else:
            _torch._foreach_copy_([self.tensors[name] for name in coming], list(coming.values()))
        if self._ids is not at.ids:  # with full participation they never change
            self._ids = at.ids
            self.put("ids", at.ids, torch.int64)
            self.put("keys", session.identities[at.ids], torch.int64)
            self.put("weights", at.host_weights, task.dtype)
            self.put("share", at.share, torch.float64)
        if not self.even:
            self.put("count", draw.count, torch.int64)
        for name in self._asked:
            self._fill_asked(name)

    def _fill_asked(self, name: str) -> None:
        """Fill in what a program requested, for the current round."""
        at, session = self.at, self.session
        given: Any = self._asked[name]
        kind, dtype = name.partition("/")[0], session.task.dtype
        if kind == "round":
            self.put(name, at.round, torch.int64)
        elif kind == "steps":
            if self.even and isinstance(given, int | float) and name in self.tensors:
                return  # constant
            count = self.draw.count
            applied = (count > 0) * session.work(at.round).rates(given, count.shape[1])
            self.put(name, applied, dtype)
            self.put(f"{name}/sum", applied.sum(1, keepdims=True), dtype)
        elif kind == "rate":
            self.put(name, rate_at(given, at.round, at.round), torch.float64)
        elif kind == "large":
            draw = large_batch(session.work(at.round), at.ids, given)
            room = min(given, self.largest) - draw.index.shape[-1]
            self.copy(name, torch.nn.functional.pad(draw.index[:, 0], (0, room)))
            self.put(f"{name}/count", draw.count[:, 0], torch.int64)
        else:
            field = name.partition("/")[2]
            self.copy(name, session.residuals.read(field, at.ids, given))
