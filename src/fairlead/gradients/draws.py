"""Random numbers inside a model, the same in every engine.

Dropout and the like draw from torch's generator, so what a client gets would depend on which clients
were computed before it or beside it. Here every number is a function of the client's key, which comes from
(seed, round, client, step), of the operator's number in the pass, and of the element's coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fairlead.rng import hashed_at, signed

_aten: Any = torch.ops.aten
AXES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1, 0xD3A2646D)
"""An odd factor per axis: coordinates become counters, whatever the lengths of the axes."""
STREAM = 0x632BE59B


class Draws(TorchDispatchMode):
    """Inside its block, operators that draw get their numbers from keys.

    keys: two random words per client, (S, 2). together: whether tensors have a leading client axis, as they have
    below `vmap`. first: the position of the block's first sample among the client's.
    """

    def __init__(self, keys: Tensor, together: bool, first: int = 0) -> None:
        super().__init__()
        self.keys, self.together, self.first, self.number = keys, together, first, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        draw = _KNOWN.get(func)
        if draw is not None:
            return draw(self, *args, **kwargs)
        if self.together:
            raise RuntimeError(
                f"{func} draws random numbers, which fairlead does for single clients only"
            )
        with torch.random.fork_rng(devices=[]):
            self.number += 1
            torch.default_generator.manual_seed(int(self.keys[0, 0]) + (self.number << 32))
            return func(*args, **kwargs)

    def uniform(self, shape: Sequence[int], like: Any) -> Tensor:
        """Uniform numbers in (0, 1) of this shape, with the type and device of `like`."""
        shape = tuple(shape)
        inner = shape[1:] if self.together else shape
        if (self.together and shape[0] != len(self.keys)) or len(inner) > len(AXES):
            raise RuntimeError(f"random numbers of shape {shape} cannot be told apart by clients")
        self.number += 1
        device = self.keys.device
        at = torch.zeros((), dtype=torch.int64, device=device)
        for axis, (length, factor) in enumerate(zip(inner, AXES, strict=False)):
            place = torch.arange(length, device=device) + (self.first if axis == 0 else 0)
            at = at[..., None] + place * signed(factor)
        counters = (at.reshape(-1) + signed(self.number * STREAM)).to(torch.int32)
        found = hashed_at(self.keys, counters, torch.float32)
        return found.reshape(shape).to(like.device, like.dtype)

    def normal(self, shape: Sequence[int], like: Any) -> Tensor:
        """Standard normal numbers, by Box and Muller."""
        radius, angle = self.uniform(shape, like), self.uniform(shape, like)
        return (-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()


class _Like:
    """The type and device of what an operator makes."""

    def __init__(self, dtype: torch.dtype | None = None, device: Any = None, **more: Any) -> None:
        self.dtype, self.device = dtype or torch.get_default_dtype(), torch.device(device or "cpu")


def _bernoulli(d: Draws, t: Tensor, p: Any = None, *, generator: Any = None) -> Tensor:
    u = d.uniform(t.shape, t)
    return (u < (t if p is None else p)).to(t.dtype)


def _bernoulli_(d: Draws, t: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    return t.copy_(d.uniform(t.shape, torch.empty((), device=t.device)) < p)


def _native_dropout(d: Draws, t: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False:
        return t.clone(), torch.ones_like(t, dtype=torch.bool)
    kept = d.uniform(t.shape, torch.empty((), device=t.device)) < 1 - p
    return t * kept * (1 / (1 - p) if p < 1 else 0.0), kept


def _rrelu(
    d: Draws, t: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3,
    training: bool = False, generator: Any = None,
) -> Tensor:  # fmt: skip
    if not training:
        return torch.where(t > 0, t, t * ((lower + upper) / 2))
    slopes = lower + (upper - lower) * d.uniform(t.shape, t)
    noise.copy_(torch.where(t <= 0, slopes, torch.ones_like(t)))
    return t * noise


def _created(kind: str) -> Callable[..., Tensor]:
    def draw(d: Draws, size: Sequence[int], **more: Any) -> Tensor:
        return getattr(d, kind)(size, _Like(**more))

    return draw


def _alike(kind: str) -> Callable[..., Tensor]:
    def draw(d: Draws, t: Tensor, *, dtype: Any = None, device: Any = None, **more: Any) -> Tensor:
        return getattr(d, kind)(t.shape, _Like(dtype or t.dtype, device or t.device))

    return draw


def _uniform_(d: Draws, t: Tensor, low: float = 0.0, high: float = 1.0, **more: Any) -> Tensor:
    return t.copy_(low + (high - low) * d.uniform(t.shape, t))


def _normal_(d: Draws, t: Tensor, mean: float = 0.0, std: float = 1.0, **more: Any) -> Tensor:
    return t.copy_(mean + std * d.normal(t.shape, t))


_KNOWN: dict[Any, Callable[..., Any]] = {
    _aten.bernoulli.default: _bernoulli,
    _aten.bernoulli.p: _bernoulli,
    _aten.bernoulli.Tensor: _bernoulli,
    _aten.bernoulli_.float: _bernoulli_,
    _aten.bernoulli_.Tensor: _bernoulli_,
    _aten.native_dropout.default: _native_dropout,
    _aten.rrelu_with_noise.default: _rrelu,
    _aten.rand.default: _created("uniform"),
    _aten.randn.default: _created("normal"),
    _aten.rand_like.default: _alike("uniform"),
    _aten.randn_like.default: _alike("normal"),
    _aten.uniform_.default: _uniform_,
    _aten.normal_.default: _normal_,
}
