"""Large products on a CPU by oneDNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conformance import METHODS
from torch import Tensor

import fairlead as fl
from fairlead.engine import autotune
from fairlead.gradients import products
from fairlead.gradients.deferred import settled
from fairlead.gradients.form import Form
from fairlead.gradients.oracle import Gradients
from fairlead.gradients.products import LARGE, LayersByOneDNN, multiplied
from fairlead.gradients.segments import Product

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN"
)
BATCH = 40


def matrix(rows: int, columns: int, how: str) -> Tensor:
    """A matrix in some layout."""
    if how == "turned":
        return torch.randn(columns, rows).t()
    if how == "cut":
        return torch.randn(rows + 3, columns + 5)[2:-1, 1:-4]
    return torch.randn(rows, columns)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The sizes of the products that oneDNN computes."""
    found: list[tuple[int, ...]] = []
    linear = products.LINEAR

    def noted(a: Tensor, w: Tensor, *rest: object) -> Tensor:
        found.append((a.shape[0], a.shape[1], w.shape[0]))
        return linear(a, w, *rest)

    monkeypatch.setattr(products, "LINEAR", noted)
    return found


def task() -> fl.Task:
    """Two layers whose products are large, and one whose products are not."""
    torch.manual_seed(0)
    x, y = torch.randn(6 * BATCH, 200), torch.arange(6 * BATCH) % 5
    split = [range(k, k + 2 * BATCH) for k in range(0, len(y), 2 * BATCH)]
    return fl.Task(fl.models.mlp(200, 180, 160, 5), "cross_entropy", (x, y), split)


def run(rounds: int = 4, method: fl.Algorithm | None = None, **more: Any) -> fl.Run:
    method = method or fl.Scaffold(lr=0.05)
    return fl.train(
        task(), method, rounds=rounds, steps=3, batch_size=BATCH, engine="loop", workers=1, **more
    )


@pytest.mark.parametrize("one", ["plain", "turned", "cut"])
@pytest.mark.parametrize("two", ["plain", "turned", "cut"])
def test_products_of_matrices_in_any_layout(one: str, two: str, calls: list[object]) -> None:
    torch.manual_seed(0)
    for m, k, n in ((128, 96, 120), (3, 4, 5)):
        a, b = matrix(m, k, one), matrix(k, n, two)
        exact = a.double() @ b.double()
        torch.testing.assert_close(multiplied(a, b).double(), exact, rtol=0, atol=1e-4)
    assert calls == [(128, 96, 120)]


@pytest.mark.parametrize("onednn", [False, True])
def test_a_product_is_added_to_a_vector(onednn: bool, calls: list[object]) -> None:
    torch.manual_seed(0)
    a, b, y = torch.randn(96, 128).t(), torch.randn(96, 120), torch.randn(128 * 120)
    exact, product = (a.double() @ b.double()).reshape(-1), Product(a, b, onednn)
    for to in (None, y, "itself"):
        out = y.clone()
        product.add_to(out, -0.5, out if isinstance(to, str) else to)
        wanted = -0.5 * exact + (0 if to is None else y.double())
        torch.testing.assert_close(out.double(), wanted, rtol=0, atol=1e-4)
    torch.testing.assert_close(product.tensor.double(), exact, rtol=0, atol=1e-4)
    assert len(calls) == 4 * onednn


@pytest.mark.parametrize("late", ["", "sums", "products"])
def test_gradients_are_those_of_plain_autograd(late: Any, calls: list[tuple[int, ...]]) -> None:
    one = task()
    block = tuple(t[0] for t in one.samples(torch.tensor([1]), torch.arange(BATCH)[None]))
    form = Form(deferred=late, capture=(BATCH,), kernels=True, onednn=True)
    start, none = one.start(0)
    found = settled(Gradients(one, form).single(start, block, none)[0])
    exact = Gradients(one).plain(start, block, none)[0]
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-6)
    # forward and weights' gradients of two layers, and the gradient between them
    assert sorted(calls) == sorted(
        [(40, 200, 180), (40, 180, 160), (40, 160, 180), (180, 40, 200), (160, 40, 180)]
    )
    assert all(m * k * n >= LARGE for m, k, n in calls)


def test_runs_are_the_same_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for fast in (False, True):
        monkeypatch.setattr(autotune, "onednn_is_faster", lambda fast=fast: fast)
        runs.append(run())
    assert ["oneDNN" in done.engine for done in runs] == [False, True]
    assert not torch.equal(runs[0].x, runs[1].x)
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=1e-4, atol=1e-6)


def test_a_resumed_run_multiplies_as_it_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "onednn_is_faster", lambda: True)
    whole = run()
    run(2, checkpoints=fl.Checkpoints(tmp_path, every=1))
    monkeypatch.setattr(autotune, "onednn_is_faster", lambda: False)
    rest = run(resume=tmp_path)
    assert torch.equal(rest.x, whole.x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_large_float32_problems_ask(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, calls: list[object]
) -> None:
    """oneDNN has no products in float64, and a small problem is not worth the question."""
    asked: list[int] = []
    monkeypatch.setattr(autotune, "onednn_is_faster", lambda: bool(asked.append(1)) or True)
    x, y = torch.randn(60, 200, dtype=dtype), torch.arange(60) % 5
    small = fl.models.mlp(200, 20, 5) if dtype == torch.float32 else fl.models.mlp(200, 300, 5)
    one = fl.Task(small, "cross_entropy", (x, y), [range(30), range(30, 60)], dtype=dtype)
    fl.train(one, fl.FedAvg(lr=0.1), rounds=2, steps=2, batch_size=30, engine="loop", workers=1)
    assert not asked
    assert not calls


def test_evaluations_are_the_same_up_to_rounding(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[int, ...]]
) -> None:
    monkeypatch.setattr(autotune, "onednn_is_faster", lambda: True)
    done = run(1)
    calls.clear()
    found = done.session.evaluate(done.x, "uniform", True)
    assert {(m, k) for m, k, _ in calls} == {(240, 200), (240, 180)}  # the last layer is small
    exact = done.task.evaluate(done.x)
    assert found["loss"] == pytest.approx(exact["loss"], rel=1e-5)


def test_layers_that_need_gradients_are_left_alone(calls: list[object]) -> None:
    layer, x = torch.nn.Linear(512, 64), torch.randn(2, 40, 512)
    with LayersByOneDNN():
        layer(x).sum().backward()
        assert not calls
        with torch.no_grad():
            found = layer(x)
            layer.double()(x.double())
    assert len(calls) == 1
    torch.testing.assert_close(found.double(), layer(x.double()), rtol=0, atol=1e-5)
    assert layer.weight.grad is not None


@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize(
    "name", ["scaffold", "scaffold-1", "fedpvr", "fedglomo", "mime", "fedcomgate-exact", "scaffold-m"]
)  # fmt: skip
def test_methods_on_uneven_clients_are_those_of_the_debug_engine(
    name: str, mode: Any, monkeypatch: pytest.MonkeyPatch, calls: list[object]
) -> None:
    monkeypatch.setattr(autotune, "onednn_is_faster", lambda: True)
    torch.manual_seed(0)
    x, y = torch.randn(310, 200), torch.arange(310) % 5
    split = [range(90), range(90, 130), range(130, 250), range(250, 310)]
    one = fl.Task(fl.models.mlp(200, 180, 160, 5), "cross_entropy", (x, y), split, l2=1e-3)
    work: dict[str, Any] = {"rounds": 3, "cohort": 3, "epochs": 2, "batch_size": 40, "dropout": 0.2}
    runs = [
        fl.train(one, METHODS[name], engine=engine, workers=1, **work) for engine in (mode, "debug")
    ]
    assert "oneDNN" in runs[0].engine
    assert "oneDNN" not in runs[1].engine
    assert calls
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=1e-3, atol=1e-5)
