"""Writing and reading bit fields of any width, most significant bit first.

>>> data = write_bits(np.array([5, 1]), np.array([3, 6]))
>>> data.hex(), BitReader(data).take(3)
('a080', 5)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def write_bits(values: Ints, widths: Ints) -> bytes:
    """Concatenate values, each in its own number of bits; the last byte is padded."""
    ends = np.cumsum(widths)
    total = int(ends[-1]) if len(ends) else 0
    position = np.arange(total) - np.repeat(ends - widths, widths)
    shift = np.repeat(widths, widths) - 1 - position
    bits = (np.repeat(values, widths) >> np.minimum(shift, 63)) & 1
    return np.packbits(bits.astype(np.uint8)).tobytes()


def read_fixed(data: bytes, width: int, count: int) -> Ints:
    """`count` values of the same width."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count * width)
    powers = 1 << np.arange(width - 1, -1, -1, dtype=np.int64)
    return bits.reshape(count, width) @ powers


def gamma_width(n: NDArray[np.int64]) -> Ints:
    """Bits in the Elias gamma code of positive integers: as many zeros as bits follow the leading
    one, then the number; so the code is the number itself, written in this width."""
    return 2 * np.floor(np.log2(n)).astype(np.int64) + 1


class BitReader:
    """Reads fields in order."""

    def __init__(self, data: bytes) -> None:
        self._bits = "".join(f"{byte:08b}" for byte in data)
        self._at = 0

    def take(self, width: int) -> int:
        """The next `width` bits as a number."""
        self._at += width
        if self._at > len(self._bits):
            raise ValueError("the message ends too early")
        return int(self._bits[self._at - width : self._at] or "0", 2)

    def gamma(self) -> int:
        """The next number in Elias gamma code."""
        one = self._bits.find("1", self._at)
        if one < 0:
            raise ValueError("the message ends too early")
        zeros = one - self._at
        self._at = one
        return self.take(zeros + 1)
