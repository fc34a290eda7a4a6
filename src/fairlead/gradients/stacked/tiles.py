"""How the kernels of `triton_conv` and `triton_dense` split their work: hand-tuned for an H200, by channels.

With few channels (ResNet-8, the first layers of VGG) the kernels are limited by memory, so many small
programs keep it busy. With many channels they are limited by arithmetic, so large tiles do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

PROGRAMS = 64  # approximate programs per client that keep the device busy
ROOM = 200_000  # bytes of shared memory per program, from which tiles of 256 columns are used


@dataclass(frozen=True)
class Tile:
    """A block of m × n results, k at a time; the weight gradient uses `step` of its m rows."""

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 2
    step: int = 0


def room_on(device: torch.device) -> int:
    """The bytes of shared memory that a program can have."""
    if device.type != "cuda":
        return 0
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def conv_tile(
    pixels: int,
    outputs: int,
    channels: int,
    taps: int,
    dtype: torch.dtype,
    precision: str,
    room: int = 0,
) -> Tile:
    """For pixels × outputs, summed over taps × channels."""
    n = power_of_2(outputs, 16, 128)
    if dtype == torch.float32 and precision == "ieee":  # no matrix units: registers are scarce
        return Tile(64, min(n, 64), 16)
    depth = power_of_2(taps * channels, 16, 64)
    if channels % 16 == 0:
        depth = min(depth, channels & -channels)  # a block within one tap
    if dtype == torch.float32:
        return Tile(128 if n < 128 else 64, n, min(depth, 32), 4, 3)
    if n <= 64:
        return Tile(128, n, depth, 4, 3)
    wide = room >= ROOM and depth == 64 and outputs % 256 == 0 and channels >= 256
    if wide and cdiv(pixels, 128) * (outputs // 256) >= PROGRAMS:
        return Tile(128, 256, 64, 8, 3)
    return Tile(128, 128, depth, 8, 3) if pixels > 1024 else Tile(64, 128, depth, 4, 3)


def weight_tile(
    outputs: int,
    channels: int,
    kernel: Sequence[int],
    dtype: torch.dtype,
    precision: str,
    room: int = 0,
) -> Tile:
    """For (kh·kw·channels) × outputs, summed over pixels."""
    n = power_of_2(outputs, 16, 128)
    row = kernel[1] * channels
    total = kernel[0] * row
    if dtype == torch.float32 and precision == "ieee":
        return Tile(64, min(n, 64), 16, step=64)
    if total <= 64 or (total <= 256 and n <= 32):  # all rows at once, so that inputs are read once
        m = power_of_2(total, 16, 256)
        return Tile(m, n, 64, 4 if m < 256 else 8, 2, step=m)
    if n <= 32 and row <= 128:  # a row of taps
        return Tile(128, n, 64, 4, 2, step=row)
    if n <= 64:
        m = 64 if channels % 64 == 0 else 128
        return Tile(m, n, 64, 4, 3, step=m)
    if dtype == torch.float32:
        return Tile(128, 128, 32, 8, 3, step=128)
    if channels % 128 == 64:  # rows of one tap
        return Tile(64, 128, 64, 4, 3, step=64)
    if room >= ROOM and channels % 128 == 0 and outputs % 256 == 0:
        return Tile(128, 256, 64, 8, 4, step=128)
    return Tile(128, 128, 64, 8, 3, step=128)


def product_tile(
    rows: int, columns: int, depth: int, dtype: torch.dtype, precision: str, turned: bool = False
) -> Tile:
    """For rows × columns, summed over depth: small programs, of which there are many. turned: whether the columns of the
    right operand lie in order, as where samples meet weights."""
    if dtype == torch.float32 and precision == "ieee":
        return Tile(power_of_2(rows, 16, 32), power_of_2(columns, 16, 32), 16)
    k = power_of_2(depth, 16, 32 if dtype == torch.float32 else 64)
    if depth <= 2 * k:  # gradients of weights: each result is written once
        return Tile(power_of_2(rows, 16, 64), power_of_2(columns, 16, 128), k, 4, 2)
    if turned:
        return Tile(power_of_2(rows, 16, 64), power_of_2(columns, 16, 32), k, 4, 4)
    k = k if dtype == torch.float32 else power_of_2(depth, 16, 128)
    return Tile(power_of_2(rows, 16, 32), power_of_2(columns, 16, 64), k, 4, 3)


def splits_of(pixels: int, tiles: int, block: int) -> tuple[int, int]:
    """How many sums a client's pixels are split into, and the pixels per sum, independent of the
    number of clients."""
    wanted = max(1, min(PROGRAMS // tiles, pixels // (4 * block)))
    chunk = cdiv(pixels, wanted * block) * block
    return cdiv(pixels, chunk), chunk


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_2(n: int, least: int = 1, most: int = 1 << 30) -> int:
    """The smallest power of two that is at least n, within bounds.

    >>> power_of_2(5), power_of_2(16), power_of_2(3, 16), power_of_2(300, 16, 128)
    (8, 16, 16, 128)
    """
    return max(least, min(most, 1 << max(n - 1, 0).bit_length()))
