"""Compressors: what a vector becomes on the wire.

A compressor turns vectors (S, d), one row a client, into a code, which is a record of small tensors
with one row a client, and back. `pack` makes the bytes of one client's code and `unpack` reads them,
exactly; `size` counts 8 × their length without making them. Noise depends on (seed, round, client,
message) alone, so that it is the same in every engine and on every device.

One's own is a small class with `encode` and `decode`; what its code's tensors hold is then packed as
it is.

>>> q = QSGD(bits=2)
>>> v = torch.tensor([[3.0, 0.0, -4.0]])
>>> noise = Noise(torch.tensor([[1, 2]]))
>>> code = q.encode(v, noise)
>>> q.size(code, 3), len(q.pack({k: t[0] for k, t in code.items()}, 3)) * 8
(48, 48)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fairlead.bits import BitReader, gamma_width, read_fixed, write_bits
from fairlead.errors import FairleadError, unknown
from fairlead.rng import hashed, row_blocks

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


@dataclass(frozen=True)
class QSGD(Compressor):
    """QSGD (Alistarh et al. 2017): the norm, and each coordinate at random on one of the two
    neighbouring of s levels of it, so that the mean is right.

    bits: b gives s = 2^b − 1 levels; or give `levels`. wire: "fixed" packs every coordinate into
    ⌈log2(2s + 1)⌉ bits; "elias" writes the distances and levels of those that are not zero in Elias
    gamma code, shorter when there are few. A vector whose norm is not finite decodes to NaN, one
    too small for its precision to zero.
    """

    bits: int = 2
    levels: int | None = None
    wire: Literal["fixed", "elias"] = "fixed"

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 1 <= self.s <= 16383 or self.s != int(self.s):
            raise FairleadError("QSGD takes 1 to 14 bits, or 1 to 16383 levels")
        if self.wire not in ("fixed", "elias"):
            raise unknown("wire format", self.wire, ["fixed", "elias"])

    @property
    def s(self) -> int:
        """Levels above zero."""
        return 2**self.bits - 1 if self.levels is None else self.levels

    @property
    def width(self) -> int:
        """Bits of a coordinate in the fixed format."""
        return math.ceil(math.log2(2 * self.s + 1))

    def nominal_bits(self, d: int, dtype: torch.dtype) -> float:
        return d * (self.bits if self.levels is None else math.log2(self.s + 1))

    def encode(self, v: Tensor, noise: Noise) -> Code:
        s, d = self.s, v.shape[-1]
        parts = [
            torch.linalg.vector_norm(v[rows], dim=-1, keepdim=True, dtype=torch.float64)
            for rows in row_blocks(len(v), d, v.device)
        ]
        norm = torch.cat(parts).to(v.dtype)
        scale = (s / norm.double()).to(v.dtype)
        usable = torch.isfinite(scale) & torch.isfinite(norm)
        norm = torch.where(torch.isfinite(norm) & ~usable, 0.0, norm)
        scale = torch.where(usable, scale, 0.0)
        q = torch.empty(v.shape, dtype=torch.int8 if s < 128 else torch.int16, device=v.device)
        for rows in row_blocks(len(v), d, v.device):
            # ⌊v·s/‖v‖ + u⌋ with u uniform: the level below or above, with the right mean
            u = noise.uniform(d, v.dtype, rows)
            level = torch.addcmul(u, v[rows], scale[rows]).floor_()
            q[rows] = level.nan_to_num_(nan=0.0).clamp_(-s, s)
        return {"norm": norm, "q": q}

    def decode(self, code: Code, d: int, dtype: torch.dtype, noise: Noise) -> Tensor:
        q, scale = code["q"], code["norm"] / self.s
        v = torch.empty(q.shape, dtype=scale.dtype, device=q.device)
        for rows in row_blocks(len(q), d, q.device):
            torch.mul(q[rows], scale[rows], out=v[rows])
        return v

    def size(self, code: Code, d: int) -> int | Tensor:
        norm = 8 * code["norm"].element_size()
        if self.wire == "fixed":
            return norm + 8 * math.ceil(d * self.width / 8)
        return norm + 8 * ((self._elias_bits(code["q"]) + 7) // 8)

    def _elias_bits(self, q: Tensor) -> Tensor:
        """How many bits `_fields` has for each row (S, d), counted where the rows lie."""
        used = q != 0
        place = torch.arange(1, q.shape[-1] + 1, device=q.device)
        last = torch.where(used, place, 0).cummax(-1).values
        before = torch.nn.functional.pad(last[..., :-1], (1, 0))
        widths = _gamma_widths(place - before) + 1 + _gamma_widths(q.abs().long())
        count = used.sum(-1)
        return torch.where(used, widths, 0).sum(-1) + _gamma_widths(count + 1)

    def _fields(self, q: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Values and widths in the Elias format: how many levels are not zero, then for each its
        distance from the one before, its sign and its size."""
        levels = q.cpu().numpy().astype(np.int64)
        at = np.flatnonzero(levels)
        gaps, sizes = np.diff(at, prepend=-1), np.abs(levels[at])
        triples = np.stack([gaps, levels[at] < 0, sizes], 1).reshape(-1)
        ones = np.ones_like(gaps)
        widths = np.stack([gamma_width(gaps), ones, gamma_width(sizes)], 1).reshape(-1)
        count = np.array([len(at) + 1])
        return np.concatenate([count, triples]), np.concatenate([gamma_width(count), widths])

    def pack(self, code: Code, d: int) -> bytes:
        if self.wire == "elias":
            return raw(code["norm"]) + write_bits(*self._fields(code["q"]))
        symbols = code["q"].cpu().numpy().astype(np.int64) + self.s
        return raw(code["norm"]) + write_bits(symbols, np.full_like(symbols, self.width))

    def unpack(self, data: bytes, d: int, dtype: torch.dtype) -> Code:
        size = torch.empty((), dtype=dtype).element_size()
        norm, rest = from_raw(data[:size], dtype), data[size:]
        if self.wire == "fixed":
            q = read_fixed(rest, self.width, d) - self.s
        else:
            reader, at = BitReader(rest), -1
            q = np.zeros(d, dtype=np.int64)
            for _ in range(reader.gamma() - 1):
                at += reader.gamma()
                sign = -1 if reader.take(1) else 1
                q[at] = sign * reader.gamma()
        return {
            "norm": norm,
            "q": torch.from_numpy(q).to(torch.int8 if self.s < 128 else torch.int16),
        }


def _gamma_widths(n: Tensor) -> Tensor:
    """Bits of whole numbers above zero in Elias gamma code."""
    return 2 * torch.frexp(n.double().clamp(min=1)).exponent.long() - 1


def _count(k: int | float, d: int) -> int:
    if not k > 0 or (isinstance(k, float) and k > 1):
        raise FairleadError(
            f"k is {k}: keep a positive number of coordinates, or a fraction up to 1"
        )
    return min(d, max(1, round(k * d)) if isinstance(k, float) else k)


@dataclass(frozen=True)
class TopK(Compressor):
    """The k largest coordinates (a number, or a fraction of d) with their places."""

    k: int | float = 0.01
    unbiased: ClassVar[bool] = False

    def encode(self, v: Tensor, noise: Noise) -> Code:
        index = v.abs().topk(_count(self.k, v.shape[-1]), dim=-1).indices.sort(dim=-1).values
        return {"values": v.gather(-1, index), "index": index}

    def decode(self, code: Code, d: int, dtype: torch.dtype, noise: Noise) -> Tensor:
        values = code["values"]
        return values.new_zeros(len(values), d).scatter_(-1, code["index"], values)

    @staticmethod
    def _place(d: int) -> int:
        return max(1, math.ceil(math.log2(d))) if d > 1 else 1

    def size(self, code: Code, d: int) -> int | Tensor:
        k = code["values"].shape[-1]
        return 8 * code["values"].element_size() * k + 8 * math.ceil(k * self._place(d) / 8)

    def nominal_bits(self, d: int, dtype: torch.dtype) -> float:
        return super().nominal_bits(_count(self.k, d), dtype)

    def pack(self, code: Code, d: int) -> bytes:
        places = code["index"].cpu().numpy()
        return raw(code["values"]) + write_bits(places, np.full_like(places, self._place(d)))

    def unpack(self, data: bytes, d: int, dtype: torch.dtype) -> Code:
        k = _count(self.k, d)
        cut = k * torch.empty((), dtype=dtype).element_size()
        places = torch.from_numpy(read_fixed(data[cut:], self._place(d), k))
        return {"values": from_raw(data[:cut], dtype), "index": places}


@dataclass(frozen=True)
class RandK(Compressor):
    """k random coordinates, scaled by d/k so that the mean is right. Which ones is drawn from the
    seed that both sides share, and does not travel."""

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


@dataclass(frozen=True)
class ErrorFeedback(Compressor):
    """Another compressor, whose clients add to each message what their earlier ones left out
    (Karimireddy et al. 2019); the engine keeps that remainder with the client."""

    inner: Compressor
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Compressor) or self.inner.unbiased:
            raise FairleadError(
                f"error feedback is for compressors that leave something out, such as TopK: with {self.inner}, "
                "whose errors are noise, the remainder would grow"
            )

    def encode(self, v: Tensor, noise: Noise) -> Code:
        return self.inner.encode(v, noise)

    def decode(self, code: Code, d: int, dtype: torch.dtype, noise: Noise) -> Tensor:
        return self.inner.decode(code, d, dtype, noise)

    def size(self, code: Code, d: int) -> int | Tensor:
        return self.inner.size(code, d)

    def nominal_bits(self, d: int, dtype: torch.dtype) -> float:
        return self.inner.nominal_bits(d, dtype)

    def pack(self, code: Code, d: int) -> bytes:
        return self.inner.pack(code, d)

    def unpack(self, data: bytes, d: int, dtype: torch.dtype) -> Code:
        return self.inner.unpack(data, d, dtype)


COMPRESSORS: dict[str, type[Compressor]] = {
    "identity": Identity,
    "bfloat16": BFloat16,
    "qsgd": QSGD,
    "topk": TopK,
    "randk": RandK,
}


def parse(text: str | None) -> Compressor | None:
    """A compressor as the command line writes it: qsgd:2, qsgd:2:elias, topk:0.01:ef, randk:100.

    >>> parse("topk:0.1:ef")
    ErrorFeedback(inner=TopK(k=0.1))
    """
    if text is None:
        return None
    name, *rest = text.split(":")
    if name not in COMPRESSORS:
        raise unknown("compressor", name, COMPRESSORS)
    feedback = "ef" in rest
    words = [word for word in rest if word != "ef"]
    arguments: list[Any] = []
    try:
        if name == "qsgd":
            arguments = [int(words[0]) if words else 2, None, *words[1:]]
        else:
            arguments = [int(word) if word.isdigit() else float(word) for word in words]
        made = COMPRESSORS[name](*arguments)
    except (ValueError, TypeError) as error:
        raise FairleadError(
            f"the compressor '{text}' cannot be read: write for example qsgd:2, qsgd:2:elias, "
            "topk:0.01:ef, randk:100 or bfloat16"
        ) from error
    return ErrorFeedback(made) if feedback else made
