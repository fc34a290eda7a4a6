"""Short copies of a loop's points are made where the points are made: the same numbers, and no copy at a step's start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from conftest import shared
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import fairlead as fl
from fairlead.core.method import Step
from fairlead.engine import compiled_program
from fairlead.gradients import apart, cuda_graph
from fairlead.gradients.copies import Copies
from fairlead.methods.fedavg import FedAvg

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def few_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "LARGE", 3 * 4)


def given() -> list[Tensor]:
    """Two carried points of three clients, something fixed, and the step's number."""
    torch.manual_seed(0)
    return [torch.randn(3, 14), torch.randn(3, 14), torch.randn(3, 14), torch.ones(1)]


def step(y: Tensor, before: Tensor, fixed: Tensor, now: Tensor) -> list[Tensor]:
    """A step with two large parameters and a small one; only copies of what is carried can be made before it."""
    a, b, small = y.split((6, 6, 2), 1)
    grads = [
        a.view(3, 2, 3).bfloat16().flatten(1) ** 2,
        b.bfloat16() * fixed[:, :6].bfloat16(),
        small.bfloat16(),
    ]
    g = torch.cat(grads, 1).to(torch.float32) + (y - before).bfloat16()
    return [y - 0.1 * now * g, y]


def copies_in(module: GraphModule) -> int:
    """Large bfloat16 copies of what is given."""
    return sum(
        n.target is aten._to_copy.default
        and n.kwargs["dtype"] == torch.bfloat16
        and n.meta["tensor_meta"].shape.numel() >= 12
        for n in module.graph.nodes
    )


def test_copies_are_carried() -> None:
    plain, made = make_fx(step)(*given()), make_fx(step)(*given())
    copies = Copies(made, 2)
    assert copies.count == 2
    y, before, fixed, now = given()
    mine = [y, before, *copies.of([y, before])]
    theirs = [y, before]
    for _ in range(3):
        mine = made(*mine[:2], fixed, now, *mine[2:])
        theirs = plain(*theirs, fixed, now)
        assert all(torch.equal(one, two) for one, two in zip(mine, theirs, strict=False))
        assert [t.dtype for t in mine] == [torch.float32] * 2 + [torch.bfloat16] * 2
        assert torch.equal(mine[3], mine[0][:, 6:12].bfloat16())
    assert copies_in(made) == copies_in(plain) == 4  # the same number, two of them after the step
    first = next(n for n in made.graph.nodes if n.target is aten.split_with_sizes.default)
    assert not any(user.target is aten.view.default for n in first.users for user in n.users)


def test_a_step_without_large_copies_stays_as_it_is() -> None:
    def whole(y: Tensor, before: Tensor, fixed: Tensor, now: Tensor) -> list[Tensor]:
        return [y - 0.1 * fixed.bfloat16(), before[:, :2].bfloat16().float().sum() + before]

    made = make_fx(whole)(*given())
    nodes = [n.target for n in made.graph.nodes]
    copies = Copies(made, 2)
    assert copies.count == 0
    assert copies.of(given()[:2]) == []
    assert [n.target for n in made.graph.nodes] == nodes


def test_steps_that_change_numbers_in_place_make_no_copies_ahead() -> None:
    def pruned(y: Tensor, before: Tensor, fixed: Tensor, now: Tensor) -> list[Tensor]:
        z = y.clone()
        z[:, :6].zero_()
        return [y - 0.1 * (z.bfloat16() + fixed), y]

    made = make_fx(pruned)(*given())
    assert Copies(made, 2).count == 0
    assert copies_in(made) == 1


def test_copies_whose_numbers_lie_in_another_order_are_not_carried() -> None:
    def turned(y: Tensor, before: Tensor, fixed: Tensor, now: Tensor) -> list[Tensor]:
        part = y[:, :6].view(3, 2, 3).transpose(1, 2).bfloat16()
        return [y - 0.1 * part.transpose(1, 2).reshape(3, 6).repeat(1, 3)[:, :14], y]

    made = make_fx(turned)(*given())
    assert copies_in(made) == 1
    assert Copies(made, 2).count == 0


@dataclass(frozen=True)
class _Pruned(FedAvg):
    """Gradients at a point without its first numbers, which are set in place."""

    def direction(self, step: Step, y: Tensor, x: Tensor) -> Tensor:
        z = y.clone()
        z[..., :12] = 0
        return step.grad(z)


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        (fl.Scaffold(lr=0.1), 5),
        (fl.Scaffold(lr=0.1), 30),
        (fl.FedAvg(lr=0.05, momentum=0.9), 5),
        (fl.FedGLOMO(lr=0.05), 5),
        (_Pruned(lr=0.1), 5),
    ],
    ids=["scaffold", "scaffold-30", "momentum", "glomo", "pruned"],
)
def test_runs_with_carried_copies_are_the_same(
    method: Any, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    monkeypatch.setattr(cuda_graph, "captures", lambda place: True)
    monkeypatch.setattr(cuda_graph, "record", lambda perform, pool=None: perform() or perform)
    counts: list[int] = []

    class Seen(Copies):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            counts.append(self.count)

    monkeypatch.setattr(compiled_program, "Copies", Seen)
    task = shared("cpu", torch.float32)
    work = {"rounds": 4, "batch_size": 4, "steps": steps, "seed": 3}
    ways = [{"capture": True, "compile": True}, {"capture": True}, {"capture": False}]
    runs = [
        fl.train(task, method, engine=fl.Simulate("vmap", precision="bfloat16", **way), **work)
        for way in ways
    ]
    assert (max(counts) > 0) == (type(method) is not _Pruned)
    assert "not compiled" not in runs[0].engine
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=0, atol=0)
    torch.testing.assert_close(runs[0].x, runs[2].x, rtol=0, atol=1e-6)


def test_several_runs_with_carried_copies_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    monkeypatch.setattr(cuda_graph, "captures", lambda place: True)
    monkeypatch.setattr(cuda_graph, "record", lambda perform, pool=None: perform() or perform)
    task = shared("cpu", torch.float32)
    pairs = [(fl.Scaffold(lr=0.1), 0), (fl.Scaffold(lr=0.05), 1), (fl.Scaffold(lr=0.02), 2)]
    work: dict[str, Any] = {"rounds": 4, "batch_size": 4, "steps": 5, "together": True}
    with_copies, without = (
        fl.train_many(task, pairs, engine=fl.Simulate("vmap", capture=True, precision="bfloat16", compile=way), **work)
        for way in (True, False)
    )  # fmt: skip
    for one, two in zip(with_copies, without, strict=True):
        assert "not compiled" not in one.engine
        torch.testing.assert_close(one.x, two.x, rtol=0, atol=0)
