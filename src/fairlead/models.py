"""Models by name; each is a function that makes an `nn.Module`, so that seeds decide weights."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import nn


def softmax_regression(inputs: int, classes: int, zero: bool = True) -> Callable[[], nn.Module]:
    """A linear model on flattened inputs, started at zero unless asked otherwise."""

    def make() -> nn.Module:
        layer = nn.Linear(inputs, classes)
        if zero:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(nn.Flatten(), layer)

    return make


def mlp(*widths: int) -> Callable[[], nn.Module]:
    """Fully connected layers with ReLU between them: `mlp(784, 300, 300, 10)`.

    >>> sum(p.numel() for p in mlp(784, 300, 300, 10)().parameters())
    328810
    """

    def make() -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for n, m in pairwise(widths):
            layers += [nn.Linear(n, m), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return make
