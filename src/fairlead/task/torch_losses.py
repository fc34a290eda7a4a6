"""Torch's own losses as losses per sample."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


def per_sample(loss: Callable[..., Tensor]) -> Callable[..., Tensor] | None:
    """A loss of `torch.nn` or `torch.nn.functional` with one value per sample, the mean over its outputs; None
    for any other function. Class weights multiply the samples' losses.

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

    def values(output: Tensor, *targets: Tensor) -> Tensor:
        found = single(output, *targets)
        return found.flatten(1).mean(1) if found.dim() > 1 else found

    return values


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
