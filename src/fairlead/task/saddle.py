"""Min-max problems: min over x, max over y of f(x, y), with z = (x, y) one vector.

A saddle task gives methods the gradient mapping G(z) = (∇x f, −∇y f) instead of the gradient, so
every method written for gradients runs on it; FedAvg is then FedAvg-S.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fairlead.core.domain import Simplex
from fairlead.data.splits import Split
from fairlead.errors import FairleadError
from fairlead.task.arrangement import Arrangement
from fairlead.task.evaluation import Spread, held_out, held_out_names, turned
from fairlead.task.losses import value
from fairlead.task.task import Task


class _Players(nn.Module):
    """Two models and their objective, one value per sample."""

    def __init__(self, x: nn.Module, y: nn.Module, play: Callable[..., Tensor]) -> None:
        super().__init__()
        self.x, self.y, self.play = x, y, play

    def forward(self, *batch: Tensor) -> Tensor:
        return self.play(self.x, self.y, *batch)


class SaddleTask(Task):
    """A min-max problem over clients.

    x, y: modules, or functions that build them; the first minimizes, the second maximizes.
    play: a function (x, y, *samples) → one value of f per sample.
    optimum: the saddle point z* = (x*, y*), if known (see `fairlead.task.solve.saddle_point`); runs then
        record the distance to it, also per player, and the duality gap f(x, y*) − f(x*, y).
    judge: a task with only the first player's model; runs record its metrics on test and validation data.
    simplex: whether y is constrained to the probability simplex, as mirror descent and mirror-prox support.
    weighting: the client weights the problem was built for; any others are then refused.

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
        *,
        judge: Task | None = None,
        simplex: bool = False,
        weighting: str | Sequence[float] | None = None,
        **settings: Any,
    ) -> None:
        self.judge, self.simplex, self.weighting = judge, simplex, weighting
        if settings.get("valid") is not None:
            raise FairleadError(
                "a saddle task has no validation data of its own: give valid to its judge"
            )
        self.players: tuple[slice, slice] = slice(0, 0), slice(0, 0)

        def pair() -> nn.Module:
            return _Players(_module(x), _module(y), play)

        fixed = isinstance(x, nn.Module) and isinstance(y, nn.Module)
        super().__init__(pair() if fixed else pair, value, data, clients, **settings)
        weights = self.start()[0][self.players[1]]
        if simplex and (float(weights.min()) < 0 or abs(float(weights.sum()) - 1) > 1e-5):
            raise FairleadError(
                f"y starts at weights that sum to {float(weights.sum()):.3g}: on a simplex they must be "
                "nonnegative and sum to one, such as 1/N each"
            )

    @classmethod
    def of(
        cls,
        f: Callable[..., Tensor],
        data: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        clients: Split | Sequence[ArrayLike] | None = None,
        *,
        batched: bool = False,
        **settings: Any,
    ) -> SaddleTask:
        """From f(x, y, *sample) → a number, with one sample per client unless `clients` says otherwise.
        With `batched` it is f(x, y, *samples) → one number per sample, which is faster.

        >>> one = torch.ones(1, dtype=torch.float64)
        >>> task = SaddleTask.of(lambda x, y, a: (a * x * y).sum(), [torch.ones(2, 1)], one, one)
        >>> task.mapping(torch.tensor([2.0, 3.0], dtype=torch.float64))
        tensor([ 3., -2.], dtype=torch.float64)
        """
        owners = [[i] for i in range(len(data[0]))] if clients is None else clients
        settings.setdefault("dtype", x.dtype)

        def play(x: Vector, y: Vector, *batch: Tensor) -> Tensor:
            if batched:
                return f(x.v, y.v, *batch)
            dims = (None, None, *(0 for _ in batch))
            return torch.func.vmap(f, in_dims=dims)(x.v, y.v, *batch)

        return cls(Vector(x), Vector(y), play, data, owners, **settings)

    def _place(self, model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        self.arrangement = Arrangement.all_inputs(len(self.data))
        super()._place(model, dtype, device)
        first = sum(p.size for p in self.layout.parameters if p.name.startswith("x."))
        if not 0 < first < self.dim:
            raise FairleadError("a saddle task needs trainable parameters in both x and y")
        self.players = slice(0, first), slice(first, self.dim)
        self.flip = torch.ones(self.dim, dtype=dtype, device=device)
        self.flip[first:] = -1
        self.domain = Simplex(self.players[1]) if self.simplex else None
        self.judge = None if self.judge is None else self.judge.to(device, dtype)
        changing = self.buffer_dim > 0 or self.draws_masks
        self.capturable = self._pure_loss and not changing  # `record` applies to `play`

    def mapping(
        self,
        z: Tensor,
        weighting: str | Sequence[float] = "uniform",
        buffers: Tensor | None = None,
    ) -> Tensor:
        """G(z) of the whole objective."""
        leaf = z.detach().requires_grad_()
        with torch.enable_grad():
            (g,) = torch.autograd.grad(self.objective(leaf, weighting, buffers), leaf)
        return turned(self, g)

    def residual(
        self,
        z: Tensor,
        weighting: str | Sequence[float] = "uniform",
        buffers: Tensor | None = None,
    ) -> Tensor:
        """G(z), or on a simplex z − P(z − G(z)): zero exactly at the saddle points."""
        g = self.mapping(z, weighting, buffers)
        return g if self.domain is None else z - self.domain.project(z - g)

    def client_weights(self, weighting: str | Sequence[float] = "uniform") -> NDArray[np.float64]:
        """The weight of every client in the objective; they sum to one."""
        weights = super().client_weights(weighting)
        made = weights if self.weighting is None else super().client_weights(self.weighting)
        if not np.allclose(weights, made):
            raise FairleadError(
                f"the task {self.name} was built for the weighting {self.weighting!r}: train with that one"
            )
        return weights

    def _with_own_measures(self, names: list[str], objective: bool) -> list[str]:
        own = ["residual_norm"] * objective + ["x_distance", "y_distance"] * ("distance" in names)
        judged = [] if self.judge is None else held_out_names(self.judge)
        return [*judged, *names, *own]

    def evaluate(
        self,
        x: Tensor,
        buffers: Tensor | None = None,
        weighting: str | Sequence[float] = "uniform",
        objective: bool = True,
        spread: Spread | None = None,
    ) -> dict[str, float]:
        found = super().evaluate(x, buffers, weighting, objective, spread)
        if objective:
            found["residual_norm"] = float(self.residual(x, weighting, buffers).norm())
        if "distance" in found and self.optimum is not None:
            for name, part in zip("xy", self.players, strict=True):
                found[f"{name}_distance"] = float((x - self.optimum)[part].norm())
        if self.judge is not None:
            found.update(self._judged(self.judge, x, buffers))
        if self.optimum is not None and "gap" in found:
            ours, best = x.clone(), self.optimum.clone()
            ours[self.players[1]], best[self.players[1]] = best[self.players[1]], x[self.players[1]]
            with torch.no_grad():  # ours is (x, y*), best is (x*, y)
                gap = self.objective(ours, weighting, buffers) - self.objective(
                    best, weighting, buffers
                )
            found["gap"] = float(gap)
        return found

    def _judged(self, judge: Task, z: Tensor, buffers: Tensor | None) -> dict[str, float]:
        x = z[: judge.dim]
        with torch.no_grad():
            found = held_out(judge, x, None if buffers is None else buffers[: judge.buffer_dim])
        return {name: float(value) for name, value in found.items()}


def _module(given: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    return copy.deepcopy(given) if isinstance(given, nn.Module) else given()


class Vector(nn.Module):
    """A player whose only parameter is a vector."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.v = nn.Parameter(start.clone())
