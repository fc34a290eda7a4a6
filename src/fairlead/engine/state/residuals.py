"""Uploads on their way: encoded message by message, with what compressors leave out kept back."""

from __future__ import annotations

from threading import Lock
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Memory, Upload
from fairlead.compress import Compressor, ErrorFeedback
from fairlead.engine.state.store import ClientStore, Keep
from fairlead.core.message import encode
from fairlead.errors import FairleadError
from fairlead.rng import Word

U = TypeVar("U", bound=Upload)


class _Left(Memory):
    v: Tensor


class Residuals:
    """What compressors with error feedback left out so far, by field and client."""

    def __init__(self, keep: Keep) -> None:
        self.keep = keep
        self._lock = Lock()  # clients may run on several threads
        self.stores: dict[str, ClientStore[_Left]] = {}

    def read(self, name: str, ids: NDArray[np.int64], like: Tensor) -> Tensor:
        """The remainders of a field of these clients; zero at first."""
        with self._lock:
            return self.of(name, like).read(ids).v

    def of(self, name: str, like: Tensor) -> ClientStore[_Left]:
        """The remainders of a field."""
        if name not in self.stores:
            start = torch.zeros(like.shape[-1], dtype=like.dtype, device=self.keep.device)
            self.stores[name] = self.keep.store(_Left(v=start))
        return self.stores[name]

    def write(self, ids: NDArray[np.int64], held: dict[str, Tensor]) -> None:
        """Keep the new remainders."""
        with self._lock:
            for name, v in held.items():
                self.stores[name].write(ids, _Left(v=v))


class Mail:
    """What the clients of one chunk send in an exchange, and what they hold back for later."""

    def __init__(
        self, residuals: Residuals, seed: int, round: Word, exchange: int, through_bytes: bool
    ) -> None:
        self.residuals, self.through_bytes = residuals, through_bytes
        self.seed, self.round, self.exchange = seed, round, exchange
        self.held: dict[str, Tensor] = {}
        self.messages = 0

    def when(self) -> Word:
        """The round's number."""
        return self.round

    def remainder(self, name: str, ids: NDArray[np.int64], like: Tensor) -> Tensor:
        """What earlier messages of a field left out."""
        return self.residuals.read(name, ids, like)

    def encode(
        self, upload: U, by: Compressor | None, ids: NDArray[np.int64], on_device: Tensor
    ) -> U:
        """Encode one upload; each call of an exchange has noise of its own."""
        if by is None:
            return upload
        if not isinstance(by, Compressor):
            raise FairleadError(f"the compressor is {by!r}: give an object such as fl.QSGD(bits=2)")
        if isinstance(by, ErrorFeedback):
            for name, v in upload.tensors().items():
                if name not in self.held:
                    self.held[name] = self.remainder(name, ids, v)
        message = 1024 * self.exchange + self.messages
        self.messages += 1
        return encode(
            upload, by, self.seed, self.when(), on_device, message, self.held, self.through_bytes
        )
