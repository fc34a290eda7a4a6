"""CUDA graphs: what a function launches on a GPU, captured once and replayed."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

SHAPES = 16
"""How many functions and shapes are kept by `Replays`."""


def captures(device: torch.device) -> bool:
    """Whether rounds on a device can be captured."""
    return device.type == "cuda"


def captured(perform: Callable[[], None], pool: Any = None) -> Callable[[], None]:
    """What `perform` does, as a CUDA graph to replay."""
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    gc.disable()  # graphs of earlier runs that are freed meanwhile would break this one
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            perform()
    finally:
        if collects:
            gc.enable()
    return graph.replay


def pool(device: torch.device) -> Any:
    """Memory that several captures share."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def record(perform: Callable[[], None], pool: Any = None) -> Callable[[], None]:
    """`captured`, after a run that must not wait for the device."""
    with no_waiting():
        perform()
    return captured(perform, pool)


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """Operators that wait for the device raise: they cannot be captured."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class Generator:
    """The state of torch's generator of a device, to put back."""

    def __init__(self, device: torch.device) -> None:
        self._of: Any = torch.cuda if device.type == "cuda" else torch
        self._state = self._of.get_rng_state()

    def restore(self) -> None:
        """Put it back."""
        self._of.set_rng_state(self._state)


class Replays:
    """Functions of tensors that are called again and again: from the second call with arguments of a shape on, on a GPU, a
    graph is replayed. A function that waits for the device is run as it is.

    >>> Replays()("twice", lambda x: 2 * x, torch.ones(2))
    tensor([2., 2.])
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Any, _Replay | None] = OrderedDict()
        self._pool: Any = None
        """The memory of all graphs: each is done with it when the next begins."""

    def __call__(self, name: str, run: Callable[..., Any], *given: Tensor | None) -> Any:
        """run(*given), which depends on nothing else. Functions of one name must do the same."""
        device = next(t.device for t in given if t is not None)
        if not captures(device):
            return run(*given)
        key = (name, *(None if t is None else (t.shape, t.dtype) for t in given))
        if key not in self._known:
            self._pool = self._pool or pool(device)
            self._known[key] = _Replay(run, self._pool)
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


class _Replay:
    """One function of tensors of one shape, and its graph."""

    def __init__(self, run: Callable[..., Any], pool: Any) -> None:
        self.run, self.pool = run, pool
        self.replay: Callable[[], None] | None = None
        self.given: list[Tensor | None] = []
        self.found: Any = None

    def __call__(self, *given: Tensor | None) -> Any:
        if self.replay is None:
            self.given = [None if t is None else _copy(t) for t in given]
            self.replay = record(self._perform, self.pool)
        for into, t in zip(self.given, given, strict=True):
            if into is not None and t is not None:
                into.copy_(t)
        self.replay()
        return tree_map(torch.clone, self.found)

    def _perform(self) -> None:
        self.found = self.run(*self.given)


def _copy(t: Tensor) -> Tensor:
    return t.clone(memory_format=torch.contiguous_format)
