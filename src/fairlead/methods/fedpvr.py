"""FedPVR, Algorithm I of Li, Schmidt, Alstrøm and Stich 2023: partial variance reduction.

x: the server's model     y: a client's model     c, c_i: control variates, on the part only
part: S_svr, the variance-reduced coordinates     lr: η_l     server_lr: η_g
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.domain import Simplex
from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import Memory, State, Upload
from fairlead.errors import FairleadError, unknown
from fairlead.methods.server import ServerStep, Slots
from fairlead.schedules import Rate


class Server(State):
    """The model, the mean control variate of the part, the server optimizer's state."""

    x: Tensor
    c: Tensor
    slots: Slots


class Kept(Memory):
    """A client's control variate of the part."""

    c: Tensor


class Deltas(Upload):
    """A client's step, and the change of its control variate on the part."""

    dy: Tensor
    dc: Tensor


@dataclass(frozen=True)
class FedPVR(ServerStep, Algorithm[Server, Kept]):
    """SCAFFOLD on the last layers, SGD (optionally with momentum) on the others.

    layers: how many of the last layers (−3), names of layers or of parameters, or a 0/1 mask of
    length d. All of them is SCAFFOLD II, none is FedAvg.
    """

    paper: ClassVar[str] = "fedpvr"
    lr: Rate
    layers: int | Sequence[str] | Tensor = -1
    momentum: float = 0.0
    compressor: Compressor | None = None
    part: slice | Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise FairleadError(f"momentum is {self.momentum}: must be in [0, 1)")

    def bind(self, layers: Mapping[str, slice], domain: Simplex | None = None) -> Self:
        return replace(super().bind(layers, domain), part=_part(self.layers, layers))

    def init(self, x: Tensor) -> Server:
        return Server(x=x, c=torch.zeros_like(x[self._at()]), slots={})

    def memory(self, x: Tensor) -> Kept:
        return Kept(c=torch.zeros_like(x[self._at()]))

    def _at(self) -> slice | Tensor:
        """The coordinates of the part."""
        if self.part is None:
            raise FairleadError(
                "FedPVR is not bound to a model's layers yet: call bind(task.layers)"
            )
        return self.part

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.run(self.local, x=s.x, c=s.c)
        x, slots = self.advance(s.x, up.mean.dy, s.slots, cohort)  # line 14, corrected for any η_g
        return Server(x=x, c=s.c + up.share * up.mean.dc, slots=slots)  # line 15

    def local(self, client: Client[Kept], x: Tensor, c: Tensor) -> tuple[Deltas, Kept]:
        y, c_i, at, buffer = x, client.memory.c, self._at(), torch.zeros_like(x)
        for step in client.steps(self.lr):
            g = step.grad(y)
            buffer = self.momentum * buffer + g if self.momentum else g
            d = buffer.clone()  # line 8: SGD elsewhere
            d[..., at] = g[..., at] - c_i + c  # line 9: SCAFFOLD on the part
            y = step.at(y - step.lr * d)
        c_new = c_i - c + (x[..., at] - y[..., at]) / client.moved  # line 11
        sent = client.encode(Deltas(dy=y - x, dc=c_new - c_i), self.compressor)  # line 12
        return sent, Kept(c=c_new if self.compressor is None else c_i + sent.dc)


def _part(chosen: int | Sequence[str] | Tensor, layers: Mapping[str, slice]) -> slice | Tensor:
    """The coordinates of the chosen layers, as a slice if they are contiguous."""
    d = max(place.stop for place in layers.values())
    if isinstance(chosen, Tensor):
        if chosen.shape != (d,):
            raise FairleadError(
                f"the mask has shape {tuple(chosen.shape)}: must be ({d},), one entry per parameter"
            )
        mask = chosen.bool().cpu()
    else:
        groups = list(dict.fromkeys(name.rpartition(".")[0] for name in layers))
        if isinstance(chosen, int):
            if not -len(groups) <= chosen <= 0:
                raise FairleadError(
                    f"layers is {chosen}: must be in [−{len(groups)}, 0], to count the last layers"
                )
            wanted = groups[len(groups) + chosen :]
        else:
            wanted = [chosen] if isinstance(chosen, str) else list(chosen)
        mask = torch.zeros(d, dtype=torch.bool)
        for name in wanted:
            hits = [
                at for key, at in layers.items() if key == name or key.rpartition(".")[0] == name
            ]
            if not hits:
                raise unknown("layer", name, [*groups, *layers])
            for at in hits:
                mask[at] = True
    index = mask.nonzero()[:, 0]
    if len(index) == 0:
        return slice(d, d)
    first, last = int(index[0]), int(index[-1]) + 1
    return slice(first, last) if last - first == len(index) else index
