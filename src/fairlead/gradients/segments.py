"""Gradients in segments of the vector, and sums of segments block by block while a block is in the cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairlead.gradients.products import multiplied

BLOCK = 1 << 16
"""Coordinates that are computed together."""
PRODUCT_BLOCK = 1 << 20
"""The same where matrix products are among them, which lose more by being cut."""
SHORT = 1 << 14
"""Neighbouring parameters of fewer coordinates form one segment."""


class Product(NamedTuple):
    """A matrix a·b that has not been computed. onednn: it may be computed by oneDNN."""

    a: Tensor
    b: Tensor
    onednn: bool = False

    @property
    def tensor(self) -> Tensor:
        return (multiplied(self.a, self.b) if self.onednn else self.a @ self.b).reshape(-1)

    def add_to(self, out: Tensor, number: float, to: Tensor | None) -> None:
        """Put a multiple into `out`, added to a vector if there is one."""
        rows = out.view(-1, self.b.shape[1])
        before = rows if to is None else to.view(rows.shape)
        if not self.onednn:
            beta = 0 if to is None else 1
            torch.addmm(before, self.a, self.b, beta=beta, alpha=number, out=rows)
        elif to is None:
            torch.mul(multiplied(self.a, self.b), number, out=rows)
        else:
            torch.add(before, multiplied(self.a, self.b), alpha=number, out=rows)


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
        _add_block(out, vectors, products, started)
        return
    step = max(1, size // width) * width
    for begin in range(0, length, step):
        end = min(length, begin + step)
        rows = slice(begin // width, end // width)
        _add_block(
            out[begin:end],
            [(number, v[begin:end]) for number, v in vectors],
            [(number, p._replace(a=p.a[rows])) for number, p in products],
            started,
        )


def _add_block(
    out: Tensor,
    vectors: list[tuple[float, Tensor]],
    products: list[tuple[float, Product]],
    started: bool,
) -> None:
    so_far = out if started else None  # what the next term is added to
    if so_far is None and vectors and vectors[0][0] == 1:
        so_far, vectors = vectors[0][1], vectors[1:]
    for number, v in vectors:
        if so_far is None:
            torch.mul(v, number, out=out)
        else:
            torch.add(so_far, v, alpha=number, out=out)
        so_far = out
    for number, product in products:
        product.add_to(out, number, so_far)
        so_far = out
    if so_far is not None and so_far is not out:
        out.copy_(so_far)
