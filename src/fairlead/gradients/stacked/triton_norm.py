"""Triton kernels for GroupNorm, with the addition and ReLU that follow it in a residual network.

A program holds the groups of one sample in registers, so values are read once and written once,
forward and backward. The caller sums the gradients of scales and shifts over a client's samples,
from one row per sample.
"""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

import torch
from torch import Tensor

from fairlead.gradients.stacked.lang import jit, launch, tl
from fairlead.gradients.stacked.tiles import power_of_2

LARGEST = 32768  # values per program


def channels_at_once(pixels: int, channels: int, groups: int) -> int:
    """How many channels, in whole groups, a program handles; 0 if the kernels do not fit."""
    if channels & (channels - 1) or groups & (groups - 1) or channels % groups:
        return 0
    taken = channels
    while taken >= channels // groups and power_of_2(pixels) * taken > LARGEST:
        taken //= 2
    return taken if taken >= channels // groups else 0


@jit
def _over_groups(sums, CB: tl.constexpr, GB: tl.constexpr):
    """Sums per channel (CB,), summed over each of GB groups and expanded to channels again."""
    by_group = tl.sum(tl.reshape(sums, (GB, CB // GB)), 1)
    return tl.reshape(tl.broadcast_to(by_group[:, None], (GB, CB // GB)), (CB,))


@jit
def _forward(
    x, added, weight, bias, y, mean, rstd, batch, eps,
    P: tl.constexpr, C: tl.constexpr, G: tl.constexpr, CB: tl.constexpr, BP: tl.constexpr,
    ADD: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    GB: tl.constexpr = CB * G // C
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    p = tl.arange(0, BP)[:, None]
    at = sample * (P * C) + p * C + c[None, :]
    inside = (p < P) & (c[None, :] >= 0)
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    count: tl.constexpr = P * (C // G)
    m = _over_groups(tl.sum(v, 0), CB, GB) / count
    v = tl.where(inside, v - m[None, :], 0.0)
    r = tl.rsqrt(_over_groups(tl.sum(v * v, 0), CB, GB) / count + eps)
    scale = tl.load(weight + sample // batch * C + c).to(tl.float32) * r
    out = v * scale[None, :] + tl.load(bias + sample // batch * C + c).to(tl.float32)[None, :]
    if ADD:
        out += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        out = tl.where(out <= 0.0, 0.0, out)
    tl.store(y + at, out.to(y.dtype.element_ty), mask=inside)
    group = sample * G + c // (C // G)
    tl.store(mean + group, m, mask=c % (C // G) == 0)
    tl.store(rstd + group, r, mask=c % (C // G) == 0)


@jit
def _backward(
    g, x, y, weight, bias, mean, rstd, dx, dadded, dweight, dbias, batch,
    P: tl.constexpr, C: tl.constexpr, G: tl.constexpr, CB: tl.constexpr, BP: tl.constexpr,
    ADD: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    GB: tl.constexpr = CB * G // C
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    p = tl.arange(0, BP)[:, None]
    at = sample * (P * C) + p * C + c[None, :]
    inside = (p < P) & (c[None, :] >= 0)
    group = sample * G + c // (C // G)
    m, r = tl.load(mean + group), tl.load(rstd + group)
    scale = tl.load(weight + sample // batch * C + c).to(tl.float32)
    d = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
    v = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - m[None, :]) * r[None, :]
    if RELU:
        if ADD:
            out = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        else:
            shift = tl.load(bias + sample // batch * C + c).to(tl.float32)
            out = v * scale[None, :] + shift[None, :]
        d = tl.where(out <= 0.0, 0.0, d)
        if ADD:
            tl.store(dadded + at, d.to(dadded.dtype.element_ty), mask=inside)
    count: tl.constexpr = P * (C // G)
    along, alone = tl.sum(d * v, 0), tl.sum(d, 0)  # d is zero outside
    tl.store(dweight + sample * C + c, along)
    tl.store(dbias + sample * C + c, alone)
    first = _over_groups(alone * scale, CB, GB) / count
    second = _over_groups(along * scale, CB, GB) / count
    back = r[None, :] * (d * scale[None, :] - first[None, :] - v * second[None, :])
    tl.store(dx + at, back.to(dx.dtype.element_ty), mask=inside)


def forward(
    x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """x (S, B, …, C) contiguous and weight, bias (S, C), to y and the groups' means and 1/deviations."""
    S, B, C, pixels = *x.shape[:2], x.shape[-1], x[0, 0].numel() // x.shape[-1]
    taken = channels_at_once(pixels, C, groups)
    block = power_of_2(pixels)
    y = torch.empty_like(x)
    mean = x.new_empty(S, B, groups, dtype=torch.float32)
    rstd = torch.empty_like(mean)
    launch(
        _forward, (S * B, C // taken),
        x, x if added is None else added, weight, bias, y, mean, rstd, B, eps,
        pixels, C, groups, taken, block, added is not None, relu,
        num_warps=_warps(block * taken),
    )  # fmt: skip
    return y, mean, rstd


def backward(
    g: Tensor, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor,
    groups: int, relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, of what was added (if y is given), and those of the weight and bias with one
    row per sample (S, B, C)."""
    S, B, C, pixels = *x.shape[:2], x.shape[-1], x[0, 0].numel() // x.shape[-1]
    taken = channels_at_once(pixels, C, groups)
    block = power_of_2(pixels)
    add = y is not None
    dx, dadded = torch.empty_like(x), torch.empty_like(x) if add else x.new_empty(0)
    dweight = x.new_empty(S, B, C, dtype=torch.float32)
    dbias = torch.empty_like(dweight)
    launch(
        _backward, (S * B, C // taken),
        g, x, x if y is None else y, weight, bias, mean, rstd, dx, dadded, dweight, dbias, B,
        pixels, C, groups, taken, block, add, relu,
        num_warps=_warps(block * taken),
    )  # fmt: skip
    return dx, dadded, dweight, dbias


def _warps(numbers: int) -> int:
    return max(1, min(16, numbers // 1024))
