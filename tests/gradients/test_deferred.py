"""Vectors that are computed when they are needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conformance import METHODS, ROWS
from conftest import uneven
from torch import Tensor

import fairlead as fl
from fairlead.core.records import Upload
from fairlead.engine import autotune
from fairlead.gradients import capture, cpu_kernels, oracle, segments
from fairlead.gradients.deferred import Space, Vector, settled
from fairlead.gradients.form import Form
from fairlead.gradients.segments import BLOCK, Product

LENGTH = 2 * BLOCK + 4321
LOOP = fl.Simulate("loop")


@pytest.fixture
def pair() -> tuple[Vector, Tensor]:
    """A vector in parts, long and short ones, and as a tensor."""
    torch.manual_seed(0)
    sizes = [BLOCK + 17, 5, 300, BLOCK - 1]
    parts = [torch.randn(n, dtype=torch.float64) for n in [*sizes, LENGTH - sum(sizes)]]
    space = Space([len(part) for part in parts], torch.float64)
    return space.vector(parts), torch.cat(parts)


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

    space = Space([1500, 41], torch.float64)

    def part() -> Vector:
        return space.vector([Product(a, b), c])

    for late, exact in (
        (x - 0.3 * part(), x - 0.3 * g),
        (x - 0.3 * (part() + m), x - 0.3 * (g + m)),
        (part() * 2.0, g * 2),
        (part() - 0.5 * part(), g / 2),
        (x - x + part(), g),
    ):
        torch.testing.assert_close(settled(late), exact, rtol=0, atol=1e-13)


def test_products_that_are_needed_twice_are_computed() -> None:
    space = Space([15], torch.float32)
    g = space.vector([Product(torch.ones(3, 2), torch.ones(2, 5))])
    x = torch.zeros(15)
    assert settled(x + g).tolist() == [2.0] * 15
    assert not space.products_reused
    assert settled(x - g).tolist() == [-2.0] * 15
    assert space.products_reused


def test_memory_is_reused_where_nothing_else_can_see_it() -> None:
    space, x = Space([10], torch.float32), torch.zeros(10)
    y: Any = x - space.vector([torch.ones(10)])
    first = y.point().data_ptr()
    assert first != x.data_ptr()
    y = y - space.vector([torch.ones(10)])
    assert y.point().data_ptr() == first
    assert y.point().tolist() == [-2.0] * 10


def test_a_point_that_is_held_is_not_overwritten() -> None:
    g, x, space = torch.ones(10), torch.zeros(10), Space([10], torch.float32)
    y: Any = x - space.vector([g])
    before = settled(y)  # as a tensor
    y = y - space.vector([g])
    settled(y)
    assert before.tolist() == [-1.0] * 10
    z: Any = x - space.vector([g])
    view = z[2:4]  # as a view
    z = z - space.vector([g])
    settled(z)
    assert view.tolist() == [-1.0] * 2
    later: Any = x - space.vector([g])
    later.point()
    difference = later - x  # by another pending sum
    later = later - space.vector([g])
    later.point()
    assert settled(difference).tolist() == [-1.0] * 10
    old: Any = x - space.vector([g])
    old.point()
    new = old - space.vector([g])  # by its own handle
    assert settled(new).tolist() == [-2.0] * 10
    assert settled(old).tolist() == [-1.0] * 10
    assert x.tolist() == [0.0] * 10


def test_a_shared_sum_is_computed_once_and_right() -> None:
    space, x = Space([4], torch.float64), torch.arange(4.0, dtype=torch.float64)
    g = space.vector([torch.ones(4, dtype=torch.float64)])
    buffer: Any = 0.5 * g + x
    y = x - 0.1 * buffer
    again = 0.9 * buffer + g
    exact = 0.5 + x
    assert torch.allclose(settled(y), x - 0.1 * exact)
    assert torch.allclose(settled(again), 0.9 * exact + 1)
    assert torch.allclose(settled(buffer), exact)


@pytest.fixture
def small_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is for large vectors is used for small ones."""
    for module, constant, value in (
        (autotune, "LEAST_DIM", 1), (autotune, "is_small", lambda *_: False),
        (segments, "SHORT", 4), (capture, "SHORT", 4), (segments, "BLOCK", 7),
        (segments, "PRODUCT_BLOCK", 20),
    ):  # fmt: skip
        monkeypatch.setattr(module, constant, value)


@pytest.mark.usefixtures("small_vectors")
@pytest.mark.parametrize("name", ROWS)
def test_every_method_defers(name: str) -> None:
    """With captured gradients in segments and as products."""
    work: dict[str, Any] = {
        "rounds": 4, "cohort": 3, "batch_size": 4, "steps": [1, 5, 3, 4, 2], "seed": 11,
        "weighting": "size",
    }  # fmt: skip
    task = uneven()
    runs = [fl.train(task, METHODS[name], engine=e, **work) for e in (LOOP, "debug")]
    assert runs[0].session.gradients.captured > 0
    assert runs[0].session.gradients.form.deferred
    one, two = (run.state.tensors() for run in runs)
    for key, value in one.items():
        torch.testing.assert_close(value, two[key], rtol=0, atol=1e-10)


@pytest.mark.usefixtures("small_vectors")
def test_a_model_that_multiplies_its_parameters() -> None:
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
    task.__dict__["capturable"] = True  # as a model of torch's own layers is
    work: dict[str, Any] = {"rounds": 3, "steps": 8, "batch_size": 5}
    runs = [fl.train(task, fl.Scaffold(lr=1e-3), engine=e, **work) for e in (LOOP, "debug")]
    assert runs[0].session.gradients.captured > 0
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("small_vectors")
@pytest.mark.parametrize("last", [False, True])
def test_gradients_of_many_weights_are_products(
    last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfolded: list[int] = []
    unfold = cpu_kernels._rows_of
    noted = lambda *given: unfolded.append(1) or unfold(*given)  # noqa: E731
    monkeypatch.setattr(cpu_kernels, "_rows_of", noted)
    monkeypatch.setattr(cpu_kernels, "MANY_WEIGHTS", 1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(4, 6, (3, 2), stride=2, padding=(1, 0)), torch.nn.ReLU(),
        torch.nn.Conv2d(6, 5, 3, padding=2, dilation=2, bias=False), torch.nn.Flatten(),
        torch.nn.Linear(80, 3),
    )  # fmt: skip
    x, y = torch.randn(30, 2, 8, 8, dtype=torch.float64), torch.arange(30) % 3
    task = fl.Task(model, "cross_entropy", (x, y), [range(15), range(15, 30)], dtype=x.dtype)
    form = Form(deferred="products", capture=(5,), kernels=True)
    block = tuple(t[0] for t in task.samples(torch.tensor([1]), torch.arange(5)[None]))
    if last:  # the kernels take images in either layout
        block = (block[0].to(memory_format=torch.channels_last), *block[1:])
    start, none = task.start(0)
    found = settled(oracle.Gradients(task, form).single(start, block, none)[0])
    assert len(unfolded) == 6
    exact = oracle.Gradients(task).plain(start, block, none)[0]
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)


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
        found = cpu_kernels.halved(x)
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
    halve = cpu_kernels.halved
    monkeypatch.setattr(cpu_kernels, "halved", lambda x: halved.append(1) or halve(x))
    monkeypatch.setattr(autotune, "is_small", lambda *_: False)

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
        captured, plain = task(), task()
        plain.__dict__["capturable"] = False
        work: dict[str, Any] = {"rounds": 3, "steps": 4, "batch_size": 5, "engine": engine}
        runs = [fl.train(t, fl.Scaffold(lr=0.1), **work) for t in (captured, plain)]
        assert runs[0].session.gradients.captured > 0
        torch.testing.assert_close(runs[0].x, runs[1].x, rtol=0, atol=1e-12)
    assert bool(halved) == rewritten
