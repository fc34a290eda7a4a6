"""Triton kernels for convolutions in which every client has its own weights.

Each is a matrix product whose left operand is gathered on the fly ("implicit GEMM"):

    output           (pixels × O)   =  windows of x (pixels × taps·C)  ·  w (taps·C × O)
    input gradient   (pixels × C)   =  windows of g (pixels × taps·O)  ·  w (taps·O × C)
    weight gradient  (taps·C × O)   =  windows of x, transposed  ·  g (pixels × O)

Layers with few channels are limited by memory: a window is read once from memory and then from
cache. With stride 2 the input gradient is four convolutions, one for each parity of row and column,
so that no tap is multiplied by zero. Weight gradients are summed over blocks of pixels into a buffer
and then over the blocks, in a fixed order that does not depend on the number of clients.
"""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fairlead.gradients.stacked.lang import jit, launch, tl
from fairlead.gradients.stacked.tiles import (
    Tile,
    cdiv,
    conv_tile,
    room_on,
    splits_of,
    weight_tile,
)  # fmt: skip


@jit
def _convolve(
    x, w, bias, y, pixels,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,  # the input image
    OH: tl.constexpr, OW: tl.constexpr, N: tl.constexpr,  # the output image
    GH: tl.constexpr, GW: tl.constexpr,  # the output pixels of a class
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, BACK: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A convolution, or with BACK its transpose: w is (taps, C, N), or (taps, N, C) with BACK."""
    client = tl.program_id(1).to(tl.int64)
    across: tl.constexpr = (N + BN - 1) // BN
    place = tl.program_id(0)
    n = (place % across) * BN + tl.arange(0, BN)[None, :]
    tile = place // across
    if BACK and SH * SW > 1:  # a class of output pixels sees every SH-th and SW-th tap
        at_h, at_w = tile % (SH * SW) // SW, tile % SW
        tile = tile // (SH * SW)
        tap_h, tap_w = (at_h + PH) % SH, (at_w + PW) % SW
        rows, cols = (KH - tap_h + SH - 1) // SH, (KW - tap_w + SW - 1) // SW
    else:
        at_h, at_w, tap_h, tap_w, rows, cols = 0, 0, 0, 0, KH, KW
    m = tile * BM + tl.arange(0, BM)[:, None]
    known = m < pixels
    j, i, image = m % GW, m // GW % GH, m // (GW * GH)
    if BACK:
        h0, w0 = i + (at_h + PH - tap_h) // SH, j + (at_w + PW - tap_w) // SW
    else:
        h0, w0 = i * SH - PH, j * SW - PW
    corner = x + client * ((pixels // (GH * GW)) * H * W * C) + ((image * H + h0) * W + w0) * C
    weights = w + client * (KH * KW * C * N)
    acc = tl.zeros((BM, BN), tl.float32)
    total = rows * cols * C
    for k0 in tl.range(0, total, BK):
        if C % BK == 0:  # the block of K is within one tap
            tap = k0 // C
            c = tl.multiple_of(k0 % C, BK) + tl.arange(0, BK)[None, :]
        else:
            tap, c = (k0 + tl.arange(0, BK)[None, :]) // C, (k0 + tl.arange(0, BK)[None, :]) % C
        dh, dw = tap // cols, tap % cols
        if BACK:
            dh, dw = -dh, -dw
        seen = known & (h0 + dh >= 0) & (h0 + dh < H) & (w0 + dw >= 0) & (w0 + dw < W)
        if C % BK != 0:
            seen = seen & (k0 + tl.arange(0, BK)[None, :] < total)
        window = tl.load(corner + (dh * W + dw) * C + c, mask=seen, other=0.0)
        k = k0 + tl.arange(0, BK)[:, None]
        if BACK:
            if C % BK == 0:
                tap_k = k0 // C
                c_k = tl.multiple_of(k0 % C, BK) + tl.arange(0, BK)[:, None]
            else:
                tap_k, c_k = k // C, k % C
            row = (tap_h + tap_k // cols * SH) * KW + tap_w + tap_k % cols * SW
            rest = weights + (row * N + n) * C + c_k
        else:
            rest = weights + k * N + n
        part = tl.load(rest, mask=(k < total) & (n < N), other=0.0)
        acc = tl.dot(window, part, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + client * N + n, mask=n < N, other=0.0).to(tl.float32)
    to_h, to_w = (i * SH + at_h, j * SW + at_w) if BACK else (i, j)
    inside = known & (to_h < OH) & (to_w < OW) & (n < N)
    to = y + client * ((pixels // (GH * GW)) * OH * OW * N)
    to += ((image * OH + to_h) * OW + to_w) * N + n
    tl.store(to, acc.to(y.dtype.element_ty), mask=inside)


@jit
def _gradient_of_weights(
    x, g, out, pixels, chunk,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, N: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, STEP: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The sum over one block of pixels, for STEP ≤ BM rows (taps·C) of the weights."""
    client = tl.program_id(2).to(tl.int64)
    across: tl.constexpr = (N + BN - 1) // BN
    total: tl.constexpr = KH * KW * C
    n = (tl.program_id(0) % across) * BN + tl.arange(0, BN)[None, :]
    first = tl.program_id(0) // across * STEP
    whole: tl.constexpr = STEP == BM and C % BM == 0
    if whole:  # all rows are of one tap, so what a pixel of it sees is worked out once for all
        used = first < total
        dh, dw = first // (KW * C), first // C % KW
        c = tl.multiple_of(first % C, BM) + tl.arange(0, BM)[None, :]
    else:
        k = first + tl.arange(0, BM)[None, :]
        used = (tl.arange(0, BM)[None, :] < STEP) & (k < total)
        dh, dw, c = k // (KW * C), k // C % KW, k % C
    x += client * ((pixels // (OH * OW)) * H * W * C)
    g += client * (pixels * N)
    acc = tl.zeros((BM, BN), tl.float32)
    begin = tl.program_id(1) * chunk
    end = tl.minimum(begin + chunk, pixels)
    for p0 in tl.range(begin, end, BK):
        p = p0 + tl.arange(0, BK)[:, None]
        h = p // OW % OH * SH - PH + dh
        w = p % OW * SW - PW + dw
        seen = used & (p < end) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        window = tl.load(x + ((p // (OW * OH) * H + h) * W + w) * C + c, mask=seen, other=0.0)
        part = tl.load(g + p * N + n, mask=(p < end) & (n < N), other=0.0)
        acc = tl.dot(tl.trans(window), part, acc, input_precision=PRECISION)
    row = first + tl.arange(0, BM)[:, None]
    kept = (tl.arange(0, BM)[:, None] < STEP) & (row < total) & (n < N)
    out += (client * tl.num_programs(1) + tl.program_id(1)) * (total * N)
    tl.store(out + row * N + n, acc.to(out.dtype.element_ty), mask=kept)


def forward(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    precision: str = "ieee", tile: Tile | None = None,
) -> Tensor:  # fmt: skip
    """x (S, B, H, W, C) and w (S, kh, kw, C, O), contiguous, to (S, B, Ho, Wo, O)."""
    S, B, H, W, C = x.shape
    kh, kw, N = w.shape[1], w.shape[2], w.shape[4]
    oh = (H + 2 * padding[0] - kh) // stride[0] + 1
    ow = (W + 2 * padding[1] - kw) // stride[1] + 1
    y = x.new_empty(S, B, oh, ow, N)
    pixels = B * oh * ow
    t = tile or conv_tile(pixels, N, C, kh * kw, x.dtype, precision, room_on(x.device))
    grid = (cdiv(pixels, t.m) * cdiv(N, t.n), S)
    launch(
        _convolve, grid,
        x, w, x if bias is None else bias, y, pixels, H, W, C, oh, ow, N, oh, ow, kh, kw,
        *stride, *padding, False, bias is not None, precision, t.m, t.n, t.k,
        num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return y


def input_gradient(
    g: Tensor, w: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    precision: str = "ieee", tile: Tile | None = None,
) -> Tensor:  # fmt: skip
    """The gradient of an input of `size` (H, W), from that of the output (S, B, Ho, Wo, O)."""
    S, B, oh, ow, N = g.shape
    kh, kw, C = w.shape[1], w.shape[2], w.shape[3]
    H, W = size
    gh, gw = cdiv(H, stride[0]), cdiv(W, stride[1])
    y = g.new_empty(S, B, H, W, C)
    pixels, classes = B * gh * gw, stride[0] * stride[1]
    taps = kh * kw // classes
    t = tile or conv_tile(pixels, C, N, taps, g.dtype, precision, room_on(g.device))
    grid = (cdiv(pixels, t.m) * classes * cdiv(C, t.n), S)
    launch(
        _convolve, grid,
        g, w, g, y, pixels, oh, ow, N, H, W, C, gh, gw, kh, kw,
        *stride, *padding, True, False, precision, t.m, t.n, t.k,
        num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return y


def weight_gradient(
    x: Tensor, g: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    precision: str = "ieee", tile: Tile | None = None,
) -> Tensor:  # fmt: skip
    """The gradient of the weights in the layout of `forward`, (S, kh, kw, C, O)."""
    S, B, H, W, C = x.shape
    oh, ow, N = g.shape[2:]
    pixels, total = B * oh * ow, kernel[0] * kernel[1] * C
    t = tile or weight_tile(N, C, kernel, x.dtype, precision, room_on(x.device))
    tiles = cdiv(total, t.step) * cdiv(N, t.n)
    splits, chunk = splits_of(pixels, tiles, t.k)
    out = x.new_empty(S, splits, total, N, dtype=x.dtype if splits == 1 else torch.float32)
    launch(
        _gradient_of_weights, (tiles, splits, S),
        x, g, out, pixels, chunk, H, W, C, oh, ow, N, *kernel, *stride, *padding, t.step,
        precision, t.m, t.n, t.k, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    summed = out[:, 0] if splits == 1 else out.sum(1).to(x.dtype)
    return summed.view(S, *kernel, C, N)
