"""Gradients that stay apart by parameter: the same numbers, from parts that are never joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fairlead.gradients import apart, capture

aten = torch.ops.aten
SIZES = (6, 2, 1, 4, 1)
"""Columns of five parts, of which two are large."""


@pytest.fixture(autouse=True)
def few_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "LARGE", 3 * 4)


def given() -> list[Tensor]:
    torch.manual_seed(0)
    parts = [torch.randn(3, size) for size in SIZES]
    return [torch.randn(14), torch.randn(3, 14), torch.rand(3, 1), torch.rand(3), *parts]


def captured(program: Callable[..., Any]) -> tuple[GraphModule, list[Tensor], list[Tensor]]:
    """A program, what it gives, and what it gives with its gradients kept apart."""
    module = make_fx(program)(*given())
    before = module(*given())
    apart.kept_apart(module)
    return module, before, module(*given())


def joins(module: GraphModule) -> list[int]:
    """How many columns each concatenation makes."""
    found: list[int] = []

    class Look(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            out = super().run_node(n)
            if n.target is aten.cat.default:
                found.append(out.shape[1])
            return out

    Look(module).run(*given())
    return found


def descent(x: Tensor, c: Tensor, lr: Tensor, w: Tensor, *parts: Tensor) -> list[Tensor]:
    """Two steps; the second gradient depends on the parameters after the first."""
    y = x.expand(3, 14)
    for _ in range(2):
        named = y.split(SIZES, -1)
        g = torch.cat([(p * v.tanh()).bfloat16() for p, v in zip(parts, named, strict=True)], 1)
        y = y - lr * (g.to(torch.float32) + c - 0.1 * x)
    return [(w.unsqueeze(0) @ (y - x)).squeeze(0)]


def test_steps_are_done_by_parts() -> None:
    module, before, after = captured(descent)
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-7)
    # neighbours that are small, twice, and the mean over clients: no matrix of all columns is made
    assert sorted(joins(module)) == [3, 3, 14]
    wide = [n for n in module.graph.nodes if n.target is aten.cat.default and len(n.args[0]) == 4]
    assert [user.target for n in wide for user in n.users] == [aten.squeeze.dim]


def test_what_needs_all_columns_gets_them() -> None:
    def program(x: Tensor, c: Tensor, lr: Tensor, w: Tensor, *parts: Tensor) -> list[Tensor]:
        y = x - lr * torch.cat(parts, 1)
        norm = y.norm(dim=1, keepdim=True)
        z = y / norm
        return [z, y, z.flip(1), torch.cat(parts, 1).sum(1)]

    _, before, after = captured(program)
    for mine, theirs in zip(after, before, strict=True):
        assert torch.equal(mine, theirs)


def test_parameters_that_lie_across_parts() -> None:
    def program(x: Tensor, c: Tensor, lr: Tensor, w: Tensor, *parts: Tensor) -> list[Tensor]:
        y = torch.cat(parts, 1) * 2
        first, second, third = y.split((5, 5, 4), -1)
        return [first, second.relu(), third, c.where(y > 0, y)]

    _, before, after = captured(program)
    for mine, theirs in zip(after, before, strict=True):
        assert torch.equal(mine, theirs)


def test_what_is_left_as_it_is() -> None:
    def small(x: Tensor, c: Tensor, lr: Tensor, w: Tensor, *parts: Tensor) -> list[Tensor]:
        return [torch.cat([t[:, :1] for t in parts], 1) * 2]

    def rows(x: Tensor, c: Tensor, lr: Tensor, w: Tensor, *parts: Tensor) -> list[Tensor]:
        return [torch.cat([c, c], 0) * 2]

    def draws(x: Tensor, c: Tensor, lr: Tensor, w: Tensor, *parts: Tensor) -> list[Tensor]:
        return [torch.rand_like(torch.cat(parts, 1)) > 2]

    def in_place(x: Tensor, c: Tensor, lr: Tensor, w: Tensor, *parts: Tensor) -> list[Tensor]:
        y = torch.cat(parts, 1)
        z = y * 2
        y.add_(1)
        return [z, y - x]

    for program in (small, rows, draws, in_place):
        module = make_fx(program)(*given())
        nodes = [n.target for n in module.graph.nodes]
        before = module(*given())
        apart.kept_apart(module)
        assert [n.target for n in module.graph.nodes] == nodes
        for mine, theirs in zip(module(*given()), before, strict=True):
            assert torch.equal(mine, theirs)


def test_programs_are_compiled_with_their_gradients_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    made = capture.compiled(descent, given())
    assert isinstance(made, GraphModule)
    assert sorted(joins(made)) == [3, 3, 14]
    torch.testing.assert_close(made(*given()), descent(*given()), rtol=1e-6, atol=1e-7)
