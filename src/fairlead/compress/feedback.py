"""Error feedback: what a biased compressor drops is added to the next message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairlead.compress.base import Code, Compressor, Noise
from fairlead.errors import FairleadError


@dataclass(frozen=True)
class ErrorFeedback(Compressor):
    """Wraps a compressor so that clients add to each message what earlier ones dropped
    (Karimireddy et al. 2019); the engine stores the residual with the client.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=4, dim=10, gradient=0.0)
    >>> plain, fed = fl.TopK(0.1), fl.ErrorFeedback(fl.TopK(0.1))
    >>> runs = [fl.train(task, fl.FedAvg(lr=0.3, compressor=c), rounds=30, steps=2) for c in (plain, fed)]
    >>> runs[0].ledger.up == runs[1].ledger.up  # the residual stays on the client
    True
    """

    inner: Compressor
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Compressor) or self.inner.unbiased:
            raise FairleadError(
                f"error feedback needs a biased compressor, such as TopK: with {self.inner} the "
                "residual would grow"
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
