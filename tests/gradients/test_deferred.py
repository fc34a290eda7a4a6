"""Vectors that are computed when they are needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conformance import METHODS
from conftest import uneven
from torch import Tensor

import fairlead as fl
from fairlead.core.records import Upload
from fairlead.engine import simulate
from fairlead.gradients import capture as trace
from fairlead.gradients import cpu_kernels as rewrite
from fairlead.gradients import deferred as lazy
from fairlead.gradients import task_gradients as gradients
from fairlead.gradients.deferred import BLOCK, Product, Vector, settled
from fairlead.gradients.oracle import Form

LENGTH = 2 * BLOCK + 4321
LOOP = fl.Simulate("loop", threads=1)


@pytest.fixture
def pair() -> tuple[Vector, Tensor]:
    """A vector in parts, long and short ones, and as a tensor."""
    torch.manual_seed(0)
    sizes = [BLOCK + 17, 5, 300, BLOCK - 1]
    parts = [torch.randn(n, dtype=torch.float64) for n in [*sizes, LENGTH - sum(sizes)]]
    return Vector.of(parts), torch.cat(parts)


def _others() -> list[Tensor]:
    torch.manual_seed(1)
    return list(torch.randn(3, LENGTH, dtype=torch.float64))


def test_a_step_with_control_variates(pair: tuple[Vector, Tensor]) -> None:
    g, exact = pair
    x, c, c_i = _others()

    def program(g: Any) -> list[Any]:
        y = x - 0.1 * (g - c_i + c)
        kept = c_i - c + (x - y) / torch.full((1,), 0.5, dtype=torch.float64)
        return [y, y - x, kept, kept - c_i, -g, 2 / (1 + g * g), g**2, g @ x, abs(g)]

    late, at_once = program(g), program(exact)
    assert all(isinstance(v, Vector) for v in late[:5])
    for one, two in zip(late, at_once, strict=True):
        torch.testing.assert_close(settled(one), two, rtol=0, atol=1e-13)


def test_operators_of_torch_see_a_tensor(pair: tuple[Vector, Tensor]) -> None:
    g, exact = pair
    assert torch.equal(torch.where(g > 0, g * 2, 0.0), torch.where(exact > 0, exact * 2, 0.0))
    assert torch.equal(g.norm(), exact.norm())
    assert torch.equal((g + 1)[..., 3:7], (exact + 1)[3:7])
    assert g.shape == exact.shape
    assert len(g) == len(exact)
    assert torch.equal(torch.stack([g, g])[1], exact)


def test_what_does_not_fit_is_computed_at_once(pair: tuple[Vector, Tensor]) -> None:
    g, exact = pair
    rows = torch.ones(2, 1, dtype=torch.float64)
    assert torch.equal(rows * g, rows * exact)
    half = torch.ones(LENGTH)
    assert (g * half).dtype == torch.float64


def test_records_are_settled(pair: tuple[Vector, Tensor]) -> None:
    class Sent(Upload):
        dy: Tensor
        n: Tensor

    sent: Any = Sent(dy=pair[0] * 3.0, n=torch.ones(1))
    assert torch.equal(settled(sent).tensors()["dy"], pair[1] * 3.0)
    plain = Sent(dy=pair[1], n=torch.ones(1))
    assert settled(plain) is plain


def test_products_go_into_the_sum() -> None:
    torch.manual_seed(2)
    a, b, c = (torch.randn(*s, dtype=torch.float64) for s in ((30, 7), (7, 50), (41,)))
    x, m = torch.randn(2, 1541, dtype=torch.float64)
    g = torch.cat([(a @ b).reshape(-1), c])

    def part() -> Vector:
        return Vector.of([Product(a, b), c])

    for late, exact in (
        (x - 0.3 * part(), x - 0.3 * g),
        (x - 0.3 * (part() + m), x - 0.3 * (g + m)),
        (part() * 2.0, g * 2),
        (part() - 0.5 * part(), g / 2),
        (x - x + part(), g),
    ):
        torch.testing.assert_close(settled(late), exact, rtol=0, atol=1e-13)


def test_products_that_are_needed_twice_are_computed() -> None:
    told: list[int] = []
    a, b = torch.ones(3, 2), torch.ones(2, 5)
    g = Vector.of([Product(a, b)], lambda: told.append(1))
    x = torch.zeros(15)
    assert settled(x + g).tolist() == [2.0] * 15
    assert not told
    assert settled(x - g).tolist() == [-2.0] * 15
    assert told


def test_a_point_that_somebody_holds_is_not_written_over() -> None:
    g, x = torch.ones(10), torch.zeros(10)
    y: Any = x - Vector.of([g])
    before = settled(y)
    y = y - Vector.of([g])
    settled(y)
    assert before.tolist() == [-1.0] * 10
    z: Any = x - Vector.of([g])
    view = z[2:4]
    z = z - Vector.of([g])
    settled(z)
    assert view.tolist() == [-1.0] * 2
    later: Any = x - Vector.of([g])
    settled(later)
    difference = later - x
    later = later - Vector.of([g])
    settled(later)
    assert settled(difference).tolist() == [-1.0] * 10
    assert x.tolist() == [0.0] * 10


@pytest.mark.parametrize("name", METHODS)
def test_every_method_computes_late(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With gradients in parts and as products, and recorded at once."""
    for module, constant, value in (
        (gradients, "WORTH", 1), (lazy, "SHORT", 4), (trace, "SHORT", 4), (lazy, "BLOCK", 7),
        (lazy, "LARGE", 20), (simulate, "TRACE_SMALL_AFTER", 1),
    ):  # fmt: skip
        monkeypatch.setattr(module, constant, value)
    work: dict[str, Any] = {
        "rounds": 4, "cohort": 3, "batch_size": 4, "steps": [1, 5, 3, 4, 2], "seed": 11,
        "weighting": "size",
    }  # fmt: skip
    task = uneven()
    runs = [fl.train(task, METHODS[name], engine=e, **work) for e in (LOOP, "debug")]
    assert task.recordings > 0
    one, two = (run.state.tensors() for run in runs)
    for key, value in one.items():
        torch.testing.assert_close(value, two[key], rtol=0, atol=1e-10)


def test_a_model_that_multiplies_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a product is made of may be a view of the point, which the update writes over."""

    class Factors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.left = torch.nn.Parameter(torch.randn(200, 90) / 10)
            self.right = torch.nn.Parameter(torch.randn(90, 200) / 10)

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.left @ self.right)

    x = torch.randn(40, 200, dtype=torch.float64)
    task = fl.Task(Factors(), "squared", (x, x.flip(0)), [range(20), range(20, 40)], dtype=x.dtype)
    monkeypatch.setattr(simulate, "TRACE_SMALL_AFTER", 1)
    task.recordable = True  # as a model of torch's own layers is
    work: dict[str, Any] = {"rounds": 3, "steps": 8, "batch_size": 5}
    runs = [fl.train(task, fl.Scaffold(lr=1e-3), engine=e, **work) for e in (LOOP, "debug")]
    assert task.recordings > 0
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("last", [False, True])
def test_gradients_of_many_weights_are_products(
    last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfolded: list[int] = []
    unfold = rewrite._rows_of
    monkeypatch.setattr(rewrite, "_rows_of", lambda *given: unfolded.append(1) or unfold(*given))
    for module, constant, value in (
        (gradients, "WORTH", 1), (trace, "SHORT", 4), (rewrite, "MANY_WEIGHTS", 1),
        (simulate, "TRACE_SMALL_AFTER", 1),
    ):  # fmt: skip
        monkeypatch.setattr(module, constant, value)

    def task() -> fl.Task:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.ReLU(),
            torch.nn.Conv2d(4, 6, (3, 2), stride=2, padding=(1, 0)), torch.nn.ReLU(),
            torch.nn.Conv2d(6, 5, 3, padding=2, dilation=2, bias=False), torch.nn.Flatten(),
            torch.nn.Linear(80, 3),
        )  # fmt: skip
        x, y = torch.randn(30, 2, 8, 8, dtype=torch.float64), torch.arange(30) % 3
        made = fl.Task(model, "cross_entropy", (x, y), [range(15), range(15, 30)], dtype=x.dtype)
        return made.formed(Form(last=last))

    work: dict[str, Any] = {"rounds": 3, "steps": 4, "batch_size": 5}
    recorded, plain = task(), task()
    plain.recordable = False
    runs = [fl.train(t, fl.Scaffold(lr=0.1), engine=LOOP, **work) for t in (recorded, plain)]
    assert len(unfolded) == 6
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", [(2, 2), (8, 6), (28, 28)])
def test_halved_images_are_torchs_pooling(side: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for values in (
        torch.randn(5, 3, *side),
        torch.randint(3, (5, 3, *side)),
        torch.zeros(5, 3, *side),
    ):
        x = values.to(dtype)  # many of them are equal
        y, places = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
        found = rewrite.halved(x)
        assert torch.equal(found[0], y)
        assert torch.equal(found[1], places)


@pytest.mark.parametrize(
    ("pool", "rewritten"),
    [
        (torch.nn.MaxPool2d(2), True), (torch.nn.MaxPool2d(2, 1), False),
        (torch.nn.MaxPool2d(3), False), (torch.nn.MaxPool2d(2, padding=1), False),
    ],
)  # fmt: skip
def test_pooling_is_rewritten_where_it_is_halving(
    pool: torch.nn.Module, rewritten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    halved: list[int] = []
    halve = rewrite.halved
    monkeypatch.setattr(rewrite, "halved", lambda x: halved.append(1) or halve(x))
    monkeypatch.setattr(simulate, "TRACE_SMALL_AFTER", 1)

    def task() -> fl.Task:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), pool, torch.nn.Flatten(),
            torch.nn.LazyLinear(3),
        )  # fmt: skip
        x = torch.randint(4, (30, 1, 6, 6)).double()
        model.double()(x)
        return fl.Task(
            model,
            "cross_entropy",
            (x, torch.arange(30) % 3),
            [range(15), range(15, 30)],
            dtype=x.dtype,
        )

    for engine in (LOOP, fl.Simulate("vmap")):
        recorded, plain = task(), task()
        plain.recordable = False
        work: dict[str, Any] = {"rounds": 3, "steps": 4, "batch_size": 5, "engine": engine}
        runs = [fl.train(t, fl.Scaffold(lr=0.1), **work) for t in (recorded, plain)]
        assert recorded.recordings > 0
        torch.testing.assert_close(runs[0].x, runs[1].x, rtol=0, atol=1e-12)
    assert bool(halved) == rewritten


def test_threads_use_what_the_first_clients_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "TRACE_SMALL_AFTER", 1)
    monkeypatch.setattr(simulate, "TRACE_AFTER", 2)
    task = uneven()
    work: dict[str, Any] = {"rounds": 3, "steps": 4, "batch_size": 1}
    run = fl.train(task, fl.Scaffold(lr=0.1), engine=fl.Simulate("loop", threads=2), **work)
    assert task.recordings == 1
    other = fl.train(uneven(), fl.Scaffold(lr=0.1), engine="debug", **work)
    torch.testing.assert_close(run.x, other.x, rtol=0, atol=1e-10)
