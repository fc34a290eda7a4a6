"""Triton kernels for max pooling of windows that do not overlap, with the biases and the ReLU before it.

They are limited by memory. A program handles some output pixels by some channels, 16 bytes per thread:
forward it reads the windows once and writes their largest values and where they were, a byte each;
backward it reads the gradients and these bytes and writes every place of the windows once.
"""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

import torch
from torch import Tensor

from fairlead.gradients.stacked.lang import jit, launch, tl
from fairlead.gradients.stacked.tiles import cdiv, power_of_2

WARPS = 4
CHANNELS = 128  # per program, at most
PROGRAMS = 256  # per client, from which a program of the gradient handles several blocks of pixels
BLOCKS = 8  # of pixels per program of the gradient, at most


@jit
def _pool(
    x, bias, y, index, pixels,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    across: tl.constexpr = (C + BC - 1) // BC
    p = tl.program_id(0) // across * BP + tl.arange(0, BP)[:, None]
    c = tl.program_id(0) % across * BC + tl.arange(0, BC)[None, :]
    inside = (p < pixels) & (c < C)
    x += client * (pixels // (OH * OW) * (H * W * C))
    corner = ((p // (OH * OW) * H + p // OW % OH * KH) * W + p % OW * KW) * C + c
    best = tl.full((BP, BC), float("-inf"), tl.float32)
    won = tl.zeros((BP, BC), tl.int32)
    added = tl.load(bias + client * C + c, mask=(c < C) & BIAS, other=0.0).to(tl.float32)
    for place in tl.static_range(KH * KW):
        away = (place // KW * W + place % KW) * C
        part = tl.load(x + corner + away, mask=inside, other=0.0).to(tl.float32)
        if BIAS:
            part = (part + added).to(y.dtype.element_ty).to(tl.float32)
        wins = (part > best) | (part != part)
        best = tl.where(wins, part, best)
        won = tl.where(wins, place, won)
    if RELU:
        won = tl.where(best <= 0.0, KH * KW, won)
        best = tl.where(best <= 0.0, 0.0, best)
    at = p * C + c
    tl.store(y + client * (pixels * C) + at, best.to(y.dtype.element_ty), mask=inside)
    tl.store(index + client * (pixels * C) + at, won.to(tl.uint8), mask=inside)


@jit
def _gradient_of_pool(
    g, index, dx, sums, windows,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BIAS: tl.constexpr,
    STEPS: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Windows include those that are cut off, which have no gradient. A program sums what the biases get
    over several blocks of windows, so that the caller has fewer sums to add."""
    client = tl.program_id(1).to(tl.int64)
    across: tl.constexpr = (C + BC - 1) // BC
    GH: tl.constexpr = (H + KH - 1) // KH
    GW: tl.constexpr = (W + KW - 1) // KW
    block = tl.program_id(0) // across
    column = tl.program_id(0) % across * BC + tl.arange(0, BC)
    c = column[None, :]
    images = windows // (GH * GW)
    g += client * (images * (OH * OW * C))
    index += client * (images * (OH * OW * C))
    dx += client * (images * (H * W * C))
    total = tl.zeros((BP, BC), tl.float32)
    for step in range(STEPS):
        p = (block * STEPS + step) * BP + tl.arange(0, BP)[:, None]
        j, i, image = p % GW, p // GW % GH, p // (GW * GH)
        known = (p < windows) & (c < C)
        whole = known & (i < OH) & (j < OW)
        at = ((image * OH + i) * OW + j) * C + c
        d = tl.load(g + at, mask=whole, other=0.0)
        won = tl.load(index + at, mask=whole, other=KH * KW).to(tl.int32)
        if BIAS:
            total += tl.where(won < KH * KW, d, 0.0).to(tl.float32)
        corner = ((image * H + i * KH) * W + j * KW) * C + c
        for place in tl.static_range(KH * KW):
            away = (place // KW * W + place % KW) * C
            there = known
            if H % KH != 0:
                there = there & (i * KH + place // KW < H)
            if W % KW != 0:
                there = there & (j * KW + place % KW < W)
            tl.store(dx + corner + away, tl.where(won == place, d, 0.0), mask=there)
    if BIAS:
        row = client * (tl.num_programs(0) // across) + block
        tl.store(sums + row * C + column, tl.sum(total, 0), mask=column < C)


def forward(
    x: Tensor, bias: Tensor | None, relu: bool, kernel: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """x (S, B, H, W, C) contiguous and biases (S, C), to y (S, B, H // kh, W // kw, C) and the index."""
    S, B, H, W, C = x.shape
    oh, ow = H // kernel[0], W // kernel[1]
    y = x.new_empty(S, B, oh, ow, C)
    index = torch.empty_like(y, dtype=torch.uint8)
    pixels, (rows, channels) = B * oh * ow, _block(C, x.dtype)
    launch(
        _pool, (cdiv(pixels, rows) * cdiv(C, channels), S),
        x, x if bias is None else bias, y, index, pixels, H, W, C, oh, ow, *kernel,
        bias is not None, relu, rows, channels, num_warps=WARPS,
    )  # fmt: skip
    return y, index


def backward(
    g: Tensor, index: Tensor, size: tuple[int, int], kernel: tuple[int, int], biased: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of an input of `size` (H, W) and, if asked, of the biases (S, C)."""
    S, B, oh, ow, C = g.shape
    windows = B * cdiv(size[0], kernel[0]) * cdiv(size[1], kernel[1])
    rows, channels = _block(C, g.dtype)
    blocks, across = cdiv(windows, rows), cdiv(C, channels)
    steps = power_of_2(blocks * across // PROGRAMS, 1, BLOCKS) if biased else 1
    programs = cdiv(blocks, steps)
    dx = g.new_empty(S, B, *size, C)
    sums = g.new_empty(S, programs, C, dtype=torch.float32) if biased else g.new_empty(0)
    launch(
        _gradient_of_pool, (programs * across, S),
        g, index, dx, sums, windows, *size, C, oh, ow, *kernel, biased, steps, rows, channels,
        num_warps=WARPS,
    )  # fmt: skip
    return dx, sums.sum(1).to(g.dtype) if biased else sums


def _block(channels: int, dtype: torch.dtype) -> tuple[int, int]:
    """Pixels × channels of a program, 16 bytes per thread."""
    across = power_of_2(channels, 1, CHANNELS)
    return WARPS * 32 * 16 // dtype.itemsize // across, across
