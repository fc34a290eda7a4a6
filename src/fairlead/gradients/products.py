"""Matrix products on a CPU by oneDNN, where it is faster than the BLAS that torch multiplies with.

That BLAS is usually MKL, which has AVX-512 kernels for Intel's processors alone; oneDNN, torch's library for convolutions,
uses them on every processor that has them. Its calls take a little longer, so small products stay with the BLAS.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.overrides import TorchFunctionMode

LARGE = 1 << 20
"""Multiplications of a product from which oneDNN computes it."""
PAYS = 1.25
"""How many times as fast oneDNN must be."""


def multiplied(a: Tensor, b: Tensor) -> Tensor:
    """a·b.

    >>> multiplied(torch.eye(2), torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    return LINEAR(a, b.t(), *PLAIN) if a.shape[0] * b.numel() >= LARGE else a @ b


def multiply_by_onednn(module: GraphModule) -> None:
    """Have large products of captured operators, x·y or bias + x·y, computed by oneDNN, with a ReLU that follows."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target not in (_aten.mm.default, _aten.addmm.default) or node.kwargs:
            continue
        *bias, a, b = node.args
        shapes = [_shape(t) for t in node.args]
        small = None not in shapes and shapes[-2][0] * shapes[-1].numel() < LARGE
        if small or (bias and (shapes[0] is None or len(shapes[0]) != 1)):
            continue  # an unknown shape is that of unfolded images
        with graph.inserting_before(node):
            turned = b.target is _aten.t.default
            w = b.args[0] if turned else graph.call_function(_aten.t.default, (b,))
            more: list[Any] = [*PLAIN]
            more[0] = bias[0] if bias else None
            users = list(node.users)
            if len(users) == 1 and users[0].target is _aten.relu.default:
                more[1], node = "relu", users[0]
            made = graph.call_function(LINEAR, (a, w, *more))
        made.meta = node.meta
        node.replace_all_uses_with(made)
    graph.eliminate_dead_code()
    module.recompile()


class LayersByOneDNN(TorchFunctionMode):
    """Large dense layers of torch's own models are computed by oneDNN, where no gradient is asked for.

    >>> with torch.no_grad(), LayersByOneDNN():
    ...     torch.nn.Linear(512, 64)(torch.ones(64, 512)).shape
    torch.Size([64, 64])
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.nn.functional.linear and not kwargs and not torch.is_grad_enabled():
            x, w, *bias = args
            if x.numel() * len(w) >= LARGE and x.dtype == w.dtype == torch.float32:
                return LINEAR(x, w, *bias, *PLAIN[len(bias) :])
        return func(*args, **(kwargs or {}))


def _shape(node: Node) -> Any:
    meta = node.meta.get("tensor_meta")
    return None if meta is None else meta.shape


@cache
def onednn_is_faster() -> bool:
    """Whether oneDNN is clearly faster than the BLAS on this machine: measured once per process, for one product."""
    if LINEAR is None or not torch.backends.mkldnn.is_available():
        return False
    a, b = torch.ones(128, 512), torch.ones(512, 256)
    best = {multiplied: float("inf"), torch.mm: float("inf")}
    for _ in range(10):  # in turns, so that a busy moment hits neither alone
        for multiply in best:
            begin = time.perf_counter()
            multiply(a, b)
            best[multiply] = min(best[multiply], time.perf_counter() - begin)
    return PAYS * best[multiplied] < best[torch.mm]


_aten = torch.ops.aten
LINEAR: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
"""x, w, bias, … to x·wᵀ + bias."""
PLAIN = (None, "none", [], "")
"""Its arguments after x and w: no bias, and no operator after the product."""
