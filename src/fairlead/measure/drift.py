"""Drift diversity, definition 1 of Li et al. 2023 (FedPVR): ξ = Σ‖m_i‖² / ‖Σ m_i‖² with m_i = y_i − x.

With S clients it is 1/S where all go the same way and 1 where their ways are at right angles; the more
they pull apart, the larger it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


class Walks:
    """Sums over the clients of a round, for the whole model and every layer.

    >>> walks = Walks({"a": slice(0, 1), "b": slice(1, 3)})
    >>> walks.add(torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]), 2)
    >>> walks.diversity()
    {'drift': 0.6666666865348816, 'drift/a': 0.5, 'drift/b': 1.0}
    """

    def __init__(self, layers: Mapping[str, slice]) -> None:
        self.layers = dict(layers)
        self._layer: Tensor | None = None
        self._sums: tuple[Tensor, Tensor] | None = None

    def add(self, m: Tensor | None, clients: int) -> None:
        """The ways of some clients, (S, d) or (d,) for one of them; None where they are not told."""
        if m is None:
            return
        rows = m.expand(clients, -1) if m.dim() == 1 else m
        new = (rows * rows).sum(0), rows.sum(0)
        old = self._sums
        self._sums = new if old is None else (old[0] + new[0], old[1] + new[1])

    def reduce(self, d: int, total: Callable[[Tensor], Tensor], like: Tensor) -> None:
        """Sum over processes; those without clients add nothing."""
        squares, ways = self._sums or (like.new_zeros(d), like.new_zeros(d))
        both = total(torch.cat([squares, ways]))
        self._sums = both[:d], both[d:]

    @property
    def told(self) -> bool:
        """Whether something was added since the last call of `diversity`."""
        return self._sums is not None

    def diversity(self) -> dict[str, float]:
        """ξ of the model and by layer, of what was added since the last call."""
        if self._sums is None:
            return {}
        squares, total = self._sums
        self._sums = None
        if self._layer is None:
            sizes = [part.stop - part.start for part in self.layers.values()]
            self._layer = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
            self._layer = self._layer.to(total.device)
        both = torch.stack([squares, total * total])
        by_layer = both.new_zeros(2, len(self.layers)).index_add_(1, self._layer, both)
        top, bottom = torch.cat([by_layer.sum(1, keepdim=True), by_layer], 1)
        names = ["drift", *(f"drift/{name}" for name in self.layers)]
        return dict(zip(names, (top / bottom).tolist(), strict=True))
