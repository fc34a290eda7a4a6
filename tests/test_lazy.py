"""Vectors that are computed when they are needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fairlead.algorithm import Upload
from fairlead.lazy import BLOCK, Vector, settled

LENGTH = 2 * BLOCK + 4321


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
