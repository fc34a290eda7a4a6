"""Per-sample losses and metrics by name: functions (output, target) → one value per sample.

>>> import torch
>>> squared(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 0.0]))
tensor([0.5000, 2.0000])
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Loss: TypeAlias = Callable[..., Tensor]


def logistic(output: Tensor, target: Tensor) -> Tensor:
    """log(1 + exp(−y·output)) for labels y ∈ {−1, +1}, exact in float64 too: torch's softplus is the
    identity above its threshold, 20 by default, where the gradient is still off by 2e-9; at 40 it is
    off by less than float64 resolves."""
    return F.softplus(-target * output.reshape(target.shape), threshold=40.0)


def squared(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared error."""
    error = output.reshape(target.shape) - target
    return 0.5 * error.reshape(len(target), -1).square().sum(1)


def value(output: Tensor) -> Tensor:
    """The output itself, for models that compute their own loss."""
    return output


def correct(output: Tensor, target: Tensor) -> Tensor:
    """1 if the largest output is the label's."""
    return (output.argmax(-1) == target).to(output.dtype)


def correct_sign(output: Tensor, target: Tensor) -> Tensor:
    """1 if the output has the sign of a label in {−1, +1}."""
    return (output.reshape(target.shape) * target > 0).to(output.dtype)


def auc(output: Tensor, target: Tensor) -> Tensor:
    """The area under the ROC curve of positive targets against the others: the share of pairs in the
    right order, with ties counted as half.

    >>> auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([-1, -1, 1, 1]))
    tensor(0.8750, dtype=torch.float64)
    """
    score, positive = output.reshape(-1), target.reshape(-1) > 0
    low, high = score[~positive].sort().values, score[positive].contiguous()
    below = torch.searchsorted(low, high, right=False)
    ties = torch.searchsorted(low, high, right=True) - below
    pairs = torch.as_tensor(len(low) * len(high), dtype=torch.float64)
    return (below.double() + 0.5 * ties.double()).sum() / pairs


LOSSES: dict[str, Loss] = {
    "cross_entropy": partial(F.cross_entropy, reduction="none"),
    "logistic": logistic,
    "squared": squared,
}

METRICS: dict[str, dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "cross_entropy": {"accuracy": correct},
    "logistic": {"accuracy": correct_sign},
}
