"""Lanczos: the ends of the spectrum of symmetric operators from their products, for many operators at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

KEPT = 1 << 30
"""Bytes of basis vectors up to which every new one is made orthogonal to all before it."""


@dataclass(frozen=True)
class Spectrum:
    """The smallest and largest Ritz values, and for each the norm of its residual: an eigenvalue lies within that
    distance. Ritz values lie inside the spectrum, so `high` is a lower bound on the largest eigenvalue."""

    low: Tensor
    high: Tensor
    low_residual: Tensor
    high_residual: Tensor

    @property
    def norm(self) -> Tensor:
        """The largest absolute Ritz value, a lower bound on the norm."""
        return torch.maximum(self.low.abs(), self.high.abs())

    @property
    def residual(self) -> Tensor:
        """The larger of the two residuals."""
        return torch.maximum(self.low_residual, self.high_residual)


def lanczos(
    apply: Callable[[Tensor], Tensor], start: Tensor, steps: int, first: Tensor | None = None
) -> Spectrum:
    """The ends of the spectra of operators that act on vectors (d,) or on rows (S, d), each its own. first: the product
    with start/‖start‖, where it is known.

    >>> ends = lanczos(lambda v: v * torch.tensor([3.0, -1.0, 2.0]), torch.ones(3), steps=3)
    >>> round(float(ends.low), 4), round(float(ends.high), 4)
    (-1.0, 3.0)
    """
    d, tiny = start.shape[-1], torch.finfo(start.dtype).eps
    steps = max(1, min(steps, d))
    q = start / _norm(start)
    keeps = steps * start.numel() * start.element_size() <= KEPT
    basis = q.new_empty(steps if keeps else 0, *q.shape)
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    alive = torch.ones_like(q[..., :1])
    before, last = torch.zeros_like(q), torch.zeros_like(q[..., :1])
    scale = torch.zeros_like(last)
    for k in range(steps):
        w = apply(q) if k or first is None else first
        a = (q * w).sum(-1, keepdim=True)
        # once its space is exhausted, an operator repeats a value inside its spectrum
        diagonal.append(torch.where(alive > 0, a, diagonal[0]) if diagonal else a)
        scale = torch.maximum(scale, _norm(w))
        w = w - a * q - last * before
        if keeps:
            basis[k] = q
            for _ in range(2):  # twice is enough
                w = w - _along(w, basis[: k + 1])
        last = _norm(w)
        alive = alive * (last > 100 * tiny * scale).to(alive.dtype)
        last = last * alive
        beside.append(last)
        before, q = q, alive * w / torch.where(last > 0, last, torch.ones_like(last))
    t = torch.diag_embed(torch.cat(diagonal, -1).to(torch.float64))
    if steps > 1:
        side = torch.diag_embed(torch.cat(beside[:-1], -1).to(torch.float64), 1)
        t = t + side + side.mT
    values, vectors = torch.linalg.eigh(t.cpu())  # small ones are slow on a GPU
    tail = beside[-1].to("cpu", torch.float64) * vectors[..., -1, :].abs()
    found = values[..., 0], values[..., -1], tail[..., 0], tail[..., -1]
    return Spectrum(*(v.to(start) for v in found))


def _along(w: Tensor, earlier: Tensor) -> Tensor:
    """The part of w in the span of orthonormal vectors (k, …, d)."""
    if w.is_cuda:  # matrix products may be in TF32 there
        return ((earlier * w).sum(-1, keepdim=True) * earlier).sum(0)
    rows = earlier.movedim(0, -2)
    return (rows.mT @ (rows @ w[..., None]))[..., 0]


def _norm(v: Tensor) -> Tensor:
    return v.norm(dim=-1, keepdim=True)
