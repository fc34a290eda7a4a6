"""CUDA graphs: what a function launches on a GPU, captured once and replayed."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch


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
