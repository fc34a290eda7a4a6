"""Counter-based randomness: every draw is a function of (seed, purpose, round, client, step).

Philox4x32-10 (Salmon et al. 2011) in integer tensor arithmetic: the same numbers on every device,
in every engine, in any order of execution and with any number of workers.

>>> [hex(int(w)) for w in philox((0, 0, 0, 0), (0, 0))]
['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Word: TypeAlias = Tensor | int

_LOW = 0xFFFFFFFF


class Purpose(IntEnum):
    """What a draw is for; draws for different purposes are independent."""

    COHORT = 1
    DROPOUT = 2
    BATCH = 3
    NOISE = 4
    COMPRESS = 5
    STEPS = 6
    LARGE_BATCH = 7
    AUGMENT = 8
    METHOD = 9
    PERSONAL = 10
    MASK = 11


def philox(
    counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four 32-bit words (as int64) for every 128-bit counter; counters and keys broadcast."""
    c0, c1, c2, c3 = (_tensor(word, counter) for word in counter)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # wraps modulo 2^64, as it should
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _LOW) ^ c1 ^ k0,
            p1 & _LOW,
            ((p0 >> 32) & _LOW) ^ c3 ^ k1,
            p0 & _LOW,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c0, c1, c2, c3


def _tensor(word: Word, beside: tuple[Word, ...]) -> Tensor:
    """A word as a tensor, made where the others are: by an operator, so that nothing is copied there."""
    if isinstance(word, Tensor):
        return word.to(torch.int64)
    device = next((w.device for w in beside if isinstance(w, Tensor)), None)
    return torch.full((), word, dtype=torch.int64, device=device)


def words(
    seed: Word, purpose: Purpose, round: Word, client: Word, step: Word, block: Word
) -> Tensor:
    """Four random 32-bit words per block of each (round, client, step): (…, 4). The seed may be one per client."""
    key = (seed & _LOW, ((seed >> 32) ^ (int(purpose) * 0x85EBCA6B)) & _LOW)
    return torch.stack(torch.broadcast_tensors(*philox((block, step, client, round), key)), dim=-1)


def host_words(
    seed: int,
    purpose: Purpose,
    round: NDArray[np.int64],
    client: NDArray[np.int64],
    step: NDArray[np.int64],
    block: NDArray[np.int64],
) -> NDArray[np.int64]:
    """`words` of arrays of one length, in a quarter of its time for some hundred blocks: (n, 4).

    >>> one = np.arange(3)
    >>> drawn = torch.from_numpy(host_words(5, Purpose.BATCH, one, one, one, one))
    >>> torch.equal(drawn, words(5, Purpose.BATCH, *[torch.from_numpy(one)] * 4))
    True
    """
    k0, k1 = seed & _LOW, ((seed >> 32) ^ (int(purpose) * 0x85EBCA6B)) & _LOW
    c0, c1, c2, c3 = (part.astype(np.uint64) for part in (block, step, client, round))
    low, half = np.uint64(_LOW), np.uint64(32)
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (p1 >> half) ^ c1 ^ np.uint64(k0), p1 & low
        c2, c3 = (p0 >> half) ^ c3 ^ np.uint64(k1), p0 & low
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return np.stack([c0, c1, c2, c3], -1).view(np.int64)


def uniform(seed: int, purpose: Purpose, round: Word, client: Tensor, count: int) -> Tensor:
    """`count` uniform numbers in (0, 1) per client, float64: (S, count)."""
    blocks = torch.arange(-(-count // 4), device=client.device)
    bits = words(seed, purpose, round, client[:, None], 0, blocks).flatten(1)[:, :count]
    return (bits.to(torch.float64) + 0.5) / 2**32


def normal(
    seed: Word,
    round: Word,
    client: Tensor,
    step: Word,
    count: int,
    purpose: Purpose = Purpose.NOISE,
) -> Tensor:
    """`count` standard normal numbers for every client, float64, by Box and Muller: (S, count)."""
    blocks = torch.arange(-(-count // 4), device=client.device)
    seed = seed[:, None] if isinstance(seed, Tensor) else seed
    bits = words(seed, purpose, round, client[:, None], step, blocks)
    u = (bits.to(torch.float64) + 0.5) / 2**32
    radius, angle = (-2 * u[..., :2].log()).sqrt(), 2 * math.pi * u[..., 2:]
    return torch.cat([radius * angle.cos(), radius * angle.sin()], -1).flatten(1)[:, :count]


@contextlib.contextmanager
def own_generators(seed: int | None = None) -> Iterator[None]:
    """Inside its block torch's global generators may be used, seeded; after it they are as they were."""
    there = torch.cuda.is_available() and torch.cuda.is_initialized()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if there else []):
        if seed is not None:
            torch.manual_seed(seed)
        yield


_BLOCK = 1 << 20  # numbers per block on a CPU: fits in cache, and still uses all cores


def row_blocks(rows: int, d: int, device: torch.device) -> Iterator[slice]:
    """Slices that cut the rows of an (S, d) matrix into blocks of a good size for the device."""
    step = rows if device.type != "cpu" else max(1, _BLOCK // max(d, 1))
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))


def signed(word: int) -> int:
    """The low 32 bits of a number as a number with a sign, which compilers may count in.

    >>> signed(0x9E3779B1), signed(5)
    (-1640531535, 5)
    """
    return ((word & _LOW) ^ 0x80000000) - 0x80000000


def hashed(keys: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    """d uniform numbers in (0, 1) per two-word key: (S, 2) → (S, d).

    A keyed 32-bit hash of the coordinate index: much cheaper than Philox, for noise drawn by the
    million. The numbers have 24 bits and are the same in every precision.
    """
    factor = signed(0x9E3779B1)
    counters = (torch.arange(d, device=keys.device) * factor).to(torch.int32)
    return hashed_at(keys, counters, dtype)


def hashed_at(keys: Tensor, counters: Tensor, dtype: torch.dtype) -> Tensor:
    """A uniform number in (0, 1) per two-word key and 32-bit counter: (S, 2) and (d,) → (S, d)."""
    device, d = keys.device, len(counters)
    words = keys.to(torch.int32)  # the low 32 bits
    out = torch.empty(len(keys), d, dtype=dtype, device=device)
    for rows in row_blocks(len(keys), d, device):
        h = counters + words[rows, :1]
        part = torch.empty_like(h)
        for shift, add, factor in ((16, None, 0x7FEB352D), (15, words[rows, 1:], -0x7B935975)):
            _fold(h, part, shift)
            if add is not None:
                h += add
            h *= factor
        _fold(h, part, 16)
        torch.bitwise_right_shift(h, 8, out=part)
        out[rows] = part.bitwise_and_(0xFFFFFF)
    return out.add_(0.5).mul_(2.0**-24)


def _fold(h: Tensor, part: Tensor, shift: int) -> None:
    """h ← h xor (h logically shifted right), in place."""
    torch.bitwise_right_shift(h, shift, out=part)
    h ^= part.bitwise_and_((1 << (32 - shift)) - 1)
