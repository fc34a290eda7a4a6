"""Sparsifying compressors: send only the largest coordinates, or random ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fairlead.compress.base import Code, Compressor, Noise, from_raw, raw
from fairlead.compress.bits import read_fixed, write_bits
from fairlead.errors import FairleadError


def _count(k: int | float, d: int) -> int:
    if not k > 0 or (isinstance(k, float) and k > 1):
        raise FairleadError(
            f"k is {k}: it must be a positive number of coordinates, or a fraction in (0, 1]"
        )
    return min(d, max(1, round(k * d)) if isinstance(k, float) else k)


@dataclass(frozen=True)
class TopK(Compressor):
    """The k largest coordinates (a count, or a fraction of d) and their indices.

    >>> from fairlead.compress import Noise
    >>> noise, v = Noise(torch.tensor([[1, 2]])), torch.tensor([[1.0, -5.0, 0.5, 3.0]])
    >>> TopK(2).decode(TopK(2).encode(v, noise), 4, torch.float32, noise)
    tensor([[ 0., -5.,  0.,  3.]])
    """

    k: int | float = 0.01
    unbiased: ClassVar[bool] = False

    def encode(self, v: Tensor, noise: Noise) -> Code:
        index = v.abs().topk(_count(self.k, v.shape[-1]), dim=-1).indices.sort(dim=-1).values
        return {"values": v.gather(-1, index), "index": index}

    def decode(self, code: Code, d: int, dtype: torch.dtype, noise: Noise) -> Tensor:
        values = code["values"]
        return values.new_zeros(len(values), d).scatter_(-1, code["index"], values)

    @staticmethod
    def _index_bits(d: int) -> int:
        return max(1, math.ceil(math.log2(d))) if d > 1 else 1

    def size(self, code: Code, d: int) -> int | Tensor:
        k = code["values"].shape[-1]
        return 8 * code["values"].element_size() * k + 8 * math.ceil(k * self._index_bits(d) / 8)

    def nominal_bits(self, d: int, dtype: torch.dtype) -> float:
        return super().nominal_bits(_count(self.k, d), dtype)

    def pack(self, code: Code, d: int) -> bytes:
        index = code["index"].cpu().numpy()
        return raw(code["values"]) + write_bits(index, np.full_like(index, self._index_bits(d)))

    def unpack(self, data: bytes, d: int, dtype: torch.dtype) -> Code:
        k = _count(self.k, d)
        cut = k * torch.empty((), dtype=dtype).element_size()
        index = torch.from_numpy(read_fixed(data[cut:], self._index_bits(d), k))
        return {"values": from_raw(data[:cut], dtype), "index": index}


@dataclass(frozen=True)
class RandK(Compressor):
    """k random coordinates, scaled by d/k to be unbiased. Their indices come from the seed that
    both sides share, so they are not sent.

    >>> from fairlead.compress import Noise
    >>> noise, v = Noise(torch.tensor([[1, 2]])), torch.ones(1, 4)
    >>> sent = RandK(1).decode(RandK(1).encode(v, noise), 4, torch.float32, noise)
    >>> sent.sum()  # one coordinate, four times as large
    tensor(4.)
    """

    k: int | float = 0.01

    def _index(self, d: int, noise: Noise) -> Tensor:
        draws = noise.uniform(d, torch.float64)
        return draws.topk(_count(self.k, d), dim=-1).indices.sort(dim=-1).values

    def encode(self, v: Tensor, noise: Noise) -> Code:
        d = v.shape[-1]
        return {"values": v.gather(-1, self._index(d, noise)) * (d / _count(self.k, d))}

    def decode(self, code: Code, d: int, dtype: torch.dtype, noise: Noise) -> Tensor:
        values = code["values"]
        return values.new_zeros(len(values), d).scatter_(-1, self._index(d, noise), values)

    def nominal_bits(self, d: int, dtype: torch.dtype) -> float:
        return super().nominal_bits(_count(self.k, d), dtype)

    def unpack(self, data: bytes, d: int, dtype: torch.dtype) -> Code:
        return {"values": from_raw(data, dtype)}
