"""Functions of tensors that are captured and replayed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fairlead as fl
from fairlead.gradients import cuda_graph
from fairlead.gradients.form import Form
from fairlead.gradients.oracle import Gradients
from fairlead.gradients.replays import OFTEN, SHAPES, Replays
from fairlead.gradients.second import Local


@pytest.fixture(params=["stand-in", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A GPU, or a CPU on which captures are performed again when they are replayed."""
    if request.param == "cuda":
        return "cuda"
    monkeypatch.setattr(cuda_graph, "captures", lambda device: True)
    monkeypatch.setattr(cuda_graph, "record", lambda perform, pool=None: perform() or perform)
    return "cpu"


def test_a_replay_gives_what_the_function_gives(place: str) -> None:
    replays, calls = Replays(), []

    def run(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        calls.append(len(x))
        return {"sum": x + y, "product": x @ y}

    kept = []
    for k in range(5):
        for size in (3, 4):
            x = torch.full((size, size), float(k), device=place)
            y = torch.arange(size * size, dtype=x.dtype, device=place).view(size, size)
            found = replays("both", run, x, y)
            assert torch.equal(found["sum"], x + y)
            assert torch.equal(found["product"], x @ y)
            kept.append((found["sum"], x + y))
    assert all(torch.equal(a, b) for a, b in kept)  # later replays leave earlier results alone
    if place == "cuda":
        assert calls == [3, 4, 3, 3, 4, 4]  # as it is, once before its capture, and captured


def test_only_a_few_shapes_are_kept(place: str) -> None:
    replays = Replays()
    for size in range(1, 3 * SHAPES):
        for _ in range(3):
            x = torch.ones(size, device=place)
            assert torch.equal(replays("double", lambda x: 2 * x, x), 2 * x)
    assert len(replays._known) == SHAPES


def test_a_function_that_cannot_be_captured_is_run_as_it_is(monkeypatch: Any) -> None:
    def refuse(perform: Any, pool: Any = None) -> Any:
        raise RuntimeError("it waits")

    monkeypatch.setattr(cuda_graph, "captures", lambda device: True)
    monkeypatch.setattr(cuda_graph, "record", refuse)
    replays = Replays()
    for k in range(4):
        assert float(replays("item", lambda x: x * x.sum().item(), torch.tensor(float(k)))) == k * k


@pytest.mark.gpu
def test_a_function_that_waits_on_a_gpu_is_run_as_it_is() -> None:
    replays = Replays()
    for k in range(4):
        x = torch.full((2,), float(k), device="cuda")
        assert replays("item", lambda x: x * x.sum().item(), x).tolist() == [2.0 * k * k] * 2


def test_a_function_that_is_called_often_is_listed_on_a_cpu() -> None:
    replays, calls = Replays(listing=True), []

    def run(x: Tensor, y: Tensor | None) -> dict[str, Tensor]:
        calls.append(1)
        total = x if y is None else x + y
        return {"square": total.square().sum(0, True).view(-1), "same": total}

    for k in range(3 * OFTEN):
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        for other in (y, None):
            found, exact = replays("squares", run, x, other), run(x, other)
            calls.pop()
            assert list(found) == ["square", "same"]
            assert all(torch.equal(found[name], exact[name]) for name in exact), k
    assert len(calls) == 2 * OFTEN  # per shape: as it is, and the last time to list its operators


@pytest.mark.parametrize("what", ["waits", "draws"])
def test_what_waits_or_draws_is_not_listed(what: str) -> None:
    replays = Replays(listing=True)

    def run(x: Tensor) -> Tensor:
        return x * x.sum().item() if what == "waits" else torch.rand_like(x)

    found = [replays(what, run, torch.full((2,), float(k))) for k in range(2 * OFTEN)]
    if what == "waits":
        assert [t[0].item() for t in found] == [2.0 * k * k for k in range(2 * OFTEN)]
    else:
        assert len({t[0].item() for t in found}) == 2 * OFTEN


def test_an_error_of_the_function_itself_is_seen(place: str) -> None:
    replays = Replays()

    def run(x: Tensor) -> Tensor:
        raise RuntimeError("its own")

    for _ in range(3):
        with pytest.raises(RuntimeError, match="its own"):
            replays("fails", run, torch.ones(2, device=place))


def test_arguments_may_be_missing(place: str) -> None:
    replays = Replays()

    def run(x: Tensor, w: Tensor | None) -> Tensor:
        return 2 * x if w is None else x * w

    x = torch.arange(3.0, device=place)
    for k in range(4):
        assert torch.equal(replays("weighted", run, x + k, None), 2 * (x + k))
        assert torch.equal(replays("weighted", run, x, x + k), x * (x + k))


@pytest.mark.parametrize("way", ["vmap", "stacked"])
def test_replayed_gradients_and_products_are_the_same(place: str, way: Any) -> None:
    data = torch.randn(12, 1, 8, 8), torch.arange(12) % 3
    owners = [np.arange(0, 6), np.arange(6, 12)]
    make = fl.models.femnist_cnn(3, "group", side=8)
    task = fl.Task(make, "cross_entropy", data, owners, dtype=torch.float64, device=place)
    oracle = Gradients(task, Form(way=way))
    start, buffers = task.start(0)
    rows = np.array([0, 1])
    for form in (None, Form(way="vmap")):
        replayed = oracle.replayed(form)
        for k in range(4):
            x = start.expand(2, -1) * (1 + 0.1 * k)
            v = torch.randn(2, 2, task.dim, dtype=torch.float64, device=place)
            for at in (x, x[0]):
                exact = oracle.full_stacked(rows, at, buffers, 100)[0]
                found = replayed.full_stacked(rows, at, buffers, 100)[0]
                torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)
            local = Local(oracle, rows, buffers.expand(2, -1), 100)
            plain = Local(Gradients(task), rows, buffers.expand(2, -1), 100)
            exact = plain.products(x, v)
            torch.testing.assert_close(local.products(x, v), exact, rtol=1e-9, atol=1e-9)
