"""Models; each function returns a factory of an `nn.Module`, so that a run's seed determines the weights.

Weights are drawn on the CPU and then moved, so they are the same on every device. Images are (B, C, H, W)
floats, text is (B, T) codes. `norm` is "none", "group" or "batch".

>>> import fairlead as fl
>>> model = fl.models.mlp(64, 32, 10)()
>>> [tuple(p.shape) for p in model.parameters()]
[(32, 64), (32,), (10, 32), (10,)]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairlead.errors import unknown

Maker: TypeAlias = Callable[[], nn.Module]
Norm: TypeAlias = Literal["none", "group", "batch"]


def softmax_regression(inputs: int, classes: int, zero: bool = True) -> Maker:
    """A linear model on flattened inputs, initialized to zero with `zero`."""

    def make() -> nn.Module:
        layer = nn.Linear(inputs, classes)
        if zero:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(nn.Flatten(), layer)

    return make


def mlp(*widths: int) -> Maker:
    """Fully connected layers with ReLU between: `mlp(784, 300, 300, 10)`.

    >>> count(mlp(784, 300, 300, 10))
    328810
    """

    def make() -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for n, m in pairwise(widths):
            layers += [nn.Linear(n, m), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return make


def femnist_cnn(classes: int = 62, norm: Norm = "none", side: int = 28) -> Maker:
    """Two 5 × 5 convolutions (32 and 64 channels) with pooling and a hidden layer of 512, for grey images.

    >>> count(femnist_cnn())
    1690046
    """

    def make() -> nn.Module:
        width = 64 * (side // 4) ** 2
        return nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), *_norm(norm, 32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), *_norm(norm, 64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, classes),
        )  # fmt: skip

    return make


def cifar_cnn(classes: int = 10, norm: Norm = "none", dropout: float = 0.0) -> Maker:
    """The two-convolution network of the pfl benchmark on CIFAR-10, by default without dropout.

    >>> count(cifar_cnn())
    1626442
    """

    def make() -> nn.Module:
        drop = [nn.Dropout(dropout)] if dropout else []
        return nn.Sequential(
            nn.Conv2d(3, 32, 3), *_norm(norm, 32), nn.ReLU(),
            nn.Conv2d(32, 64, 3), *_norm(norm, 64), nn.ReLU(), nn.MaxPool2d(2), *drop,
            nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), *drop, nn.Linear(128, classes),
        )  # fmt: skip

    return make


def vgg11(
    classes: int = 10,
    norm: Norm = "none",
    dropout: float = 0.0,
    he: bool | None = None,
    width: float = 1.0,
) -> Maker:
    """VGG-11 for 32 × 32 images with three fully connected layers (FedPVR's experiments).

    dropout: before the first two fully connected layers. he: start from He et al.'s weights and zero biases
    instead of torch's defaults, by which a network without normalization hardly learns for many rounds; by
    default if there is no normalization. width: the share of the channels and hidden units that is kept.

    >>> count(vgg11()), count(vgg11(100)), count(vgg11(width=0.25))
    (9750922, 9797092, 611434)
    """

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        channels = 3
        for full in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
            if full == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            kept = round(full * width)
            layers += [nn.Conv2d(channels, kept, 3, padding=1), *_norm(norm, kept), nn.ReLU()]
            channels = kept
        layers.append(nn.Flatten())
        for _ in range(2):
            layers += [nn.Dropout(dropout)] if dropout else []
            layers += [nn.Linear(channels, channels), nn.ReLU()]
        made = nn.Sequential(*layers, nn.Linear(channels, classes))
        if he if he is not None else norm == "none":
            _he(made)
        return made

    return make


class Residual(nn.Module):
    """Two 3 × 3 convolutions and a shortcut, which is a 1 × 1 convolution if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=norm == "none"), *_norm(norm, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=norm == "none"), *_norm(norm, outputs),
        )  # fmt: skip
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Sequential() if same else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=norm == "none"), *_norm(norm, outputs)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet8(classes: int = 10, norm: Norm = "group") -> Maker:
    """ResNet-8 for 32 × 32 images, by default with two-group GroupNorm (FedPVR's experiments).

    >>> count(resnet8()), count(resnet8(norm="batch"))
    (78042, 78042)
    """

    def make() -> nn.Module:
        stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=norm == "none"), *_norm(norm, 16), nn.ReLU()]
        blocks = [Residual(n, m, s, norm) for n, m, s in ((16, 16, 1), (16, 32, 2), (32, 64, 2))]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)]
        return nn.Sequential(*stem, *blocks, *head)

    return make


class CharGRU(nn.Module):
    """Predicts the next character with a GRU, written out."""

    def __init__(self, characters: int, embed: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, embed)
        self.from_input = nn.Linear(embed, 3 * hidden)
        self.from_hidden = nn.Linear(hidden, 3 * hidden)
        self.head = nn.Linear(hidden, characters)

    def forward(self, codes: Tensor) -> Tensor:
        inputs = self.from_input(self.embed(codes.long()))
        h = torch.zeros_like(self.from_hidden.weight[0]).expand(len(codes), -1)
        for step in inputs.unbind(1):
            a, b = step.chunk(3, -1), self.from_hidden(h).chunk(3, -1)
            reset, keep = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
            h = keep * h + (1 - keep) * torch.tanh(a[2] + reset * b[2])
        return self.head(h)


def char_gru(characters: int, embed: int = 8, hidden: int = 64) -> Maker:
    """A small recurrent network that reads characters and predicts the next one.

    >>> count(char_gru(30))
    16398
    """
    return partial(CharGRU, characters, embed, hidden)


class Attention(nn.Module):
    """A pre-norm transformer layer with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        parts = self.qkv(self.before(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d / self.heads)
        later = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        seen = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
        x = x + self.project(seen.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.after(x))


class CharTransformer(nn.Module):
    """Predicts the next character with attention to those before it."""

    def __init__(self, characters: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Attention(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.embed(codes.long()) + self.position.weight[: codes.shape[1]]
        return self.head(self.norm(self.layers(x)[:, -1]))


def char_transformer(
    characters: int, length: int = 80, width: int = 64, heads: int = 4, layers: int = 2
) -> Maker:
    """A small transformer that reads up to `length` characters and predicts the next one.

    >>> count(char_transformer(30))
    109086
    """
    return partial(CharTransformer, characters, length, width, heads, layers)


def count(make: Maker) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in make().parameters() if p.requires_grad)


def _he(model: nn.Sequential) -> None:
    """He et al.'s weights, by the number of outputs so that a step size of 0.1 is stable from the start; the last
    layer's are small, and biases zero."""
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    last = model[-1]
    assert isinstance(last, nn.Linear)
    nn.init.normal_(last.weight, std=0.01)


def _norm(kind: Norm, channels: int) -> list[nn.Module]:
    if kind not in ("none", "group", "batch"):
        raise unknown("norm", kind, ["none", "group", "batch"])
    layer = {"group": partial(nn.GroupNorm, 2), "batch": nn.BatchNorm2d}
    return [] if kind == "none" else [layer[kind](channels)]
