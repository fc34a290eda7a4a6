"""Losses are exact, also where torch's own are approximations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fairlead.task.losses import logistic

MARGINS = torch.tensor(
    [-700, -60, -41, -40, -39, -37, -30, -21, -20, -1, 0, 1, 21, 60, 700], dtype=torch.float64
)


def _gradient(margin: Tensor) -> Tensor:
    return torch.func.grad(lambda m: logistic(m, torch.ones_like(m)).sum())(margin)


def test_logistic_is_exact_in_float64() -> None:
    """Also between the margins −20 and −40, where softplus would be linear by default."""
    value = logistic(MARGINS, torch.ones_like(MARGINS))
    expected = torch.logaddexp(torch.zeros_like(MARGINS), -MARGINS)
    torch.testing.assert_close(value, expected, rtol=1e-15, atol=0)
    torch.testing.assert_close(_gradient(MARGINS), -torch.sigmoid(-MARGINS), rtol=1e-15, atol=0)
    softplus = torch.autograd.functional.jacobian(
        lambda m: torch.nn.functional.softplus(-m), torch.tensor(-21.0, dtype=torch.float64)
    )
    assert abs(softplus + torch.sigmoid(torch.tensor(21.0, dtype=torch.float64))) > 7e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logistic_under_vmap_and_traced(dtype: torch.dtype) -> None:
    margins = MARGINS.to(dtype).reshape(5, 3)
    torch.testing.assert_close(torch.vmap(_gradient)(margins), _gradient(margins), rtol=0, atol=0)
    traced = make_fx(torch.vmap(_gradient))(margins)
    torch.testing.assert_close(traced(margins), _gradient(margins), rtol=0, atol=0)
    assert torch.isfinite(_gradient(margins)).all()
