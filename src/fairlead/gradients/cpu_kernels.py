"""Captured operators rewritten for faster execution on a CPU, with the same results up to rounding."""

from __future__ import annotations

import operator
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

MANY_WEIGHTS = 1 << 21
"""The number of weights from which a convolution's weight gradient is computed as a product."""


def for_a_cpu(module: GraphModule, onednn: bool = False) -> None:
    """Apply the rewrites that are faster; oneDNN needs no turned products."""
    if not onednn:
        turn_products(module)
    unfold_weights(module)
    halve_images(module)
    module.graph.eliminate_dead_code()
    module.recompile()


def turn_products(module: GraphModule) -> None:
    """Compute x·Wᵀ + b as (W·xᵀ + b)ᵀ if the result is narrow and its width not a multiple of 16, where a
    CPU's kernels then lose less at the edge."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target is not _aten.addmm.default or node.kwargs:
            continue
        bias, x, turned = cast(tuple[Any, Any, Any], node.args)
        width = turned.args[0].meta["tensor_meta"].shape[0] if _is_turned(turned) else 0
        if width % 16 == 0 or not 16 <= width < 128:
            continue
        with graph.inserting_before(node):
            column = graph.call_function(_aten.unsqueeze.default, (bias, 1))
            across = graph.call_function(_aten.t.default, (x,))
            product = graph.call_function(_aten.addmm.default, (column, turned.args[0], across))
            node.replace_all_uses_with(graph.call_function(_aten.t.default, (product,)))


def unfold_weights(module: GraphModule) -> None:
    """Compute the gradient of many convolution weights as a product with the unfolded images, because a
    CPU's convolutions spend much time on the layout of such weights."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target is not _aten.convolution_backward.default:
            continue
        g, x, w, _, stride, padding, dilation, turned, _, groups, (inputs, weights, bias) = cast(
            tuple[Any, ...], node.args
        )
        shape = w.meta["tensor_meta"].shape if "tensor_meta" in w.meta else torch.Size()
        known = len(shape) == 4 and groups == 1 and weights and not turned
        if not known or shape.numel() < MANY_WEIGHTS:
            continue
        with graph.inserting_before(node):
            images = graph.call_function(
                _aten.im2col.default, (x, list(shape[2:]), dilation, padding, stride)
            )
            columns = _rows_of(graph, images, [1, 0, 2], shape[1:].numel())
            rows = _rows_of(graph, g, [1, 0, 2, 3], shape[0])
            across = graph.call_function(_aten.t.default, (columns,))
            product = graph.call_function(_aten.mm.default, (rows, across))
            found = {1: graph.call_function(_aten.view.default, (product, list(shape)))}
            if bias:
                found[2] = graph.call_function(_aten.sum.dim_IntList, (g, [0, 2, 3]))
            if inputs:
                mask = [True, False, False]
                rest = graph.call_function(node.target, (*node.args[:-1], mask))
                found[0] = graph.call_function(operator.getitem, (rest, 0))
        for user in list(node.users):
            new = found[user.args[1]]
            new.meta = user.meta
            user.replace_all_uses_with(new)


def _rows_of(graph: Any, node: Any, order: list[int], rows: int) -> Node:
    turned = graph.call_function(_aten.permute.default, (node, order))
    return graph.call_function(_aten.reshape.default, (turned, [rows, -1]))


def halve_images(module: GraphModule) -> None:
    """Use `halved` for 2 × 2 max pooling, if images are stored row by row."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target is not _aten.max_pool2d_with_indices.default:
            continue
        x, kernel, *rest = cast(tuple[Any, ...], node.args)
        meta = x.meta.get("tensor_meta")
        stride, padding, dilation, ceil = [*rest, *PLAIN[len(rest) :]]
        plain = (kernel, stride or kernel, padding, dilation, ceil) == ([2, 2], [2, 2], *PLAIN[1:])
        if meta is None or not plain or len(meta.shape) != 4 or any(n % 2 for n in meta.shape[2:]):
            continue
        if meta.stride == _rows_first(meta.shape):
            node.target, node.args = halved, (x,)


PLAIN = [[], [0, 0], [1, 1], False]
"""The defaults of a pooling: stride, padding, dilation, ceil_mode."""


def _rows_first(shape: torch.Size) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def halved(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest number of each 2 × 2 window of images (B, C, H, W), and its index in the image: the first
    of equals, as in torch.

    >>> halved(torch.tensor([[[[1.0, 3.0, 2.0, 2.0], [3.0, 0.0, 2.0, 2.0]]]]))
    (tensor([[[[3., 2.]]]]), tensor([[[[1, 2]]]]))
    """
    b, c, h, w = x.shape
    upper, lower = x.reshape(b, c, h // 2, 2, w // 2, 2).unbind(3)
    columns = torch.maximum(upper, lower)
    y = torch.maximum(columns[..., 0], columns[..., 1])
    first, second, third = (t != y for t in (upper[..., 0], upper[..., 1], lower[..., 0]))
    below = first & second
    right = first & (~below | third)
    return y, below.to(torch.int64).mul_(w).add_(right.to(torch.int64)).add_(_corners(h, w))


@cache
def _corners(h: int, w: int) -> Tensor:
    """The index of the first pixel of each window."""
    return (torch.arange(0, h, 2) * w)[:, None] + torch.arange(0, w, 2)


def _is_turned(node: Any) -> bool:
    known = isinstance(node, Node) and node.target is _aten.t.default
    return known and "tensor_meta" in cast(Any, node.args[0]).meta


_aten = torch.ops.aten
