"""Min-max problems: min over x, max over y of f(x, y), with z = (x, y) one vector.

A saddle task hands methods the gradient mapping G(z) = (∇x f, −∇y f) in place of the gradient, so that
FedAvg on it is FedAvg-S, and every method written for gradients runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from fairlead.data.splits import Split
from fairlead.errors import FairleadError
from fairlead.losses import value
from fairlead.task import Task


class _Players(nn.Module):
    """Two models, and what they play for: a value a sample."""

    def __init__(self, x: nn.Module, y: nn.Module, play: Callable[..., Tensor]) -> None:
        super().__init__()
        self.x, self.y, self.play = x, y, play

    def forward(self, *batch: Tensor) -> Tensor:
        return self.play(self.x, self.y, *batch)


class SaddleTask(Task):
    """A min-max problem over clients.

    x, y: modules, or functions that make them; the first minimizes, the second maximizes.
    play: a function (x, y, *samples) → one value of f a sample.
    optimum: the saddle point z* = (x*, y*), if it is known; then runs record the distance to it and the
    duality gap f(x, y*) − f(x*, y).

    >>> game = lambda x, y, b: (x.weight * y.weight).sum() + b.sum(1)
    >>> line = lambda: nn.Linear(2, 1, bias=False)
    >>> task = SaddleTask(line, line, game, [torch.zeros(4, 1)], [range(2), range(2, 4)])
    >>> task.dim, task.players
    (4, (slice(0, 2, None), slice(2, 4, None)))
    """

    def __init__(
        self,
        x: nn.Module | Callable[[], nn.Module],
        y: nn.Module | Callable[[], nn.Module],
        play: Callable[..., Tensor],
        data: Sequence[Tensor],
        clients: Split | Sequence[ArrayLike],
        **settings: Any,
    ) -> None:
        def pair() -> nn.Module:
            return _Players(_module(x), _module(y), play)

        fixed = isinstance(x, nn.Module) and isinstance(y, nn.Module)
        super().__init__(pair() if fixed else pair, value, data, clients, **settings)

    @classmethod
    def of(
        cls,
        f: Callable[..., Tensor],
        data: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        clients: Split | Sequence[ArrayLike] | None = None,
        **settings: Any,
    ) -> SaddleTask:
        """From f(x, y, *sample) → a number, with one sample a client unless `clients` says otherwise.

        >>> one = torch.ones(1, dtype=torch.float64)
        >>> task = SaddleTask.of(lambda x, y, a: (a * x * y).sum(), [torch.ones(2, 1)], one, one)
        >>> task.mapping(torch.tensor([2.0, 3.0], dtype=torch.float64))
        tensor([ 3., -2.], dtype=torch.float64)
        """
        owners = [[i] for i in range(len(data[0]))] if clients is None else clients
        settings.setdefault("dtype", x.dtype)

        def play(x: _Vector, y: _Vector, *batch: Tensor) -> Tensor:
            dims = (None, None, *(0 for _ in batch))
            return torch.func.vmap(f, in_dims=dims)(x.v, y.v, *batch)

        return cls(_Vector(x), _Vector(y), play, data, owners, **settings)

    def _place(self, model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        self.inputs = len(self.data)
        super()._place(model, dtype, device)
        sizes = [int(n.startswith("x.")) * s for n, s in zip(self._names, self._sizes, strict=True)]
        first = sum(sizes)
        if not 0 < first < self.dim:
            raise FairleadError("a saddle task needs parameters to train on both sides")
        self.players = slice(0, first), slice(first, self.dim)
        self.flip = torch.ones(self.dim, dtype=dtype, device=device)
        self.flip[first:] = -1
        self._traceable = self._pure_loss  # `record` says so of what the players play for

    def mapping(self, z: Tensor, weighting: str | Sequence[float] = "uniform") -> Tensor:
        """G(z) of the whole objective."""
        z = z.detach().requires_grad_()
        with torch.enable_grad():
            (g,) = torch.autograd.grad(self.objective(z, weighting), z)
        return g * self.flip if self.flip is not None else g

    def evaluate(
        self,
        x: Tensor,
        buffers: Tensor | None = None,
        weighting: str | Sequence[float] = "uniform",
        objective: bool = True,
    ) -> dict[str, float]:
        found = super().evaluate(x, buffers, weighting, objective)
        if objective:
            found["residual_norm"] = float(self.mapping(x, weighting).norm())
        if self.optimum is not None and "gap" in found:
            ours, best = x.clone(), self.optimum.clone()
            ours[self.players[1]], best[self.players[1]] = best[self.players[1]], x[self.players[1]]
            with torch.no_grad():  # ours is (x, y*), best is (x*, y)
                gap = self.objective(ours, weighting) - self.objective(best, weighting)
            found["gap"] = float(gap)
        return found


def _module(given: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    return given if isinstance(given, nn.Module) else given()


class _Vector(nn.Module):
    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.v = nn.Parameter(start.clone())
