"""Torch's own losses as losses per sample."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from fairlead.task.losses import logits, mean_over_known


def per_sample(loss: Callable[..., Tensor]) -> Callable[..., Tensor] | None:
    """A loss of `torch.nn` or `torch.nn.functional` with one value per sample, the mean over its outputs; None
    for any other function. Class weights multiply the samples' losses; labels that the loss ignores do not count.

    >>> import torch
    >>> import torch.nn.functional as F
    >>> per_sample(F.mse_loss)(torch.zeros(2, 3), torch.ones(2, 3))
    tensor([1., 1.])
    >>> per_sample(nn.CrossEntropyLoss())(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor([0.6931, 0.6931])
    """
    if isinstance(loss, nn.modules.loss._Loss):
        single = _module(loss)
    elif getattr(loss, "__module__", "") == nn.functional.__name__ and _reduces(loss):
        single = functools.partial(loss, reduction="none")
    else:
        return None

    ignored = _ignored(loss)

    def values(output: Any, *targets: Tensor) -> Tensor:
        found = single(logits(output), *targets)
        if found.dim() == 1:
            return found
        if ignored is not None and found.shape == targets[0].shape:
            return mean_over_known(found, targets[0], ignored)
        return found.flatten(1).mean(1)

    return values


def _ignored(loss: Any) -> int | None:
    """The label that a loss leaves out, if it has one."""
    if isinstance(loss, nn.Module):
        return getattr(loss, "ignore_index", None)
    parameter = inspect.signature(loss).parameters.get("ignore_index")
    return None if parameter is None else parameter.default


def _module(loss: nn.Module) -> Callable[..., Tensor]:
    module: Any = copy.deepcopy(loss)
    module.reduction = "none"

    def single(output: Tensor, *targets: Tensor) -> Tensor:
        for weights in module.buffers():
            if (weights.device, weights.dtype) != (output.device, output.dtype):
                module.to(output.device, output.dtype)
        return module(output, *targets)

    return single


def is_cross_entropy(loss: Any) -> bool:
    """Whether a loss is torch's cross entropy."""
    return isinstance(loss, nn.CrossEntropyLoss) or loss is nn.functional.cross_entropy


def _reduces(loss: Any) -> bool:
    try:
        return "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        return False
