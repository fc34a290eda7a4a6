"""Max pooling of S clients' images (S, B, H, W, C), with the biases before it and ReLU.

ReLU commutes with the maximum, and their gradients do too: a window whose largest value is not positive
gets none. With Triton one kernel adds biases, pools and applies ReLU where windows do not overlap;
`fairlead::relu_max_pool_each` and its gradient are registered operators like those of `conv`. Elsewhere
it uses torch's operators.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairlead.gradients.stacked.conv import uses_triton
from fairlead.gradients.stacked.norm import differentiates_twice

PLACES = 64
"""The largest windows of the kernels; for each place there is a copy of their code."""


def relu_max_pool_each(
    x: Tensor, kernel: tuple[int, int], relu: bool = False, bias: Tensor | None = None
) -> Tensor:
    """The largest of each window of x plus biases (S, C); zero where it is negative, with `relu`. Windows do
    not overlap, and rows and columns that fill none are cut off. The sum is rounded before values are
    compared; the first of equals gets the gradient, as in torch.

    >>> relu_max_pool_each(torch.randn(2, 3, 4, 5, 6), (2, 2), relu=True).shape
    torch.Size([2, 3, 2, 2, 6])
    """
    bias = None if bias is None else bias.to(x.dtype)
    if fuses(x) and kernel[0] * kernel[1] <= PLACES:
        bias = None if bias is None else bias.contiguous()
        arguments = x.contiguous(), bias, relu, *kernel
        return torch.ops.fairlead.relu_max_pool_each(*arguments)[0]
    y = max_pool(x if bias is None else x + bias[:, None, None, None], kernel, kernel, (0, 0))
    return y.relu() if relu else y


def fuses(x: Tensor) -> bool:
    """Whether a kernel adds biases too."""
    return uses_triton(x) and not differentiates_twice()


def max_pool(
    x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """The largest of each window of (S, B, H, W, C); the first of equals gets the gradient, as in
    torch. Whole windows are compared, without atomic additions."""
    (kh, kw), (ph, pw), (sh, sw) = kernel, padding, stride
    oh, ow = (x.shape[2] + 2 * ph - kh) // sh + 1, (x.shape[3] + 2 * pw - kw) // sw + 1
    if kernel == stride and padding == (0, 0):  # windows do not overlap
        tiles = x[:, :, : oh * kh, : ow * kw].unflatten(3, (ow, kw)).unflatten(2, (oh, kh))
        parts = [part for row in tiles.unbind(3) for part in row.unbind(4)]
    else:
        x = F.pad(x, (0, 0, pw, pw, ph, ph), value=-torch.inf) if ph or pw else x
        ends = (oh - 1) * sh + 1, (ow - 1) * sw + 1
        places = [(r, c) for r in range(kh) for c in range(kw)]
        parts = [x[:, :, r : r + ends[0] : sh, c : c + ends[1] : sw] for r, c in places]
    best = parts[0]
    for part in parts[1:]:
        best = torch.where((part > best) | part.isnan(), part, best)
    return best.contiguous()


# the index says which place of a window was the largest, or kh·kw where the window gets no gradient


@torch.library.custom_op(
    "fairlead::relu_max_pool_each",
    mutates_args=(),
    schema="(Tensor x, Tensor? bias, bool relu, int kh, int kw) -> (Tensor y, Tensor index)",
)
def _relu_max_pool_each(
    x: Tensor, bias: Tensor | None, relu: bool, kh: int, kw: int
) -> tuple[Tensor, Tensor]:
    from fairlead.gradients.stacked import triton_pool

    with torch.cuda.device_of(x):
        return triton_pool.forward(x.contiguous(), bias, relu, (kh, kw))


@torch.library.custom_op(
    "fairlead::relu_max_pool_each_back",
    mutates_args=(),
    schema="(Tensor g, Tensor index, int H, int W, int kh, int kw, bool biased)"
    " -> (Tensor dx, Tensor dbias)",
)
def _relu_max_pool_each_back(
    g: Tensor, index: Tensor, H: int, W: int, kh: int, kw: int, biased: bool
) -> tuple[Tensor, Tensor]:
    from fairlead.gradients.stacked import triton_pool

    with torch.cuda.device_of(g):
        return triton_pool.backward(g.contiguous(), index.contiguous(), (H, W), (kh, kw), biased)


@_relu_max_pool_each.register_fake
def _(x: Tensor, bias: Tensor | None, relu: bool, kh: int, kw: int) -> tuple[Tensor, Tensor]:
    S, B, H, W, C = x.shape
    y = x.new_empty(S, B, H // kh, W // kw, C)
    return y, torch.empty_like(y, dtype=torch.uint8)


@_relu_max_pool_each_back.register_fake
def _(
    g: Tensor, index: Tensor, H: int, W: int, kh: int, kw: int, biased: bool
) -> tuple[Tensor, Tensor]:
    S, B, _, _, C = g.shape
    return g.new_empty(S, B, H, W, C), g.new_empty((S, C) if biased else 0)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, _, kh, kw = inputs
    ctx.sizes = (*x.shape[2:4], kh, kw)
    ctx.save_for_backward(output[1])


def _gradients(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    biased = ctx.needs_input_grad[1]
    arguments = g.contiguous(), *ctx.saved_tensors, *ctx.sizes, biased
    dx, dbias = torch.ops.fairlead.relu_max_pool_each_back(*arguments)
    return dx, dbias if biased else None, None, None, None


_relu_max_pool_each.register_autograd(_gradients, setup_context=_keep)
