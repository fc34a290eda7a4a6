"""Messages: what travels between server and client, as bytes and back.

A message is a short header (version, method, program, round, exchange, client, and the shape of each
field) followed by the payload. Counted bits are eight times the length of the payload; the header, about a
hundred bytes, is not counted.

>>> sent = Message("FedAvg", "local", 3, 0, 7, (Field.plain("dy", torch.ones(2)),))
>>> back = Message.unpack(sent.pack())
>>> back.client, back.value("dy"), back.bits
(7, tensor([1., 1.]), 64)
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from torch import Tensor

from fairlead.compress import Code, Compressor, Noise, from_raw, raw
from fairlead.core.frame import framed, unframed
from fairlead.errors import FairleadError

VERSION = 1
_MAGIC = b"flms"
_DTYPES = {str(t): t for t in (torch.float32, torch.float64, torch.bfloat16, torch.float16)}


@dataclass(frozen=True)
class Coded:
    """One field of the uploads of S clients, encoded by a compressor."""

    by: Compressor
    code: Code
    noise: Noise
    d: int
    dtype: torch.dtype

    def pack(self, client: int) -> bytes:
        """The bytes of one of the clients."""
        return self.by.pack({name: t[client] for name, t in self.code.items()}, self.d)

    def value(self) -> Tensor:
        """The decoded vectors (S, d)."""
        return self.by.decode(self.code, self.d, self.dtype, self.noise)

    def through_bytes(self) -> Tensor:
        """The same by way of real bytes: what a deployed server would see."""
        rows = []
        for i in range(len(self.noise.keys)):
            data = self.pack(i)
            code = self.by.unpack(data, self.d, self.dtype)
            bits = self.by.size({n: t[i : i + 1] for n, t in self.code.items()}, self.d)
            if 8 * len(data) != int(bits):
                raise FairleadError(f"{self.by} counted {int(bits)} bits for {len(data)} bytes")
            rows.append({n: t.to(self.noise.keys.device) for n, t in code.items()})
        together = {n: torch.stack([row[n] for row in rows]) for n in rows[0]}
        return self.by.decode(together, self.d, self.dtype, self.noise)


@dataclass(frozen=True)
class Field:
    """One vector of a message."""

    name: str
    d: int
    dtype: torch.dtype
    data: bytes
    coded: bool = False

    @classmethod
    def plain(cls, name: str, v: Tensor) -> Field:
        """A vector as it is."""
        return cls(name, v.numel(), v.dtype, raw(v.reshape(-1)))

    @classmethod
    def of(cls, name: str, coded: Coded, client: int) -> Field:
        """The encoded vector of one of S clients."""
        return cls(name, coded.d, coded.dtype, coded.pack(client), coded=True)


@dataclass(frozen=True)
class Message:
    """One client's upload, or a broadcast to it.

    >>> sent = Message("FedAvg", "local", 3, 0, 7, (Field.plain("dy", torch.ones(2)),))
    >>> Message.unpack(sent.pack()).value("dy")
    tensor([1., 1.])
    """

    method: str
    program: str
    round: int
    exchange: int
    client: int
    fields: tuple[Field, ...] = ()

    @property
    def bits(self) -> int:
        """Bits of the payload."""
        return 8 * sum(len(field.data) for field in self.fields)

    def pack(self) -> bytes:
        """The message as bytes."""
        about = [self.method, self.program, self.round, self.exchange, self.client]
        fields = [[f.name, f.d, str(f.dtype), len(f.data), f.coded] for f in self.fields]
        header = json.dumps([*about, fields], separators=(",", ":")).encode()
        return framed(_MAGIC, VERSION, header, b"".join(field.data for field in self.fields))

    @classmethod
    def unpack(cls, data: bytes) -> Message:
        """A message from its bytes; anything else is refused in one sentence."""
        length, rest = unframed(data, _MAGIC, VERSION, "message")
        try:
            *about, listed = json.loads(rest[:length])
            method, program = map(str, about[:2])
            round, exchange, client = map(int, about[2:])
            fields, start = [], length
            for name, d, dtype, size, coded in listed:
                part = rest[start : start + size]
                fields.append(Field(str(name), int(d), _DTYPES[dtype], part, bool(coded)))
                start += size
        except (ValueError, KeyError, TypeError) as error:
            raise FairleadError(f"the header of the message cannot be read: {error!r}") from error
        wrong = [f.name for f in fields if not f.coded and len(f.data) != f.d * f.dtype.itemsize]
        if start != len(rest) or wrong:
            raise FairleadError("the message is cut off, or longer than its header says")
        return cls(method, program, round, exchange, client, tuple(fields))

    def value(self, name: str, by: Compressor | None = None, noise: Noise | None = None) -> Tensor:
        """A vector of the message; an encoded one needs its compressor and the noise of the message."""
        field = next(f for f in self.fields if f.name == name)
        if not field.coded:
            return from_raw(field.data, field.dtype)
        if by is None or noise is None:
            raise FairleadError(f"{name} is encoded: give the compressor and the noise")
        code = by.unpack(field.data, field.d, field.dtype)
        one = {n: t[None] for n, t in code.items()}
        return by.decode(one, field.d, field.dtype, noise)[0]
