"""How gradients are computed: settled before the first one, part of the run, kept in its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Way: TypeAlias = Literal["vmap", "stacked"]
ANY = 0
"""Among the captured widths: every width is captured."""


@dataclass(frozen=True)
class Form:
    """How gradients are computed.

    way: many clients at once by `torch.func.vmap`, or by layers written for a matrix of clients
        (`fairlead.gradients.stacked`).
    half: in bfloat16, from and to vectors of full precision.
    compiled: the parts of captured exchanges are made by `torch.compile`.
    deferred: one client's vectors as `fairlead.gradients.deferred` sums; "products" also leaves gradients
        that are matrix products to be multiplied into them.
    capture: batch widths whose gradients are captured as a flat list of operators (see
        `fairlead.gradients.capture`); by itself that changes no bit.
    kernels: captured operators are replaced by faster ones on a CPU, which round differently.
    onednn: large products of captured operators, and dense layers in evaluations, are computed by oneDNN (see
        `fairlead.gradients.products`).
    """

    way: Way = "vmap"
    half: bool = False
    compiled: bool = False
    deferred: Literal["", "sums", "products"] = ""
    capture: tuple[int, ...] = ()
    kernels: bool = False
    onednn: bool = False

    def __str__(self) -> str:
        return self.way + ", compiled" * self.compiled + ", bfloat16" * self.half

    def captures(self, width: int) -> bool:
        """Whether gradients of batches of this width are captured."""
        return width in self.capture or ANY in self.capture

    @classmethod
    def read(cls, saved: dict[str, Any]) -> Form:
        """From what a checkpoint keeps."""
        found = cls(**{**saved, "capture": tuple(saved["capture"])})
        words = found.way in ("vmap", "stacked") and found.deferred in ("", "sums", "products")
        if not words or not all(type(width) is int for width in found.capture):
            raise TypeError("this is no form of gradients")
        return found
