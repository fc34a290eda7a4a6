"""Evaluations captured as CUDA graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairlead.gradients.replays import Replays
from fairlead.task.evaluation import measured
from fairlead.task.task import Task


class CapturedEvaluation:
    """The evaluation of a run, whose weighting and objective stay the same: run as it is once, then captured if it does not
    wait for values."""

    def __init__(self, task: Task) -> None:
        self.task, self._replays = task, Replays()
        self._names: list[str] | None = None

    def __call__(
        self, x: Tensor, buffers: Tensor, weighting: Any, objective: bool
    ) -> dict[str, float]:
        """The metrics of a model."""

        def run(x: Tensor, buffers: Tensor) -> Tensor:
            found = measured(self.task, x, buffers, weighting, objective)
            self._names = list(found)
            return torch.stack(list(found.values())) if found else x[:0]

        if self._names == []:  # nothing is evaluated
            return {}
        values = self._replays(f"evaluation {objective}", run, x, buffers)
        return dict(zip(self._names or (), values.tolist(), strict=True))
