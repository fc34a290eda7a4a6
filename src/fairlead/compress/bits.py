"""Writing and reading fields of any number of bits, most significant bit first.

>>> data = write_bits(np.array([5, 1]), np.array([3, 6]))
>>> data.hex(), BitReader(data).take(3)
('a080', 5)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def write_bits(values: Ints, widths: Ints) -> bytes:
    """Values one after another, each in its own number of bits; the last byte is filled up."""
    ends = np.cumsum(widths)
    total = int(ends[-1]) if len(ends) else 0
    place = np.arange(total) - np.repeat(ends - widths, widths)
    shift = np.repeat(widths, widths) - 1 - place
    bits = (np.repeat(values, widths) >> np.minimum(shift, 63)) & 1
    return np.packbits(bits.astype(np.uint8)).tobytes()


def read_fixed(data: bytes, width: int, count: int) -> Ints:
    """`count` values of one width."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count * width)
    powers = 1 << np.arange(width - 1, -1, -1, dtype=np.int64)
    return bits.reshape(count, width) @ powers


def gamma_width(n: NDArray[np.int64]) -> Ints:
    """Bits of the Elias gamma code of positive integers: as many zeros as bits follow the leading
    one, then the number. It is the number itself, written that wide."""
    return 2 * np.floor(np.log2(n)).astype(np.int64) + 1


class BitReader:
    """Reads fields from the front."""

    def __init__(self, data: bytes) -> None:
        self._bits = "".join(f"{byte:08b}" for byte in data)
        self._at = 0

    def take(self, width: int) -> int:
        """A number of that many bits."""
        self._at += width
        if self._at > len(self._bits):
            raise ValueError("the message ends too early")
        return int(self._bits[self._at - width : self._at] or "0", 2)

    def gamma(self) -> int:
        """A number in Elias gamma code."""
        one = self._bits.find("1", self._at)
        if one < 0:
            raise ValueError("the message ends too early")
        zeros = one - self._at
        self._at = one
        return self.take(zeros + 1)
