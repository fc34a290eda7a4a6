"""FedPVR, Algorithm I of Li, Schmidt, Alstrøm and Stich 2023: partial variance reduction.

x: the server's model     y: a client's model     c, c_i: control variates, on the part only
part: S_svr, the variance-reduced coordinates     lr: η_l     server_lr: η_g
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.domain import Simplex
from fairlead.core.method import Algorithm, Client, Cohort
from fairlead.core.records import Memory, State, Upload
from fairlead.errors import FairleadError, unknown
from fairlead.methods.local import LocalMomentum
from fairlead.methods.server import Slots
from fairlead.schedules import Rate


class Server(State):
    """The model, the mean control variate of the part, the server optimizer's state."""

    x: Tensor
    c: Tensor
    slots: Slots


class Kept(Memory):
    """A client's control variate of the part, and the state of its optimizer where that is kept."""

    c: Tensor
    slots: Slots


class Start(Upload):
    """A client's gradient at the starting point, on the part."""

    c: Tensor


class Deltas(Upload):
    """A client's step, and the change of its control variate on the part."""

    dy: Tensor
    dc: Tensor


@dataclass(frozen=True)
class FedPVR(LocalMomentum, Algorithm[Server, Kept]):
    """SCAFFOLD on the last layers, SGD (optionally with momentum) on the others.

    layers: how many of the last layers (−3), names of layers or of parameters, "from:16" for the
        parameter tensors from number 16 on, or a 0/1 mask of length d. All of them is SCAFFOLD, none is FedAvg.
    option, warm_start: as in `Scaffold`, on the part; the paper has "II" without a warm start.
    momentum, momentum_reset, local: of the other layers, as in `FedAvg`; the paper's experiments use a
        momentum of 0.9.

    >>> import fairlead as fl
    >>> task = fl.tasks.digits(clients=4, model="mlp")
    >>> run = fl.train(task, FedPVR(lr=0.1, layers=-1), rounds=1, steps=1, batch_size=8)
    >>> task.dim, run.state.c.shape  # control variates of the last layer only
    (4810, torch.Size([650]))
    """

    paper: ClassVar[str] = "fedpvr"
    refuses: ClassVar[Mapping[str, str]] = {
        "aggregate": "c is the mean of the clients' control variates only if means are taken",
    }
    lr: Rate
    layers: int | str | Sequence[str] | Tensor = -1
    compressor: Compressor | None = None
    option: Literal["I", "II"] = "II"
    warm_start: bool = False
    part: slice | Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.option not in ("I", "II"):
            raise unknown("option", str(self.option), ["I", "II"])

    def bind(self, layers: Mapping[str, slice], domain: Simplex | None = None) -> Self:
        return replace(super().bind(layers, domain), part=_part(self.layers, layers))

    def init(self, x: Tensor) -> Server:
        return Server(x=x, c=torch.zeros_like(x[self._at()]), slots={})

    def memory(self, x: Tensor) -> Kept:
        return self._begun(torch.zeros_like(x[self._at()]), x)

    def _begun(self, c: Tensor, x: Tensor) -> Kept:
        """What a client keeps before its first step."""
        return Kept(c=c, slots=self.optimizer.kept(self.optimizer.start(x)))

    def _at(self) -> slice | Tensor:
        """The coordinates of the part."""
        if self.part is None:
            raise FairleadError(
                "FedPVR is not bound to a model's layers yet: call bind(task.layers)"
            )
        return self.part

    def start(self, s: Server, everyone: Cohort) -> Server:
        if not self.warm_start:
            return s
        return Server(x=s.x, c=everyone.run(self.warm, x=s.x).mean.c, slots=s.slots)

    def warm(self, client: Client[Kept], x: Tensor) -> tuple[Start, Kept]:
        c_i = client.grad(x)[..., self._at()]
        return Start(c=c_i), self._begun(c_i, x)

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.run(self.local_steps, x=s.x, c=s.c)
        x, slots = self.advance(s.x, up.mean.dy, s.slots, cohort)  # line 14, corrected for any η_g
        return Server(x=x, c=s.c + up.share * up.mean.dc, slots=slots)  # line 15

    def local_steps(self, client: Client[Kept], x: Tensor, c: Tensor) -> tuple[Deltas, Kept]:
        y, c_i, at, optimizer = x, client.memory.c, self._at(), self.optimizer
        slots = optimizer.begin(client, x)
        for step in client.steps(self.lr):
            g = step.grad(y)
            d, slots = optimizer.next(step, y, g, slots)
            d = d.clone()  # line 8: SGD elsewhere
            d[..., at] = g[..., at] - c_i + c  # line 9: SCAFFOLD on the part
            y = step.at(y - step.lr * d)
        if self.option == "I":
            c_new = client.grad(x)[..., at]
        else:
            c_new = c_i - c + (x[..., at] - y[..., at]) / client.moved  # line 11
        sent = client.encode(Deltas(dy=y - x, dc=c_new - c_i), self.compressor)  # line 12
        c_i = c_new if self.compressor is None else c_i + sent.dc
        return sent, Kept(c=c_i, slots=optimizer.kept(slots))


def _part(
    chosen: int | str | Sequence[str] | Tensor, layers: Mapping[str, slice]
) -> slice | Tensor:
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
        elif isinstance(chosen, str) and chosen.startswith("from:"):
            wanted = _from(chosen, list(layers))
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


def _from(chosen: str, names: list[str]) -> list[str]:
    """The parameter tensors from a number on, counted from 0 as in the paper's figures.

    >>> _from("from:1", ["0.weight", "0.bias", "1.weight"])
    ['0.bias', '1.weight']
    """
    text = chosen.removeprefix("from:")
    if not text.isdecimal() or int(text) > len(names):
        raise FairleadError(
            f"layers is {chosen}: the model has {len(names)} parameter tensors, so give from:0 to "
            f"from:{len(names)}"
        )
    return names[int(text) :]
