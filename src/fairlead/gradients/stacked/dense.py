"""A dense layer in which every client has its own weights, with ReLU or without, and its gradients.

The samples of S clients are (S, B, n), weights (S, m, n), biases (S, m). The operators `fairlead::dense_each`,
`fairlead::dense_each_input` and `fairlead::dense_each_weight` are registered with torch like those of `conv`. They are Triton's
kernel (`triton_dense`) on a CUDA device, in bfloat16, float16, and in float32 where torch's own products are in TF32, if
one side of the layer is short, as with small batches. Elsewhere layers are torch's products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairlead.gradients.stacked.conv import HALF, uses_triton
from fairlead.gradients.stacked.norm import differentiates_twice

SHORT = 128
"""Up to this length of a layer's shortest side it is the kernel's."""


def dense_each(x: Tensor, w: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """Samples (S, B, n) times weights (S, m, n), plus biases (S, m), and zero where negative with ReLU.

    >>> x, w, bias = torch.ones(2, 3, 4), torch.ones(2, 5, 4), -4 * torch.ones(2, 5)
    >>> dense_each(x, w, bias).shape, float(dense_each(x, w, bias, relu=True).sum())
    (torch.Size([2, 3, 5]), 0.0)
    """
    if _is_kernels(x, w):
        return torch.ops.fairlead.dense_each(x.contiguous(), w, bias, relu)
    return _by_torch(x, w, bias, relu)


def _is_kernels(x: Tensor, w: Tensor) -> bool:
    short = min(x.shape[1], *w.shape[1:]) <= SHORT and not differentiates_twice()
    return short and uses_triton(x) and (x.dtype in HALF or _in_tf32())


def _in_tf32() -> bool:
    """Whether torch's products of float32 are in TF32."""
    products: Any = torch.backends.cuda.matmul
    known = hasattr(products, "fp32_precision")
    return products.fp32_precision == "tf32" if known else products.allow_tf32


def _by_torch(x: Tensor, w: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    # w on the left: its gradient is then (S, m, n), as in the parameter vector
    y = torch.bmm(w, x.mT).mT
    y = y if bias is None else y + bias[:, None]
    return torch.relu(y) if relu else y


def _precision(x: Tensor) -> str:
    return "tf32" if x.dtype == torch.float32 else "ieee"


@torch.library.custom_op(
    "fairlead::dense_each",
    mutates_args=(),
    schema="(Tensor x, Tensor w, Tensor? bias, bool relu) -> Tensor",
)
def _dense_each(x: Tensor, w: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    if not uses_triton(x):
        return _by_torch(x, w, bias, relu).contiguous()
    from fairlead.gradients.stacked.triton_dense import multiply

    with torch.cuda.device_of(x):
        return multiply(x, w.mT, _precision(x), bias=bias, relu=relu)


@torch.library.custom_op(
    "fairlead::dense_each_input",
    mutates_args=(),
    schema="(Tensor g, Tensor? y, Tensor w) -> Tensor",
)
def _dense_each_input(g: Tensor, y: Tensor | None, w: Tensor) -> Tensor:
    """The gradient of the samples. y: the layer's output, with ReLU."""
    if not uses_triton(g):
        return torch.bmm(_shown(g, y), w)
    from fairlead.gradients.stacked.triton_dense import multiply

    with torch.cuda.device_of(g):
        return multiply(g, w, _precision(g), seen=y)


@torch.library.custom_op(
    "fairlead::dense_each_weight",
    mutates_args=(),
    schema="(Tensor g, Tensor? y, Tensor x) -> (Tensor, Tensor)",
)
def _dense_each_weight(g: Tensor, y: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the weights and of the biases."""
    if not uses_triton(g):
        g = _shown(g, y)
        return torch.bmm(g.mT, x), g.sum(1)
    from fairlead.gradients.stacked.triton_dense import multiply

    total = g.new_empty(len(g), g.shape[2])
    with torch.cuda.device_of(g):
        seen = None if y is None else y.mT
        return multiply(g.mT, x, _precision(g), seen=seen, total=total), total


def _shown(g: Tensor, y: Tensor | None) -> Tensor:
    return g if y is None else torch.where(y <= 0, 0, g)


@_dense_each.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    return x.new_empty(*x.shape[:2], w.shape[1])


@_dense_each_input.register_fake
def _(g: Tensor, y: Tensor | None, w: Tensor) -> Tensor:
    return g.new_empty(*g.shape[:2], w.shape[2])


@_dense_each_weight.register_fake
def _(g: Tensor, y: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
    return g.new_empty(len(g), g.shape[2], x.shape[2]), g.new_empty(len(g), g.shape[2])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, bias, relu = inputs
    ctx.save_for_backward(x, w, output if relu else None)
    ctx.biased = bias is not None


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, w, y = ctx.saved_tensors
    g, ops = g.contiguous(), torch.ops.fairlead
    dx = ops.dense_each_input(g, y, w) if ctx.needs_input_grad[0] else None
    dw = db = None
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        dw, db = ops.dense_each_weight(g, y, x)
    return dx, dw, db if ctx.biased else None, None


_dense_each.register_autograd(_gradients, setup_context=_keep)
