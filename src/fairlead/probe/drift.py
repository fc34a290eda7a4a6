"""How far clients drift apart within a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fairlead.core.records import Upload
from fairlead.probe.base import Measure


@dataclass(frozen=True)
class DriftDiversity(Measure):
    """Drift diversity, definition 1 of Li et al. 2023 (FedPVR): ξ = Σ‖m_i‖² / ‖Σ m_i‖² with m_i = y_i − x, of
    the whole model and of each layer.

    With S clients it is 1/S where all move the same way and 1 where they move at right angles; the more
    they pull apart, the larger it gets.

    >>> drift = DriftDiversity({"a": slice(0, 1), "b": slice(1, 3)})
    >>> class Moved(Upload):
    ...     dy: Tensor
    >>> sums = drift.upload(Moved(dy=torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])), 2)
    >>> drift.value(sums)
    {'drift': 0.6666666865348816, 'drift/a': 0.5, 'drift/b': 1.0}
    """

    leaves: ClassVar[str] = (
        "its step y − x and the square of each of its coordinates, summed with those of others"
    )
    layers: Mapping[str, slice] = field(repr=False)
    name: str = "drift"
    part: Any = field(default=None, repr=False, compare=False)
    """The coordinates that the method variance-reduces; the diversity of the others is then `drift_rest`."""

    def upload(self, upload: Upload, clients: int) -> dict[str, Tensor]:
        m = upload.drift()
        if m is None:
            return {}
        rows = m.expand(clients, -1) if m.dim() == 1 else m
        return {"squares": (rows * rows).sum(0), "total": rows.sum(0)}

    def value(self, total: Mapping[str, Tensor]) -> dict[str, float]:
        if not total:
            return {}
        sizes = torch.tensor([part.stop - part.start for part in self.layers.values()])
        layer = torch.arange(len(sizes)).repeat_interleave(sizes).to(total["total"].device)
        both = torch.stack([total["squares"], total["total"] * total["total"]])
        by_layer = both.new_zeros(2, len(self.layers)).index_add_(1, layer, both)
        top, bottom = torch.cat([by_layer.sum(1, keepdim=True), by_layer], 1)
        names = [self.name, *(f"{self.name}/{name}" for name in self.layers)]
        found = dict(zip(names, (top / bottom).tolist(), strict=True))
        if self.part is not None:
            outside = torch.ones_like(both[0])
            outside[self.part] = 0
            above, below = (both * outside).sum(1).tolist()
            found |= {f"{self.name}_rest": above / below} if below > 0 else {}
        return found


@dataclass(frozen=True)
class ClientDrift(Measure):
    """Client drift, (23) of Karimireddy et al. 2020: the mean of ‖y_{i,k} − x‖² over clients and their local
    steps k = 1 … K. Only for methods that mark their points with `step.at(y)`."""

    leaves: ClassVar[str] = "the sum of ‖y − x‖² over its steps, summed with those of others"
    name: str = "client_drift"

    def point(self, y: Tensor, x: Tensor, active: Any) -> dict[str, Tensor]:
        square = (y - x).square().sum(-1, keepdim=True)
        on = torch.as_tensor(active, dtype=square.dtype, device=square.device).reshape(-1)
        return {
            "squares": (square.reshape(-1) * on).sum().reshape(1),
            "count": on.sum().reshape(1),
        }

    def value(self, total: Mapping[str, Tensor]) -> dict[str, float]:
        return {self.name: float(total["squares"] / total["count"])} if total else {}
