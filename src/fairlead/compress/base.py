"""Compressors: what a vector becomes on the wire.

A compressor turns vectors (S, d), one row a client, into a code, which is a record of small tensors
with one row a client, and back. `pack` makes the bytes of one client's code and `unpack` reads them,
exactly; `size` counts 8 × their length without making them. Noise depends on (seed, round, client,
message) alone, so that it is the same in every engine and on every device.

One's own is a small class with `encode` and `decode`; what its code's tensors hold is then packed as
it is.

>>> from fairlead.compress import QSGD
>>> q = QSGD(bits=2)
>>> v = torch.tensor([[3.0, 0.0, -4.0]])
>>> noise = Noise(torch.tensor([[1, 2]]))
>>> code = q.encode(v, noise)
>>> q.size(code, 3), len(q.pack({k: t[0] for k, t in code.items()}, 3)) * 8
(48, 48)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fairlead.errors import FairleadError
from fairlead.rng import hashed

Code: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class Noise:
    """Random numbers for one message of each of S clients, from a key of two words a client."""

    keys: Tensor

    def uniform(self, d: int, dtype: torch.dtype, rows: slice = slice(None)) -> Tensor:
        """Numbers in (0, 1): (S, d), or some rows of them."""
        return hashed(self.keys[rows], d, dtype)


class Compressor(ABC):
    """Turns vectors into codes and back."""

    nominal: ClassVar[float | None] = None
    unbiased: ClassVar[bool] = True

    @abstractmethod
    def encode(self, v: Tensor, noise: Noise) -> Code:
        """The code of the vectors (S, d)."""

    @abstractmethod
    def decode(self, code: Code, d: int, dtype: torch.dtype, noise: Noise) -> Tensor:
        """The vectors (S, d) that a code stands for."""

    def size(self, code: Code, d: int) -> int | Tensor:
        """Bits of each client's packed code: one number for all, or (S,)."""
        return sum(8 * t.element_size() * t[0].numel() for t in code.values())

    def pack(self, code: Code, d: int) -> bytes:
        """The bytes of one client's code (its tensors without the client axis)."""
        return b"".join(raw(t) for t in code.values())

    def unpack(self, data: bytes, d: int, dtype: torch.dtype) -> Code:
        """One client's code from its bytes."""
        raise FairleadError(
            f"{type(self).__name__} does not say how its bytes are read: add unpack"
        )

    def nominal_bits(self, d: int, dtype: torch.dtype) -> float:
        """Bits of a vector as papers count them."""
        return d * (self.nominal or 8 * torch.empty((), dtype=dtype).element_size())


def raw(t: Tensor) -> bytes:
    """The bytes of a tensor, little end first."""
    t = t.detach().cpu().contiguous()
    array = (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


_NAMES = {torch.float32: "f4", torch.float64: "f8", torch.bfloat16: "i2", torch.float16: "f2"}


def from_raw(data: bytes, dtype: torch.dtype) -> Tensor:
    """The vector whose bytes these are."""
    name = _NAMES[dtype]
    values = torch.from_numpy(np.frombuffer(data, "<" + name).astype(name))
    return values.view(dtype) if dtype == torch.bfloat16 else values


@dataclass(frozen=True)
class Identity(Compressor):
    """Every coordinate as it is."""

    def encode(self, v: Tensor, noise: Noise) -> Code:
        return {"v": v}

    def decode(self, code: Code, d: int, dtype: torch.dtype, noise: Noise) -> Tensor:
        return code["v"]

    def unpack(self, data: bytes, d: int, dtype: torch.dtype) -> Code:
        return {"v": from_raw(data, dtype)}


@dataclass(frozen=True)
class BFloat16(Compressor):
    """Every coordinate rounded to sixteen bits."""

    nominal: ClassVar[float | None] = 16
    unbiased: ClassVar[bool] = False

    def encode(self, v: Tensor, noise: Noise) -> Code:
        return {"v": v.to(torch.bfloat16)}

    def decode(self, code: Code, d: int, dtype: torch.dtype, noise: Noise) -> Tensor:
        return code["v"].to(dtype)

    def unpack(self, data: bytes, d: int, dtype: torch.dtype) -> Code:
        return {"v": from_raw(data, torch.bfloat16)}
