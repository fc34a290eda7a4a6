"""What a client sends, as it travels: encoding uploads, counting and making their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from fairlead.core.method import Upload
from fairlead.compress import Code, Compressor, ErrorFeedback, Noise, raw
from fairlead.errors import FairleadError
from fairlead.rng import Purpose, Word, words

U = TypeVar("U", bound=Upload)


@dataclass(frozen=True)
class Coded:
    """One encoded field of the uploads of S clients."""

    by: Compressor
    code: Code
    noise: Noise
    d: int
    dtype: torch.dtype

    def pack(self, client: int) -> bytes:
        """The bytes of one of the clients."""
        return self.by.pack({name: t[client] for name, t in self.code.items()}, self.d)

    def value(self) -> Tensor:
        """What the codes stand for."""
        return self.by.decode(self.code, self.d, self.dtype, self.noise)

    def through_bytes(self) -> Tensor:
        """The same, by way of real bytes: what a deployed server would see."""
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


def encode(
    upload: U,
    by: Compressor,
    seed: int,
    round: Word,
    clients: Tensor,
    message: int,
    residual: dict[str, Tensor],
    check: bool,
) -> U:
    """An upload with every vector encoded and decoded, and its wire form attached. `residual`
    holds what earlier messages left out, for compressors that feed it back, and is renewed."""
    values: dict[str, Tensor] = {}
    wire: dict[str, Coded] = {}
    for place, (name, v) in enumerate(upload.tensors().items()):
        v = v.expand(len(clients), -1) if v.dim() == 1 else v
        if v.shape[-1] <= 1:  # a single number travels as it is
            values[name] = v
            continue
        keys = words(seed, Purpose.COMPRESS, round, clients, message, place)[:, :2]
        noise, feed = Noise(keys), isinstance(by, ErrorFeedback)
        full = v + residual[name] if feed else v
        coded = Coded(by, by.encode(full, noise), noise, v.shape[-1], v.dtype)
        values[name] = coded.through_bytes() if check else coded.value()
        if feed:
            residual[name] = full - values[name]
        wire[name] = coded
    sent = type(upload)(**values)
    object.__setattr__(sent, "wire", wire)
    return sent


def message_bits(upload: Upload) -> tuple[int | Tensor, float]:
    """Bits of an upload for each client (one number, or one a client), exact and nominal."""
    exact: int | Tensor = 0
    nominal = 0.0
    for name, v in upload.tensors().items():
        coded = (upload.wire or {}).get(name)
        if coded is None:
            bits = v.shape[-1] * 8 * v.element_size()
            exact, nominal = exact + bits, nominal + bits
        else:
            exact = exact + coded.by.size(coded.code, coded.d)
            nominal += coded.by.nominal_bits(coded.d, coded.dtype)
    return exact, nominal


def message_bytes(upload: Upload, client: int = 0) -> bytes:
    """The bytes of one client's upload, its fields one after another."""
    parts = []
    for name, v in upload.tensors().items():
        coded = (upload.wire or {}).get(name)
        parts.append(raw(v if v.dim() == 1 else v[client]) if coded is None else coded.pack(client))
    return b"".join(parts)
