"""What clients return in an exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Memory, Upload
from fairlead.errors import FairleadError


@dataclass
class Collected:
    """What came from clients in an exchange: weighted sums of what they sent, their buffers, and their
    bits."""

    up: NDArray[np.int64]
    nominal: float = 0.0
    kind: type[Any] = Upload
    sums: dict[str, Tensor] = field(default_factory=dict)
    buffers: Tensor | None = None

    def add(self, name: str, value: Tensor, weights: Tensor) -> None:
        """Some clients' vectors of a field, (S, …), or one's own."""
        total = self.sums.get(name)
        if value.dim() == 1 and len(weights) == 1 and value.device.type == "cpu":
            w = float(weights)  # in place, one walk over the vector
            self.sums[name] = value * w if total is None else total.add_(value, alpha=w)
            return
        new = weights @ rows_of(value, len(weights))
        self.sums[name] = new if total is None else total + new


def bits_of(t: Tensor) -> int:
    return 8 * t.element_size() * t.numel()


def rows_of(value: Tensor, count: int) -> Tensor:
    """A vector of one client, or one that all clients share, as rows of a matrix."""
    return value.expand(count, -1) if value.dim() == 1 else value


def split_reply(
    returned: Any, clients: int, sent: dict[str, Tensor]
) -> tuple[Upload, Memory | None]:
    """What a program returned, checked."""
    upload, kept = returned if isinstance(returned, tuple) else (returned, None)
    if not isinstance(upload, Upload):
        raise FairleadError(
            f"a client program returned {type(upload).__name__}: return an Upload, "
            "or an Upload and a Memory"
        )
    for name, v in upload.tensors().items():
        lost = v.dim() == 1 and clients > 1 and len(v) == clients
        if v.dim() == 0 or (lost and all(v.shape != t.shape for t in sent.values())):
            raise FairleadError(
                f"the upload {name} has shape {tuple(v.shape)}: vectors keep their last axis, "
                "for example norm(dim=-1, keepdim=True)"
            )
    return upload, kept
