"""What is refused before a task exists."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from fairlead.data.splits import Split
from fairlead.errors import FairleadError



def as_tensor(given: Tensor | NDArray[Any]) -> Tensor:
    """The same memory as a tensor; a mapped file is never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.as_tensor(given)


def whole(given: Tensor | NDArray[Any]) -> Tensor:
    """Labels as a tensor, a short integer type as the integers that losses take."""
    labels = as_tensor(given)
    short = labels.dtype in (torch.int8, torch.int16, torch.int32, torch.uint8)
    return labels.long() if short else labels


def check_data(what: str, tensors: tuple[Tensor, ...], values: bool = True) -> None:
    """Refuse tensors of different lengths, and values that are not finite (which reads them all)."""
    lengths = {len(t) for t in tensors}
    if len(lengths) != 1 or 0 in lengths:
        raise FairleadError(
            f"the {what} tensors have {', '.join(str(len(t)) for t in tensors)} rows: "
            "give every one the same number of samples, at least one"
        )
    for place, t in enumerate(tensors):
        if values and t.is_floating_point() and not bool(torch.isfinite(t).all()):
            bad = int((~torch.isfinite(t)).reshape(len(t), -1).any(1).nonzero()[0])
            raise FairleadError(
                f"{what} tensor {place} holds NaN or infinite values, first in row {bad}: "
                "clean or drop such samples"
            )


def check_split(split: Split, samples: int) -> None:
    """Refuse splits with empty clients or with samples that do not exist."""
    if len(split) == 0:
        raise FairleadError("there are no clients: give one index list a client")
    empty = np.flatnonzero(split.sizes == 0)
    if len(empty):
        raise FairleadError(f"client {empty[0]} has no data: give every client at least one sample")
    wrong = split.order[(split.order < 0) | (split.order >= samples)]
    if len(wrong):
        raise FairleadError(
            f"the split names sample {wrong[0]}, but there are {samples}: "
            f"indices run from 0 to {samples - 1}"
        )


def check_labels(labels: Tensor, classes: int) -> None:
    """Refuse class labels that the model has no output for."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise FairleadError(
            f"the labels run from {low} to {high}, but the model has {classes} outputs: "
            f"labels are 0 to {classes - 1}"
        )


def check_signs(labels: Tensor) -> None:
    """Refuse labels of the logistic loss other than −1 and +1."""
    if not bool(((labels == 1) | (labels == -1)).all()):
        raise FairleadError("the labels must be −1 and +1: map 0 and 1 to them")
