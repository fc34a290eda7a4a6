"""Per-sample losses and metrics by name: functions (output, target) → one value per sample.

>>> import torch
>>> squared(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 0.0]))
tensor([0.5000, 2.0000])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from fairlead.data.datasets import IGNORED
from fairlead.errors import FairleadError

Loss: TypeAlias = Callable[..., Tensor]


def cross_entropy(output: Any, target: Tensor) -> Tensor:
    """Cross-entropy of class labels, with the classes on the last axis of the output. For a sequence of labels it is the
    mean over its positions, without those of padding (label −100).

    >>> cross_entropy(torch.zeros(1, 3, 4), torch.tensor([[2, 0, -100]]))
    tensor([1.3863])
    """
    output = logits(output)
    if output.dim() == 2:
        return F.cross_entropy(output, target, reduction="none", ignore_index=IGNORED)
    each = F.cross_entropy(output.movedim(-1, 1), target, reduction="none", ignore_index=IGNORED)
    return mean_over_known(each, target)


def next_token(output: Any, target: Tensor) -> Tensor:
    """Cross-entropy of every token given those before it: the output at position t is for the token at t + 1.

    >>> next_token(torch.zeros(1, 3, 4), torch.tensor([[2, 0, -100]]))
    tensor([1.3863])
    """
    return cross_entropy(logits(output)[:, :-1], target[:, 1:])


def mean_over_known(each: Tensor, target: Tensor, ignored: int = IGNORED) -> Tensor:
    """The mean of each sample's values (B, …) without those whose target is ignored."""
    known = (target != ignored).flatten(1)
    total = torch.where(known, each.flatten(1), 0).sum(1)
    return total / known.sum(1).clamp(min=1)


def logits(output: Any) -> Tensor:
    """The output of a model as one tensor: itself, or what a dict holds under `logits`, or alone."""
    if isinstance(output, Tensor):
        return output
    named = dict(output) if isinstance(output, Mapping) else {}
    found = [named.get("logits"), *(named.values() if len(named) == 1 else ())]
    for part in found:
        if isinstance(part, Tensor):
            return part
    what = f"a dict with {', '.join(named)}" if named else f"a {type(output).__name__}"
    raise FairleadError(
        f"the model returns {what}: name what the loss compares logits, or give a loss that takes such an output, "
        "a function (output, target) → one value per sample"
    )


def logistic(output: Any, target: Tensor) -> Tensor:
    """log(1 + exp(−y·output)) for labels y ∈ {−1, +1}, exact in float64 too: torch's softplus is the
    identity above its threshold, 20 by default, where the gradient is still off by 2e-9; at 40 it is
    off by less than float64 resolves."""
    return F.softplus(-target * logits(output).reshape(target.shape), threshold=40.0)


def squared(output: Any, target: Tensor) -> Tensor:
    """Half the squared error."""
    error = logits(output).reshape(target.shape) - target
    return 0.5 * error.reshape(len(target), -1).square().sum(1)


def value(output: Tensor) -> Tensor:
    """The output itself, for models that compute their own loss."""
    return output


def correct(output: Any, target: Tensor) -> Tensor:
    """1 if the largest output is the label's; for a sequence of labels the share of them, without padding."""
    output = logits(output)
    right = (output.argmax(-1) == target).to(output.dtype)
    return right if right.dim() == 1 else mean_over_known(right, target)


def next_correct(output: Any, target: Tensor) -> Tensor:
    """The share of tokens that are the likeliest ones given those before them."""
    return correct(logits(output)[:, :-1], target[:, 1:])


def correct_sign(output: Any, target: Tensor) -> Tensor:
    """1 if the output has the sign of a label in {−1, +1}."""
    output = logits(output)
    return (output.reshape(target.shape) * target > 0).to(output.dtype)


def auc(output: Any, target: Tensor) -> Tensor:
    """The area under the ROC curve of positive targets against the others: the share of pairs in the
    right order, with ties counted as half.

    >>> auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([-1, -1, 1, 1]))
    tensor(0.8750, dtype=torch.float64)
    """
    score, positive = logits(output).reshape(-1), target.reshape(-1) > 0
    low, high = score[~positive].sort().values, score[positive].contiguous()
    below = torch.searchsorted(low, high, right=False)
    ties = torch.searchsorted(low, high, right=True) - below
    pairs = torch.as_tensor(len(low) * len(high), dtype=torch.float64)
    return (below.double() + 0.5 * ties.double()).sum() / pairs


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "next_token": next_token,
    "logistic": logistic,
    "squared": squared,
}

METRICS: dict[str, dict[str, Callable[[Any, Tensor], Tensor]]] = {
    "cross_entropy": {"accuracy": correct},
    "next_token": {"accuracy": next_correct},
    "logistic": {"accuracy": correct_sign},
}
