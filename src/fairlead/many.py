"""Many runs of one task, such as seeds and step sizes, as one further axis of the matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.algorithm import Algorithm
from fairlead.task import Task
from fairlead.train import Run, train


def train_many(
    task: Task, runs: Sequence[tuple[Algorithm[Any, Any], int]], **settings: Any
) -> list[Run]:
    """Train every (method, seed) with the same settings, those of `train`.

    >>> import fairlead as fl
    >>> task = fl.problems.theorem2(gradient=10)
    >>> runs = [(fl.Scaffold(lr=lr), seed) for lr in (0.1, 0.05) for seed in (0, 1)]
    >>> [run.rounds for run in fl.train_many(task, runs, rounds=5, steps=10)]
    [5, 5, 5, 5]
    """
    return [train(task, method, seed=seed, **settings) for method, seed in runs]
