"""A convolution in which every client has its own weights, and its gradients.

The images of S clients are (S, B, H, W, C). The operators `fairlead::conv2d_each`,
`fairlead::conv2d_each_input` and `fairlead::conv2d_each_weight` are registered
with torch, so autograd, `make_fx`, `torch.compile` and CUDA graphs support them. They expect weights
as (S, kh, kw, C, O); `conv2d_each` converts them from a layer's (S, O, C, kh, kw).

On a CUDA device they use Triton kernels (`triton_conv`) in float32, bfloat16 and float16; sums
are always in float32. In float32 they multiply in TF32 if torch's own convolutions do, that is,
unless `torch.backends.cudnn.conv.fp32_precision` (or `torch.backends.cudnn.allow_tf32`) says
otherwise. Elsewhere they use torch's convolution with one group per client.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
HAS_TRITON = find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's kernels on the CPU, for tests


def conv2d_each(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """The convolution of (S, B, H, W, C) with weights (S, O, C, kh, kw) and biases (S, O).

    >>> x, w = torch.ones(2, 1, 4, 4, 3), torch.ones(2, 5, 3, 3, 3)
    >>> conv2d_each(x, w, None, (1, 1), (1, 1)).shape
    torch.Size([2, 1, 4, 4, 5])
    """
    packed = w.permute(0, 3, 4, 2, 1).to(x.dtype).contiguous()
    bias = None if bias is None else bias.to(x.dtype).contiguous()
    return torch.ops.fairlead.conv2d_each(x.contiguous(), packed, bias, list(stride), list(padding))


def uses_triton(x: Tensor) -> bool:
    """Whether Triton kernels are used for this tensor."""
    fits = x.dtype in (torch.float32, *HALF) and x[0].numel() < 2**31
    return HAS_TRITON and fits and (x.is_cuda or (INTERPRETED and x.device.type == "cpu"))


def precision(dtype: torch.dtype) -> str:
    """The precision of Triton's products, the same as in torch's convolutions."""
    if dtype != torch.float32:
        return "ieee"
    conv: Any = getattr(torch.backends.cudnn, "conv", None)
    short = torch.backends.cudnn.allow_tf32 if conv is None else conv.fp32_precision == "tf32"
    return "tf32" if short else "ieee"


@torch.library.custom_op(
    "fairlead::conv2d_each",
    mutates_args=(),
    schema="(Tensor x, Tensor w, Tensor? bias, int[] stride, int[] padding) -> Tensor",
)
def _conv2d_each(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: list[int], padding: list[int]
) -> Tensor:
    if uses_triton(x):
        from fairlead.gradients.stacked import triton_conv

        x, w = x.contiguous(), w.contiguous()
        with torch.cuda.device_of(x):
            return triton_conv.forward(x, w, bias, stride, padding, precision(x.dtype))
    flat = None if bias is None else bias.reshape(-1)
    y = F.conv2d(_grouped(x), _grouped_weight(w), flat, stride, padding, groups=len(x))
    return _stacked(y, len(x))


@torch.library.custom_op(
    "fairlead::conv2d_each_input",
    mutates_args=(),
    schema="(Tensor g, Tensor w, int[] size, int[] stride, int[] padding) -> Tensor",
)
def _conv2d_each_input(
    g: Tensor, w: Tensor, size: list[int], stride: list[int], padding: list[int]
) -> Tensor:
    if uses_triton(g):
        from fairlead.gradients.stacked import triton_conv

        g, w = g.contiguous(), w.contiguous()
        with torch.cuda.device_of(g):
            return triton_conv.input_gradient(g, w, size, stride, padding, precision(g.dtype))
    x = g.new_empty(g.shape[1], len(g) * w.shape[3], *size)
    return _stacked(_backward(g, x, _grouped_weight(w), stride, padding, 0), len(g))


@torch.library.custom_op(
    "fairlead::conv2d_each_weight",
    mutates_args=(),
    schema="(Tensor x, Tensor g, int[] kernel, int[] stride, int[] padding) -> Tensor",
)
def _conv2d_each_weight(
    x: Tensor, g: Tensor, kernel: list[int], stride: list[int], padding: list[int]
) -> Tensor:
    if uses_triton(x):
        from fairlead.gradients.stacked import triton_conv

        x, g = x.contiguous(), g.contiguous()
        with torch.cuda.device_of(x):
            return triton_conv.weight_gradient(x, g, kernel, stride, padding, precision(x.dtype))
    S, C, N = len(x), x.shape[-1], g.shape[-1]
    w = g.new_empty(S * N, C, *kernel)
    dw = _backward(g, _grouped(x), w, stride, padding, 1)
    return dw.view(S, N, C, *kernel).permute(0, 3, 4, 2, 1).contiguous()


@_conv2d_each.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor | None, stride: list[int], padding: list[int]) -> Tensor:
    sizes = zip(x.shape[2:4], padding, w.shape[1:3], stride, strict=True)
    return x.new_empty(
        *x.shape[:2], *((n + 2 * p - k) // s + 1 for n, p, k, s in sizes), w.shape[4]
    )


@_conv2d_each_input.register_fake
def _(g: Tensor, w: Tensor, size: list[int], stride: list[int], padding: list[int]) -> Tensor:
    return g.new_empty(*g.shape[:2], *size, w.shape[3])


@_conv2d_each_weight.register_fake
def _(x: Tensor, g: Tensor, kernel: list[int], stride: list[int], padding: list[int]) -> Tensor:
    return x.new_empty(len(x), *kernel, x.shape[-1], g.shape[-1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, bias, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, w)
    ctx.biased = bias is not None


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    g = g.contiguous()
    ops, where = torch.ops.fairlead, (ctx.stride, ctx.padding)
    dx = dw = db = None
    if ctx.needs_input_grad[0]:
        dx = ops.conv2d_each_input(g, w, list(x.shape[2:4]), *where)
    if ctx.needs_input_grad[1]:
        dw = ops.conv2d_each_weight(x, g, list(w.shape[1:3]), *where)
    if ctx.biased and ctx.needs_input_grad[2]:
        db = g.sum((1, 2, 3))
    return dx, dw, db, None, None


_conv2d_each.register_autograd(_gradients, setup_context=_keep)


# the gradients are linear in both of their tensors, and so are theirs, by the same three operators


def _keep_both(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, ctx.size, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(a, b)


def _input_gradients(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
    (g, w), u = ctx.saved_tensors, u.contiguous()
    ops, where = torch.ops.fairlead, (ctx.stride, ctx.padding)
    dg = ops.conv2d_each(u, w, None, *where) if ctx.needs_input_grad[0] else None
    dw = (
        ops.conv2d_each_weight(u, g, list(w.shape[1:3]), *where)
        if ctx.needs_input_grad[1]
        else None
    )
    return dg, dw, None, None, None


def _weight_gradients(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
    (x, g), u = ctx.saved_tensors, u.contiguous()
    ops, where = torch.ops.fairlead, (ctx.stride, ctx.padding)
    dx = (
        ops.conv2d_each_input(g, u, list(x.shape[2:4]), *where) if ctx.needs_input_grad[0] else None
    )
    dg = ops.conv2d_each(x, u, None, *where) if ctx.needs_input_grad[1] else None
    return dx, dg, None, None, None


_conv2d_each_input.register_autograd(_input_gradients, setup_context=_keep_both)
_conv2d_each_weight.register_autograd(_weight_gradients, setup_context=_keep_both)


# -- torch's convolution with one group per client --------------------------------------------------


def _grouped(x: Tensor) -> Tensor:
    S, B, H, W, C = x.shape
    return x.permute(1, 0, 4, 2, 3).reshape(B, S * C, H, W)


def _stacked(y: Tensor, clients: int) -> Tensor:
    return y.unflatten(1, (clients, -1)).permute(1, 0, 3, 4, 2).contiguous()


def _grouped_weight(w: Tensor) -> Tensor:
    return w.permute(0, 4, 3, 1, 2).flatten(0, 1)


def _backward(
    g: Tensor, x: Tensor, w: Tensor, stride: list[int], padding: list[int], which: int
) -> Tensor:
    mask = [which == 0, which == 1, False]
    return torch.ops.aten.convolution_backward(
        _grouped(g), x, w, None, stride, padding, [1, 1], False, [0, 0], len(g), mask
    )[which]
