"""Freed blocks are reused by the next step, however large the model."""

from __future__ import annotations

import resource
import sys
from typing import Any

import numpy as np
import pytest
import torch

import fairlead as fl
from fairlead.engine.heap import REUSED, Heap, _library

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or _library() is None, reason="needs the GNU C library"
)
INPUTS = (
    3 * REUSED // 16
)  # two outputs: a model of half as many bytes again as are kept without further ado


def _faults(size: int) -> int:
    """Page faults of allocating and filling a block eight times, once the heap has settled."""
    before = 0
    for turn in range(24):
        if turn == 16:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(size, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_large_blocks_are_kept_until_the_end_of_a_run() -> None:
    size = 2 * REUSED
    pages = size // resource.getpagesize()
    heap = Heap()
    heap.keep(size)
    assert not heap.maps
    assert _faults(size) < pages
    heap.close()
    assert heap.maps
    assert _faults(size) > 4 * pages


def test_blocks_are_mapped_where_no_vector_is_large() -> None:
    heap = Heap()
    heap.keep(REUSED)
    assert heap.maps
    assert _faults(REUSED // 2) < REUSED // 2 // resource.getpagesize()


def test_a_run_of_a_large_model_maps_no_block_and_gives_them_back() -> None:
    data = torch.randn(4, INPUTS), torch.tensor([0, 1, 1, 0])
    split = [np.array([0, 1]), np.array([2, 3])]
    task = fl.Task(torch.nn.Linear(INPUTS, 2), "cross_entropy", data, split, dtype=torch.float32)
    assert task.dim * 4 > REUSED
    seen: list[int] = []

    class Watch(fl.Callback):
        def round(self, view: Any) -> None:
            seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

    settings = {"rounds": 4, "steps": 2, "batch_size": 2, "objective": False, "workers": 1}
    run = fl.train(task, fl.Scaffold(0.1), callbacks=[Watch()], progress=False, **settings)
    assert np.isfinite(run.x.numpy()).all()
    vector = task.dim * 4 // resource.getpagesize()
    assert seen[-1] - seen[-2] < 4 * vector  # it makes some forty such vectors
    assert run.session.heap.maps
