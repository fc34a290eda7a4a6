"""What clients send: uploads encoded message by message, with compression residuals kept for later."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.compress import Compressor, ErrorFeedback, Noise
from fairlead.core.message import Coded, Field
from fairlead.core.records import Memory, Upload
from fairlead.engine.state.store import ClientStore, Keep
from fairlead.errors import FairleadError
from fairlead.rng import Purpose, Word, words

U = TypeVar("U", bound=Upload)


class Left(Memory):
    """The residual of one field."""

    v: Tensor


class Residuals:
    """The residuals of compressors with error feedback, by field and client."""

    def __init__(self, keep: Keep) -> None:
        self.keep = keep
        self.stores: dict[str, ClientStore[Left]] = {}

    def read(self, name: str, ids: NDArray[np.int64], like: Tensor) -> Tensor:
        """The residuals of a field for these clients; zero at first. Reading makes no table."""
        if name not in self.stores:
            return torch.zeros(len(ids), like.shape[-1], dtype=like.dtype, device=self.keep.device)
        return self.stores[name].read(ids).v

    def of(self, name: str, like: Tensor) -> ClientStore[Left]:
        """The residuals of a field."""
        if name not in self.stores:
            start = torch.zeros(like.shape[-1], dtype=like.dtype, device=self.keep.device)
            self.stores[name] = self.keep.store(Left(v=start))
        return self.stores[name]

    def write(self, ids: NDArray[np.int64], held: dict[str, Tensor]) -> None:
        """Store new residuals."""
        for name, v in held.items():
            self.of(name, v).write(ids, Left(v=v))


class Outbox:
    """The messages of S clients in one exchange. Noise is a function of (seed, round, client, message)."""

    def __init__(
        self,
        residuals: Residuals,
        seed: Word,
        round: Word,
        exchange: int,
        ids: NDArray[np.int64],
        keys: Tensor,
        through_bytes: bool = False,
    ) -> None:
        self.residuals, self.seed, self.round, self.exchange = residuals, seed, round, exchange
        self.ids, self.keys, self.through_bytes = ids, keys, through_bytes
        self.held: dict[str, Tensor] = {}
        """The new residuals."""
        self.sent: dict[str, tuple[Coded, Tensor]] = {}
        """The encoded and decoded vectors, by field."""
        self._messages = 0

    def residual(self, name: str, like: Tensor) -> Tensor:
        """The residual of a field."""
        return self.residuals.read(name, self.ids, like)

    def encode(self, upload: U, by: Compressor) -> U:
        """An upload with every vector (S, d) encoded and decoded; each call has its own noise."""
        if not isinstance(by, Compressor):
            raise FairleadError(f"the compressor is {by!r}: pass an object such as fl.QSGD(bits=2)")
        message = 1024 * self.exchange + self._messages
        self._messages += 1
        values: dict[str, Tensor] = {}
        for place, (name, v) in enumerate(upload.tensors().items()):
            v = v.expand(len(self.keys), -1) if v.dim() == 1 else v
            if v.shape[-1] <= 1:  # a single number is sent as it is
                values[name] = v
                continue
            keys = words(self.seed, Purpose.COMPRESS, self.round, self.keys, message, place)[:, :2]
            feed = isinstance(by, ErrorFeedback)
            full = v + self._fed_back(name, v) if feed else v
            noise = Noise(keys)
            coded = Coded(by, by.encode(full, noise), noise, v.shape[-1], v.dtype)
            values[name] = coded.through_bytes() if self.through_bytes else coded.value()
            if feed:
                self.held[name] = full - values[name]
            self.sent[name] = coded, values[name]
        return type(upload)(**values)

    def _fed_back(self, name: str, v: Tensor) -> Tensor:
        return self.held[name] if name in self.held else self.residual(name, v)

    def _coded(self, name: str, v: Tensor) -> Coded | None:
        """The code of a field of an upload; None if its vector was not encoded."""
        coded, value = self.sent.get(name, (None, None))
        return coded if v is value else None

    def bits(self, upload: Upload) -> tuple[int | Tensor, float]:
        """Bits of an upload for each client (one number, or one per client), exact and nominal."""
        exact: int | Tensor = 0
        nominal = 0.0
        for name, v in upload.tensors().items():
            coded = self._coded(name, v)
            if coded is None:
                bits = v.shape[-1] * 8 * v.element_size()
                exact, nominal = exact + bits, nominal + bits
            else:
                exact = exact + coded.by.size(coded.code, coded.d)
                nominal += coded.by.nominal_bits(coded.d, coded.dtype)
        return exact, nominal

    def fields(self, upload: Upload, client: int = 0) -> tuple[Field, ...]:
        """The fields of the message of one of the S clients."""
        found = []
        for name, v in upload.tensors().items():
            coded, own = self._coded(name, v), v if v.dim() == 1 else v[client]
            found.append(Field.plain(name, own) if coded is None else Field.of(name, coded, client))
        return tuple(found)
