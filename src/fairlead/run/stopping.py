"""Callbacks that come with fairlead: stop when nothing improves, and keep the best model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fairlead.errors import FairleadError, unknown
from fairlead.run.callbacks import Callback, RoundView
from fairlead.run.history import History
from fairlead.task.metrics import Better, check_better
from fairlead.task.model import trained_model


class _Watch(Callback):
    """Follows one metric over a run's evaluations."""

    def __init__(self, metric: str, better: Better | None) -> None:
        if better is not None:
            check_better(better)
        self.metric, self.better = metric, better
        self.sign = 1

    def begin(self, about: Mapping[str, Any], history: History) -> None:
        self.sign = self._sign(history)

    def _sign(self, history: History) -> int:
        way = self.better or history.direction(self.metric)
        if way is None:
            raise FairleadError(
                f'nothing says which way \'{self.metric}\' is better: give better="lower" or "higher"'
            )
        return 1 if way == "lower" else -1

    def cost(self, row: Mapping[str, float]) -> float:
        """The metric, as a number that is better if smaller; infinite if it is not finite."""
        if self.metric not in row:
            raise unknown(f"metric of {type(self).__name__}", self.metric, row)
        value = self.sign * row[self.metric]
        return value if math.isfinite(value) else math.inf


class EarlyStopping(_Watch):
    """End a run when a metric has not improved for some evaluations.

    patience: how many evaluations in a row may bring no improvement.
    least: by how much a value must beat the best one so far to count.
    better: which way is better, if the metric does not say.

    A resumed run counts from the rows of its history, so it stops in the same round.

    >>> import fairlead as fl
    >>> task = fl.problems.theorem2(gradient=10)
    >>> stop = fl.EarlyStopping("loss", patience=5)
    >>> run = fl.train(task, fl.FedAvg(lr=0.1), rounds=500, steps=10, callbacks=[stop])
    >>> run.stopped, run.rounds == stop.best_round + 5
    ('callback', True)
    """

    def __init__(
        self,
        metric: str = "loss",
        patience: int = 10,
        least: float = 0.0,
        better: Better | None = None,
    ) -> None:
        super().__init__(metric, better)
        if patience < 1 or not least >= 0:
            raise FairleadError(
                f"patience is {patience} and least is {least}: give at least 1 evaluation, and 0 or more"
            )
        self.patience, self.least = patience, least
        self.best, self.best_round, self.waited = math.inf, 0, 0

    def begin(self, about: Mapping[str, Any], history: History) -> None:
        super().begin(about, history)
        self.best, self.best_round, self.waited = math.inf, 0, 0
        for row in history.rows:
            self.row(row)

    def row(self, row: Mapping[str, float]) -> bool:
        cost = self.cost(row)
        if cost < self.best - self.least or (math.isinf(self.best) and math.isfinite(cost)):
            self.best, self.best_round, self.waited = cost, int(row["round"]), 0
        else:
            self.waited += 1
        return self.waited >= self.patience


class BestModel(_Watch):
    """Keep the model of the evaluated round with the best value of a metric; of equal ones the first.

    It is kept in checkpoints, so that a resumed run ends with the same one.

    >>> import fairlead as fl
    >>> best = fl.BestModel("loss")
    >>> task = fl.problems.theorem2(gradient=10)
    >>> run = fl.train(task, fl.FedAvg(lr=0.1), rounds=20, steps=10, callbacks=[best])
    >>> bool(best.value == min(run.history["loss"][1:])), best.x.shape
    (True, torch.Size([1]))
    """

    def __init__(self, metric: str = "loss", better: Better | None = None) -> None:
        super().__init__(metric, better)
        self._clear()

    def _clear(self) -> None:
        self.best_round: int | None = None
        """The round it is of; None before the first evaluation."""
        self._cost = math.inf
        self._kept: tuple[Any, Tensor, Tensor] | None = None

    def begin(self, about: Mapping[str, Any], history: History) -> None:
        super().begin(about, history)
        self._clear()

    def round(self, view: RoundView) -> None:
        if view.evaluated and (cost := self.cost(view.row)) < self._cost:
            self._cost, self.best_round = cost, view.round
            self._kept = view.task, view.x.detach().clone(), view.buffers.detach().clone()

    def saved(self) -> dict[str, Tensor]:
        if self._kept is None:
            return {}
        numbers = torch.tensor([self._cost, self.best_round], dtype=torch.float64)
        return {"x": self._kept[1], "buffers": self._kept[2], "numbers": numbers}

    def restore(self, saved: Mapping[str, Tensor], view: RoundView) -> None:
        self.sign = self._sign(view.history)
        self._cost, self.best_round = float(saved["numbers"][0]), int(saved["numbers"][1])
        x, buffers = (saved[name].to(view.x.device, copy=True) for name in ("x", "buffers"))
        self._kept = view.task, x, buffers

    @property
    def value(self) -> float:
        """The best value of the metric."""
        return self.sign * self._cost

    @property
    def x(self) -> Tensor:
        """The best model as a vector."""
        return self._found[1]

    def model(self, transform: bool = True) -> nn.Module:
        """The best model as a module; transform as in `Run.model`."""
        return trained_model(*self._found, transform)

    @property
    def _found(self) -> tuple[Any, Tensor, Tensor]:
        if self._kept is None:
            raise FairleadError("there is no best model yet: pass this to train(callbacks=[…])")
        return self._kept
