"""GroupNorm in which every client has its own scales and shifts, on (S, B, …, C).

Statistics are in float32 (float64 for float64). With Triton one kernel normalizes, adds the
residual and applies ReLU; `fairlead::group_norm_each` and its gradient are registered operators
like those of `conv`. Elsewhere it uses torch's operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fairlead.gradients.stacked.conv import uses_triton

FUSED = True  # whether to use Triton kernels where possible


_TWICE = False


@contextmanager
def twice() -> Iterator[None]:
    """Use torch's operators, whose gradients have gradients themselves, and few of them."""
    global _TWICE
    before, _TWICE = _TWICE, True
    try:
        yield
    finally:
        _TWICE = before


def differentiates_twice() -> bool:
    """Whether within `twice`."""
    return _TWICE


def group_norm_each(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float,
    added: Tensor | None = None, relu: bool = False,
) -> Tensor:  # fmt: skip
    """x normalized over groups of channels, times weights (S, C) plus biases (S, C); then plus
    `added`, and zero where it is negative.

    >>> group_norm_each(torch.randn(2, 3, 4, 4, 6), torch.ones(2, 6), torch.ones(2, 6), 3, 1e-5).shape
    torch.Size([2, 3, 4, 4, 6])
    """
    if _TWICE:
        y = _centred(x, weight, bias, groups, eps)
        y = y if added is None else y + added
        return y.relu() if relu else y
    if weight is not None and bias is not None and FUSED and _fits(x, groups):
        added = None if added is None else added.contiguous()
        arguments = x.contiguous(), added, weight.contiguous(), bias.contiguous()
        return torch.ops.fairlead.group_norm_each(*arguments, groups, eps, relu)[0]
    y = _normalised(x, weight, bias, groups, eps)
    y = y if added is None else y + added
    # in a form whose gradient needs only y, which is cheap to recompute
    return torch.where(y <= 0, 0.0, y) if relu else y


def _normalised(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> Tensor:
    """One pass over x for the sums per channel, one to scale and shift; backward likewise."""
    S, B, C = x.shape[0], x.shape[1], x.shape[-1]
    v = x.reshape(S, B, -1, C).to(torch.promote_types(x.dtype, torch.float32))
    count = v.shape[2] * C // groups
    mean = v.sum(2).unflatten(-1, (groups, -1)).sum(-1, keepdim=True) / count
    square = (v * v).sum(2).unflatten(-1, (groups, -1)).sum(-1, keepdim=True) / count
    scale = torch.rsqrt((square - mean * mean).clamp_min(0) + eps)
    if weight is not None:
        scale = scale * weight.to(v.dtype).view(S, 1, groups, -1)
    shift = -mean * scale
    if bias is not None:
        shift = shift + bias.to(v.dtype).view(S, 1, groups, -1)
    scale, shift = (t.expand(S, B, groups, C // groups).reshape(S, B, 1, C) for t in (scale, shift))
    return (v * scale + shift).to(x.dtype).view(x.shape)


def _centred(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> Tensor:
    """Few operators, however often they are differentiated."""
    S, B, C = x.shape[0], x.shape[1], x.shape[-1]
    v = x.reshape(S, B, -1, groups, C // groups)
    v = v - v.mean((2, 4), keepdim=True)
    y = (v * torch.rsqrt((v * v).mean((2, 4), keepdim=True) + eps)).view(S, B, -1, C)
    y = y if weight is None else y * weight.view(S, 1, 1, C)
    y = y if bias is None else y + bias.view(S, 1, 1, C)
    return y.view(x.shape)


def _fits(x: Tensor, groups: int) -> bool:
    if not uses_triton(x):
        return False
    from fairlead.gradients.stacked.triton_norm import channels_at_once

    return channels_at_once(x[0, 0].numel() // x.shape[-1], x.shape[-1], groups) > 0


@torch.library.custom_op(
    "fairlead::group_norm_each",
    mutates_args=(),
    schema="(Tensor x, Tensor? added, Tensor weight, Tensor bias, int groups, float eps, bool relu)"
    " -> (Tensor, Tensor, Tensor)",
)
def _group_norm_each(
    x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from fairlead.gradients.stacked import triton_norm

    x, added = x.contiguous(), None if added is None else added.contiguous()
    with torch.cuda.device_of(x):
        return triton_norm.forward(x, added, weight, bias, groups, eps, relu)


@torch.library.custom_op(
    "fairlead::group_norm_each_back",
    mutates_args=(),
    schema="(Tensor g, Tensor x, Tensor? y, Tensor weight, Tensor bias, Tensor mean, Tensor rstd,"
    " int groups, bool relu) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _group_norm_each_back(
    g: Tensor, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor,
    groups: int, relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from fairlead.gradients.stacked import triton_norm

    with torch.cuda.device_of(x):
        return triton_norm.backward(g.contiguous(), x, y, weight, bias, mean, rstd, groups, relu)


@_group_norm_each.register_fake
def _(
    x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    statistics = x.new_empty(*x.shape[:2], groups, dtype=torch.float32)
    return x.new_empty(x.shape), statistics, torch.empty_like(statistics)


@_group_norm_each_back.register_fake
def _(
    g: Tensor, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor,
    groups: int, relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rows = x.new_empty(*x.shape[:2], x.shape[-1], dtype=torch.float32)
    dadded = x.new_empty(0 if y is None else x.shape)
    return x.new_empty(x.shape), dadded, rows, torch.empty_like(rows)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, added, weight, bias, ctx.groups, _, ctx.relu = inputs
    ctx.adds = added is not None
    y = output[0] if ctx.adds and ctx.relu else None
    ctx.save_for_backward(x, y, weight, bias, *output[1:])


def _gradients(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, y, weight, bias, mean, rstd = ctx.saved_tensors
    dx, dadded, dweight, dbias = torch.ops.fairlead.group_norm_each_back(
        g.contiguous(), x, y, weight, bias, mean, rstd, ctx.groups, ctx.relu
    )
    if ctx.adds and not ctx.relu:
        dadded = g
    sums = dweight.sum(1).to(weight.dtype), dbias.sum(1).to(bias.dtype)
    return dx, dadded if ctx.adds else None, *sums, None, None, None


_group_norm_each.register_autograd(_gradients, setup_context=_keep)
