"""The parts of an engine: a request for an exchange, the answer to it, and what executes it.

An executor runs a client program for some clients and returns an `Answer`; it writes nothing. One place,
`fairlead.engine.exchange.commit`, applies answers to the run. So executors differ in how they run a
program and never in what becomes of the result, and a fault in between leaves everything as it was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.records import Memory, Upload
from fairlead.data.batches import Draw
from fairlead.errors import FairleadError
from fairlead.probe.base import Measure, Sums, added

Ids: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Request:
    """One exchange, for the clients of an executor."""

    program: str
    """The name of the client program."""
    broadcast: Mapping[str, Tensor | float]
    round: int
    exchange: int
    """The number of this exchange within its round."""
    clients: Ids
    weights: Tensor
    """The clients' weights in the mean, (S,)."""
    draw_of: Callable[[Ids], Draw]
    """The batches of some of the round's clients."""
    measures: tuple[Measure, ...] = ()
    rows: bool = False
    """Whether the server looks at single uploads."""
    measuring: bool = False
    """Whether the program belongs to a probe: it is run as it is, and sums are exact."""
    lasting: frozenset[str] = frozenset()
    """The names of the vectors that clients keep until they change."""

    @cached_property
    def draw(self) -> Draw:
        """The batches of the clients."""
        return self.draw_of(self.clients)

    def of(self, places: Ids, weights: Tensor) -> Request:
        """The same request for some of the clients."""
        return replace(self, clients=self.clients[places], weights=weights)


class Served(Protocol):
    """What an answer needs of a client, or of S clients at once, after its program has run."""

    gradients: Any
    measured: Sums

    @property
    def held(self) -> dict[str, Tensor]: ...

    def bits(self, upload: Upload) -> tuple[int | Tensor, float]: ...

    def moved_buffers(self) -> Tensor | None: ...


@dataclass
class Answer:
    """What the clients of a request returned: weighted sums of their uploads and buffers, their new states,
    and what they cost."""

    count: int
    """How many clients answered."""
    answered: Ids | None = None
    """The positions of those that answered in the request, where some did not."""
    kind: type[Any] = Upload
    """The class of their upload."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, Tensor] = field(default_factory=dict)
    """The uploads themselves in the order of the clients, (S, d), where the request asks for them, and fields
    that the server of a measure sees client by client."""
    buffers: Tensor | None = None
    states: list[tuple[Ids, Memory]] = field(default_factory=list)
    residuals: list[tuple[Ids, dict[str, Tensor]]] = field(default_factory=list)
    up: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    """Bits from each client."""
    up_later: list[tuple[Ids, Tensor]] = field(default_factory=list)
    """Bits of some of the clients, by position, that are still on the device."""
    nominal: float = 0.0
    gradients: int = 0
    measured: Sums = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.up):
            self.up = np.zeros(self.count, np.int64)

    def take(
        self, served: Served, returned: Any, places: Ids, request: Request, weights: Any
    ) -> None:
        """Add what some of the clients returned; `places` are their positions in the request, and
        `weights @ rows` is their mean, or one for each of several runs."""
        upload, kept = checked(returned, len(places), request.broadcast)
        ids = request.clients[places]
        self.kind = type(upload)
        exact, nominal = served.bits(upload)
        if isinstance(exact, int):
            self.up[places] = exact
        else:
            self.up_later.append((places, exact))
        self.nominal += nominal * len(places)
        self.gradients += served.gradients
        for name, value in upload.tensors().items():
            alone = name.partition("/")[0] in upload.each
            if not alone:
                self._add(name, value, weights)
            if alone or request.rows:
                self._place(name, rows_of(value, len(places)), places)
        if kept is not None:
            self.states.append((ids, kept))
        if served.held:
            self.residuals.append((ids, served.held))
        after = served.moved_buffers()
        if after is not None and after.numel():
            moved = weights @ rows_of(after, len(places))
            self.buffers = moved if self.buffers is None else self.buffers + moved
        self.measured = added(self.measured, served.measured)
        for measure in request.measures:
            self.measured = added(
                self.measured, {measure.name: measure.upload(upload, len(places))}
            )

    def _place(self, name: str, rows: Tensor, places: Ids) -> None:
        if np.array_equal(places, np.arange(self.count)):
            self.rows[name] = rows
            return
        if name not in self.rows:
            self.rows[name] = rows.new_zeros((self.count, rows.shape[-1]))
        self.rows[name][torch.from_numpy(places).to(rows.device)] = rows

    def _add(self, name: str, value: Tensor, weights: Any) -> None:
        total = self.sums.get(name)
        if value.dim() == 1 and len(weights) == 1 and value.device.type == "cpu":
            w = float(weights)  # in place, one pass over the vector
            self.sums[name] = value * w if total is None else total.add_(value, alpha=w)
            return
        new = weights @ rows_of(value, len(weights))
        self.sums[name] = new if total is None else total + new


class Executor(ABC):
    """Runs client programs."""

    @property
    def remark(self) -> str:
        """What to report about how it runs."""
        return ""

    @abstractmethod
    def execute(self, request: Request) -> Answer:
        """Run the program for the clients of the request; writes nothing."""


def rows_of(value: Tensor, count: int) -> Tensor:
    """A vector of one client, or one that all clients share, as rows of a matrix."""
    return value.expand(count, -1) if value.dim() == 1 else value


def checked(
    returned: Any, clients: int, sent: Mapping[str, Tensor | float]
) -> tuple[Upload, Memory | None]:
    """What a program returned: its upload, and what the client keeps."""
    upload, kept = returned if isinstance(returned, tuple) else (returned, None)
    if not isinstance(upload, Upload):
        raise FairleadError(
            f"a client program returned {type(upload).__name__}: return an Upload, "
            "or an Upload and a Memory"
        )
    shapes = [t.shape for t in sent.values() if isinstance(t, Tensor)]
    for name, v in upload.tensors().items():
        lost = v.dim() == 1 and clients > 1 and len(v) == clients
        if v.dim() == 0 or (lost and all(v.shape != shape for shape in shapes)):
            raise FairleadError(
                f"the upload {name} has shape {tuple(v.shape)}: vectors keep their last axis, "
                "for example norm(dim=-1, keepdim=True)"
            )
    return upload, kept
