"""A model as a function of the stacked parameters of S clients.

Inside, images are (S, B, H, W, C) and other values (S, B, …); callers see images as
(S, B, C, H, W). A layer is a function of the parameters by name and the previous layer's output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairlead.gradients.stacked.conv import conv2d_each
from fairlead.gradients.stacked.norm import group_norm_each
from fairlead.task.model import has_hooks
from fairlead.task.models import Residual

Weights: TypeAlias = Mapping[str, Tensor]
Layer: TypeAlias = Callable[[Weights, Tensor], Tensor]
Name: TypeAlias = Callable[[Tensor | None], str | None]


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
    at = 0
    while at < len(modules):
        module = modules[at]
        cut = type(module) is nn.GroupNorm and type(_get(modules, at + 1)) is nn.ReLU
        make = partial(_group_norm, relu=True) if cut else LAYERS.get(type(module))
        layer = None if make is None else make(module, name)
        if layer is None:
            return None
        layers.append(layer)
        at += 2 if cut else 1

    def run(weights: Weights, x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(weights, x)
        return x

    return run


def _get(modules: Sequence[nn.Module], at: int) -> nn.Module | None:
    return modules[at] if at < len(modules) else None


# -- layers with parameters -------------------------------------------------------------------------


def _linear(module: nn.Linear, name: Name) -> Layer:
    weight, bias = name(module.weight), name(module.bias)
    assert weight is not None

    def run(weights: Weights, x: Tensor) -> Tensor:
        x = _outside(x)  # a linear layer applies to the last dimension in torch's layout
        shape, x = x.shape, x.flatten(1, -2)
        # w on the left: its gradient is then (S, m, n), as in the parameter vector
        y = torch.bmm(weights[weight].to(x.dtype), x.mT)
        if bias is not None:
            y = y + weights[bias].to(x.dtype)[..., None]
        return _inside(y.mT.unflatten(1, shape[1:-1]))

    return run


def _conv(module: nn.Conv2d, name: Name) -> Layer | None:
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
        return conv2d_each(x, weights[weight], weights[bias] if bias else None, stride, edge)

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
    sides = [_pair(v) for v in (module.kernel_size, module.stride, module.padding)]
    if module.ceil_mode or module.return_indices or _pair(module.dilation) != (1, 1):
        return None
    return lambda weights, x: max_pool(x, *sides)


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
