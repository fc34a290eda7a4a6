"""Gradients in segments of the vector, and sums of segments block by block while a block is in the cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 1 << 16
"""Coordinates that are computed together."""
PRODUCT_BLOCK = 1 << 20
"""The same where matrix products are among them, which lose more by being cut."""
SHORT = 1 << 14
"""Neighbouring parameters of fewer coordinates form one segment."""


class Product(NamedTuple):
    """A matrix a·b that has not been computed."""

    a: Tensor
    b: Tensor

    @property
    def tensor(self) -> Tensor:
        return (self.a @ self.b).reshape(-1)


def segments(sizes: Sequence[int]) -> tuple[int, ...]:
    """The lengths of the segments of a vector whose parameters have these sizes.

    >>> segments([10, 20, 1 << 14, 5])
    (30, 16384, 5)
    """
    found: list[int] = []
    for short, run in itertools.groupby(sizes, lambda size: size < SHORT):
        some = list(run)
        found += [sum(some)] if short else some
    return tuple(found)


def joined(parts: Sequence[Tensor]) -> list[Tensor]:
    """Gradients by parameter as one flat tensor per segment."""
    found: list[Tensor] = []
    for short, some in itertools.groupby(parts, lambda part: part.numel() < SHORT):
        flat = [part.reshape(-1) for part in some]
        found += [torch.cat(flat)] if short and len(flat) > 1 else flat
    return found


def add_segment(
    out: Tensor,
    vectors: list[tuple[float, Tensor]],
    products: list[tuple[float, Product]],
    started: bool,
) -> None:
    """Sum a segment into `out`, which is itself a term if `started`."""
    length, width, size = out.numel(), 1, BLOCK
    if products:
        width, size = products[0][1].b.shape[1], PRODUCT_BLOCK
    if length <= size or len(vectors) + len(products) == 1:  # one operator leaves no cache warm
        size = length
    step = max(1, size // width) * width
    for begin in range(0, length, step):
        end = min(length, begin + step)
        rows = slice(begin // width, end // width)
        _add_block(
            out[begin:end],
            [(number, v[begin:end]) for number, v in vectors],
            [(number, Product(p.a[rows], p.b)) for number, p in products],
            started,
        )


def _add_block(
    out: Tensor,
    vectors: list[tuple[float, Tensor]],
    products: list[tuple[float, Product]],
    started: bool,
) -> None:
    left = iter(vectors)
    for number, v in left:
        if started:
            out.add_(v, alpha=number)
            continue
        started = True
        second = next(left, None) if number == 1 else None
        if second is None:
            torch.mul(v, number, out=out)
        else:
            torch.add(v, second[1], alpha=second[0], out=out)
    for number, (a, b) in products:
        rows = out.view(-1, b.shape[1])
        torch.addmm(rows, a, b, beta=1 if started else 0, alpha=number, out=rows)
        started = True
