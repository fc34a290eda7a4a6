"""Freed blocks are reused by the next step, however large the model."""

from __future__ import annotations

import ctypes
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
INPUTS = REUSED // 7  # two outputs: a model of a few more bytes than are kept without further ado


class Counts(ctypes.Structure):
    """What the C library says of its heap."""

    names = ("arena", "free", "small", "mapped", "bytes", "most", "fast", "used", "left", "top")
    _fields_ = [(name, ctypes.c_size_t) for name in names]


def _mapped() -> int:
    """The blocks that it has mapped."""
    library = ctypes.CDLL("libc.so.6")
    library.mallinfo2.restype = Counts
    return library.mallinfo2().mapped


def test_large_blocks_are_kept_until_the_end_of_a_run() -> None:
    heap, before = Heap(), _mapped()
    heap.keep(2 * REUSED)
    assert not heap.maps
    block = torch.empty(2 * REUSED, dtype=torch.uint8)
    assert _mapped() == before
    heap.close()
    assert heap.maps
    larger = torch.empty(1 << 32, dtype=torch.uint8)  # takes memory when it is written
    assert _mapped() == before + 1
    del block, larger


def test_blocks_are_mapped_where_no_vector_is_large() -> None:
    heap, before = Heap(), _mapped()
    heap.keep(REUSED)
    assert heap.maps
    larger = torch.empty(1 << 32, dtype=torch.uint8)
    assert _mapped() == before + 1
    del larger
    heap.close()
    assert _mapped() == before


def test_a_run_of_a_large_model_maps_no_block_and_gives_them_back() -> None:
    data, split = (torch.randn(2, INPUTS), torch.tensor([0, 1])), [np.array([0]), np.array([1])]
    task = fl.Task(torch.nn.Linear(INPUTS, 2), "cross_entropy", data, split, dtype=torch.float32)
    assert task.dim * 4 > REUSED
    seen: list[int] = []

    class Watch(fl.Callback):
        def round(self, view: Any) -> None:
            seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

    settings = {"rounds": 4, "steps": 2, "objective": False, "workers": 1}
    run = fl.train(task, fl.Scaffold(0.1), callbacks=[Watch()], progress=False, **settings)
    assert np.isfinite(run.x.numpy()).all()
    vector = task.dim * 4 // resource.getpagesize()
    assert seen[-1] - seen[-2] < 4 * vector  # it makes some forty such vectors
    assert run.session.heap.maps


def test_a_run_that_cannot_begin_leaves_everything_as_it_was() -> None:
    class Looks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(INPUTS, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            return y if bool((y > 0).any()) else -y

    data, split = (torch.randn(2, INPUTS), torch.tensor([0, 1])), [np.array([0]), np.array([1])]
    task = fl.Task(Looks(), "cross_entropy", data, split, dtype=torch.float32)
    before, switch = _mapped(), torch.backends.cuda.matmul.allow_tf32
    runs = [(fl.FedAvg(0.1), seed) for seed in (0, 1)]
    with pytest.raises(fl.FairleadError, match="vmap cannot run the model"):
        fl.train_many(task, runs, rounds=1, steps=1, engine="vmap", progress=False)
    larger = torch.empty(1 << 32, dtype=torch.uint8)
    assert _mapped() == before + 1
    assert torch.backends.cuda.matmul.allow_tf32 == switch
    del larger
