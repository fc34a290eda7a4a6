"""Functions of tensors that are called again and again, captured once per shape and replayed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fairlead.gradients import cuda_graph
from fairlead.gradients.capture import listed

SHAPES = 16
"""How many functions and shapes are kept."""
OFTEN = 24
"""Calls from which listing a function's operators pays on a CPU: that takes as long as about fifty calls."""


class Replays:
    """On a GPU a graph is replayed from the second call with arguments of a shape on; on a CPU, for functions that depend on
    nothing but their arguments' values, a list of operators from call `OFTEN` on. What waits for values is run as it is.

    listing: whether functions are listed on a CPU.

    >>> Replays()("twice", lambda x: 2 * x, torch.ones(2))
    tensor([2., 2.])
    """

    def __init__(self, listing: bool = False) -> None:
        self.listing = listing
        self._known: OrderedDict[Any, _Graph | _List | None] = OrderedDict()
        self._pool: Any = None
        """The memory of all graphs: each is done with it when the next begins."""

    def __call__(self, name: str, run: Callable[..., Any], *given: Tensor | None) -> Any:
        """run(*given), which depends on nothing else. Functions of one name must do the same."""
        device = next(t.device for t in given if t is not None)
        graphs = cuda_graph.captures(device)
        if not graphs and not self.listing:
            return run(*given)
        key = (name, *(None if t is None else (t.shape, t.dtype) for t in given))
        if key not in self._known:
            self._pool = self._pool or cuda_graph.pool(device)
            self._known[key] = _Graph(run, self._pool) if graphs else _List(run)
            if len(self._known) > SHAPES:
                self._known.popitem(last=False)
            return run(*given)
        self._known.move_to_end(key)
        replay = self._known[key]
        try:
            return run(*given) if replay is None else replay(*given)
        except RuntimeError:
            if replay is None or replay.replay is not None:
                raise
            self._known[key] = None  # it waits for values
            return run(*given)


class _Graph:
    """One function of tensors of one shape, and its CUDA graph."""

    def __init__(self, run: Callable[..., Any], pool: Any) -> None:
        self.run, self.pool = run, pool
        self.replay: Callable[[], None] | None = None
        self.given: list[Tensor | None] = []
        self.found: Any = None

    def __call__(self, *given: Tensor | None) -> Any:
        if self.replay is None:
            self.given = [None if t is None else _copy(t) for t in given]
            self.replay = cuda_graph.record(self._perform, self.pool)
        for into, t in zip(self.given, given, strict=True):
            if into is not None and t is not None:
                into.copy_(t)
        self.replay()
        return tree_map(torch.clone, self.found)

    def _perform(self) -> None:
        self.found = self.run(*self.given)


class _List:
    """One function of tensors of one shape, and the list of its operators."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run, self.calls = run, 1
        self.replay: Callable[..., Any] | None = None

    def __call__(self, *given: Tensor | None) -> Any:
        self.calls += 1
        if self.replay is None and self.calls < OFTEN:
            return self.run(*given)
        if self.replay is None:
            self.replay = listed(self.run, given)
        return self.replay(*given)


def _copy(t: Tensor) -> Tensor:
    return t.clone(memory_format=torch.contiguous_format)
