"""The compressor interface, and the compressors without parameters.

A compressor turns vectors (S, d), one row per client, into a code (a dict of tensors with one row
per client) and back. `pack` serializes one client's code and `unpack` reads it back exactly; `size`
counts the bits without building the bytes. Noise depends only on (seed, round, client, message), so
it is the same in every engine and on every device.

A custom compressor is a small class with `encode` and `decode`; by default its code's tensors are
packed as they are.

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
    """Random numbers for one message from each of S clients, from a two-word key per client."""

    keys: Tensor

    def uniform(self, d: int, dtype: torch.dtype, rows: slice = slice(None)) -> Tensor:
        """Uniform numbers in (0, 1): (S, d), or only some rows."""
        return hashed(self.keys[rows], d, dtype)


class Compressor(ABC):
    """Turns vectors into codes and back.

    A compressor of your own that sends signs and one length:

    >>> class Signs(Compressor):
    ...     unbiased = False
    ...     def encode(self, v, noise):
    ...         return {"length": v.abs().mean(-1, keepdim=True), "signs": v >= 0}
    ...     def decode(self, code, d, dtype, noise):
    ...         return code["length"] * (2 * code["signs"].to(dtype) - 1)
    >>> signs, noise = Signs(), Noise(torch.tensor([[1, 2]]))
    >>> code = signs.encode(torch.tensor([[3.0, 1.0, -2.0]]), noise)
    >>> signs.decode(code, 3, torch.float32, noise)
    tensor([[ 2.,  2., -2.]])
    """

    nominal: ClassVar[float | None] = None
    unbiased: ClassVar[bool] = True

    @abstractmethod
    def encode(self, v: Tensor, noise: Noise) -> Code:
        """The code of the vectors (S, d)."""

    @abstractmethod
    def decode(self, code: Code, d: int, dtype: torch.dtype, noise: Noise) -> Tensor:
        """The vectors (S, d) that a code represents."""

    def size(self, code: Code, d: int) -> int | Tensor:
        """Bits in each client's packed code: one number for all clients, or (S,)."""
        return sum(8 * t.element_size() * t[0].numel() for t in code.values())

    def pack(self, code: Code, d: int) -> bytes:
        """The bytes of one client's code (its tensors without the client axis)."""
        return b"".join(raw(t) for t in code.values())

    def unpack(self, data: bytes, d: int, dtype: torch.dtype) -> Code:
        """One client's code from its bytes."""
        raise FairleadError(f"{type(self).__name__} cannot read its packed bytes: add unpack")

    def nominal_bits(self, d: int, dtype: torch.dtype) -> float:
        """Bits per vector as papers count them."""
        return d * (self.nominal or 8 * torch.empty((), dtype=dtype).element_size())


def raw(t: Tensor) -> bytes:
    """The bytes of a tensor, little-endian."""
    t = t.detach().cpu().contiguous()
    array = (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


_NAMES = {torch.float32: "f4", torch.float64: "f8", torch.bfloat16: "i2", torch.float16: "f2"}


def from_raw(data: bytes, dtype: torch.dtype) -> Tensor:
    """The vector stored in these bytes."""
    name = _NAMES[dtype]
    values = torch.from_numpy(np.frombuffer(data, "<" + name).astype(name))
    return values.view(dtype) if dtype == torch.bfloat16 else values


@dataclass(frozen=True)
class Identity(Compressor):
    """No compression.

    >>> Identity().nominal_bits(10, torch.float32)
    320
    """

    def encode(self, v: Tensor, noise: Noise) -> Code:
        return {"v": v}

    def decode(self, code: Code, d: int, dtype: torch.dtype, noise: Noise) -> Tensor:
        return code["v"]

    def unpack(self, data: bytes, d: int, dtype: torch.dtype) -> Code:
        return {"v": from_raw(data, dtype)}


@dataclass(frozen=True)
class BFloat16(Compressor):
    """Every coordinate rounded to bfloat16.

    >>> code = BFloat16().encode(torch.tensor([[1.001, 2.0]]), Noise(torch.tensor([[1, 2]])))
    >>> code["v"], BFloat16().size(code, 2)
    (tensor([[1., 2.]], dtype=torch.bfloat16), 32)
    """

    nominal: ClassVar[float | None] = 16
    unbiased: ClassVar[bool] = False

    def encode(self, v: Tensor, noise: Noise) -> Code:
        return {"v": v.to(torch.bfloat16)}

    def decode(self, code: Code, d: int, dtype: torch.dtype, noise: Noise) -> Tensor:
        return code["v"].to(dtype)

    def unpack(self, data: bytes, d: int, dtype: torch.dtype) -> Code:
        return {"v": from_raw(data, torch.bfloat16)}
