"""A dense layer in which every client has its own weights, and its gradients.

The operator `fairlead::product_each` multiplies a matrix per client with another, (S, M, K) · (S, K, N), and is registered with
torch like those of `conv`. On a CUDA device it is a Triton kernel (`triton_dense`) where one side is short, as with
small batches, in bfloat16, float16, and in float32 where torch's own products are in TF32; else torch's product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairlead.gradients.stacked.conv import HALF, uses_triton

SHORT = 128
"""Up to this length of the shortest side a product is the kernel's."""
MOST = 65_535
"""As many clients as a grid of the kernel can have."""


def dense_each(x: Tensor, w: Tensor) -> Tensor:
    """Samples (S, B, n) times weights (S, m, n).

    >>> dense_each(torch.ones(2, 3, 4), torch.ones(2, 5, 4)).shape
    torch.Size([2, 3, 5])
    """
    short = min(x.shape[1], *w.shape[1:]) <= SHORT
    if short and _by_kernel(x):
        return torch.ops.fairlead.product_each(x, w.mT)
    # w on the left: its gradient is then (S, m, n), as in the parameter vector
    return torch.bmm(w, x.mT).mT


def _by_kernel(x: Tensor) -> bool:
    return uses_triton(x) and len(x) <= MOST and (x.dtype in HALF or in_tf32())


def in_tf32() -> bool:
    """Whether torch's products of float32 are in TF32."""
    products: Any = torch.backends.cuda.matmul
    known = hasattr(products, "fp32_precision")
    return products.fp32_precision == "tf32" if known else products.allow_tf32


@torch.library.custom_op(
    "fairlead::product_each", mutates_args=(), schema="(Tensor a, Tensor b) -> Tensor"
)
def _product_each(a: Tensor, b: Tensor) -> Tensor:
    if not _by_kernel(a):
        return torch.bmm(a, b)
    from fairlead.gradients.stacked import triton_dense

    with torch.cuda.device_of(a):
        return triton_dense.multiply(a, b, "tf32" if a.dtype == torch.float32 else "ieee")


@_product_each.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(len(a), a.shape[1], b.shape[2])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    multiply = torch.ops.fairlead.product_each
    da = multiply(g, b.mT) if ctx.needs_input_grad[0] else None
    db = None
    if ctx.needs_input_grad[1]:  # laid out like b, which may be a matrix turned over
        db = multiply(g.mT, a).mT if b.stride(1) == 1 else multiply(a.mT, g)
    return da, db


_product_each.register_autograd(_gradients, setup_context=_keep)
