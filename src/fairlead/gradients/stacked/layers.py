"""A model as a function of the stacked parameters of S clients.

Inside, images are (S, B, H, W, C) and other values (S, B, …); callers see images as
(S, B, C, H, W). A layer is a function of the parameters by name and the previous layer's output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairlead.gradients.stacked.conv import conv2d_each
from fairlead.gradients.stacked.dense import dense_each
from fairlead.gradients.stacked.norm import group_norm_each
from fairlead.gradients.stacked.pool import fuses, max_pool, relu_max_pool_each
from fairlead.task.model import has_hooks
from fairlead.task.models import Residual

Weights: TypeAlias = Mapping[str, Tensor]
Layer: TypeAlias = Callable[[Weights, Tensor], Tensor]
Name: TypeAlias = Callable[[Tensor | None], str | None]
Pool: TypeAlias = Callable[[Tensor, Tensor | None], Tensor]
"""Pooling, with ReLU or without, of images to which biases are still to be added."""


def stacked_model(model: nn.Module) -> Layer | None:
    """The model for S clients at once, each with its own weights: a function of the parameters
    by name, (S, …), and inputs (S, B, …), that returns outputs (S, B, …). None if a layer of the
    model is not supported.

    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    >>> weights = {n: torch.stack([p, 2 * p]) for n, p in model.named_parameters()}
    >>> run = stacked_model(model)
    >>> run(weights, torch.randn(2, 5, 1, 4, 4)).shape
    torch.Size([2, 5, 2])
    """
    names = {id(p): n for n, p in model.named_parameters()}
    run = _chain(list(_leaves(model)), lambda p: None if p is None else names[id(p)])
    if run is None or any(has_hooks(m) for m in model.modules()):
        return None
    return lambda weights, x: _outside(run(weights, _inside(x)))


def _inside(x: Tensor) -> Tensor:
    return x.permute(0, 1, 3, 4, 2) if x.dim() == 5 else x


def _outside(x: Tensor) -> Tensor:
    return x.permute(0, 1, 4, 2, 3) if x.dim() == 5 else x


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested sequences, flattened."""
    if type(module) is nn.Sequential:
        for inner in module:
            yield from _leaves(inner)
    else:
        yield module


def _chain(modules: Sequence[nn.Module], name: Name) -> Layer | None:
    layers: list[Layer] = []
    while modules:
        layer, taken = _first(modules, name)
        if layer is None:
            return None
        layers.append(layer)
        modules = modules[taken:]

    def run(weights: Weights, x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(weights, x)
        return x

    return run


def _first(modules: Sequence[nn.Module], name: Name) -> tuple[Layer | None, int]:
    """The first module, with those after it that are computed along with it, and how many these are."""
    module, kinds = modules[0], [type(m) for m in modules[:2]]
    if kinds == [nn.GroupNorm, nn.ReLU]:
        return _group_norm(cast(nn.GroupNorm, module), name, relu=True), 2
    if type(module) is nn.Conv2d:
        pool, taken = _pooled(modules[1:3])
        return _conv(module, name, pool), 1 + taken
    pool, taken = _pooled(modules[:2])
    if pool is not None:
        return lambda weights, x: pool(x, None), taken
    make = LAYERS.get(type(module))
    return None if make is None else make(module, name), 1


def _pooled(modules: Sequence[nn.Module]) -> tuple[Pool | None, int]:
    """Max pooling of windows that do not overlap, with ReLU before or after it, if modules begin so."""
    kinds = [type(m) for m in modules]
    if nn.MaxPool2d not in kinds:
        return None, 0
    at = kinds.index(nn.MaxPool2d)
    relu = kinds in ([nn.ReLU, nn.MaxPool2d], [nn.MaxPool2d, nn.ReLU])
    sides = _sides(cast(nn.MaxPool2d, modules[at]))
    if (at and not relu) or sides is None or sides[0] != sides[1] or sides[2] != (0, 0):
        return None, 0
    return lambda x, bias: relu_max_pool_each(x, sides[0], relu, bias), 2 if relu else 1


# -- layers with parameters -------------------------------------------------------------------------


def _linear(module: nn.Linear, name: Name) -> Layer:
    weight, bias = name(module.weight), name(module.bias)
    assert weight is not None

    def run(weights: Weights, x: Tensor) -> Tensor:
        x = _outside(x)  # a linear layer applies to the last dimension in torch's layout
        shape, x = x.shape, x.flatten(1, -2)
        y = dense_each(x, weights[weight].to(x.dtype))
        if bias is not None:
            y = y + weights[bias].to(x.dtype)[:, None]
        return _inside(y.unflatten(1, shape[1:-1]))

    return run


def _conv(module: nn.Conv2d, name: Name, pool: Pool | None = None) -> Layer | None:
    padding = module.padding
    if isinstance(padding, str):
        odd = all(k % 2 for k in module.kernel_size)
        same = tuple(k // 2 for k in module.kernel_size)
        padding = (0, 0) if padding == "valid" else same if odd else None
    plain = module.groups == 1 and module.padding_mode == "zeros" and module.dilation == (1, 1)
    if padding is None or not plain:
        return None
    weight, bias, stride, edge = name(module.weight), name(module.bias), module.stride, padding
    assert weight is not None

    def run(weights: Weights, x: Tensor) -> Tensor:
        w, b = weights[weight], weights[bias] if bias else None
        if pool is None:
            return conv2d_each(x, w, b, stride, edge)
        if fuses(x):  # the gradient of the biases is then a sum over fewer pixels
            return pool(conv2d_each(x, w, None, stride, edge), b)
        return pool(conv2d_each(x, w, b, stride, edge), None)

    return run


def _group_norm(module: Any, name: Name, relu: bool = False) -> Callable[..., Tensor]:
    scale, shift = (name(p) if module.affine else None for p in (module.weight, module.bias))

    def run(weights: Weights, x: Tensor, added: Tensor | None = None) -> Tensor:
        w, b = (weights[n] if n else None for n in (scale, shift))
        if x.dim() == 4:  # (S, B, C, …), torch's layout
            return group_norm_each(x.mT, w, b, module.num_groups, module.eps, added, relu).mT
        return group_norm_each(x, w, b, module.num_groups, module.eps, added, relu)

    return run


def _residual(module: Residual, name: Name) -> Layer | None:
    inner = list(_leaves(module.body))
    shortcut = _chain(list(_leaves(module.shortcut)), name)
    if type(inner[-1]) is nn.GroupNorm:
        body, last = _chain(inner[:-1], name), _group_norm(inner[-1], name, relu=True)
        if body is None or shortcut is None:
            return None
        return lambda weights, x: last(weights, body(weights, x), shortcut(weights, x))
    body = _chain(inner, name)
    if body is None or shortcut is None:
        return None
    return lambda weights, x: torch.relu(body(weights, x) + shortcut(weights, x))


# -- layers without parameters ----------------------------------------------------------------------


def _elementwise(function: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Name], Layer]:
    return lambda module, name: lambda weights, x: function(x)


def _gelu(module: nn.GELU, name: Name) -> Layer:
    return lambda weights, x: F.gelu(x, approximate=module.approximate)


def _flatten(module: nn.Flatten, name: Name) -> Layer | None:
    if (module.start_dim, module.end_dim) != (1, -1):
        return None
    return lambda weights, x: _outside(x).flatten(2)


def _max_pool(module: nn.MaxPool2d, name: Name) -> Layer | None:
    sides = _sides(module)
    return None if sides is None else lambda weights, x: max_pool(x, *sides)


def _sides(module: nn.MaxPool2d) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]] | None:
    """Kernel, stride and padding; None if the module is not supported."""
    if module.ceil_mode or module.return_indices or _pair(module.dilation) != (1, 1):
        return None
    return _pair(module.kernel_size), _pair(module.stride), _pair(module.padding)


def _avg_pool(module: nn.AvgPool2d, name: Name) -> Layer:
    settings = (module.kernel_size, module.stride, module.padding, module.ceil_mode)
    more = (module.count_include_pad, module.divisor_override)

    def run(weights: Weights, x: Tensor) -> Tensor:
        y = F.avg_pool2d(_outside(x).flatten(0, 1), *settings, *more)
        return _inside(y.unflatten(0, x.shape[:2])).contiguous()

    return run


def _global_pool(module: nn.AdaptiveAvgPool2d, name: Name) -> Layer | None:
    if module.output_size not in (1, (1, 1)):
        return None
    return lambda weights, x: x.mean((2, 3), keepdim=True)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


LAYERS: dict[type, Callable[[Any, Name], Layer | None]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    nn.GroupNorm: _group_norm,
    Residual: _residual,
    nn.ReLU: _elementwise(torch.relu),
    nn.Tanh: _elementwise(torch.tanh),
    nn.Sigmoid: _elementwise(torch.sigmoid),
    nn.Identity: _elementwise(lambda x: x),
    nn.GELU: _gelu,
    nn.Flatten: _flatten,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _avg_pool,
    nn.AdaptiveAvgPool2d: _global_pool,
}
