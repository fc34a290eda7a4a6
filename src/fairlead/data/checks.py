"""Checks of the data before a task is built."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.data.splits import Split
from fairlead.errors import FairleadError


def as_tensor(given: Tensor | NDArray[Any]) -> Tensor:
    """A tensor that shares memory with `given`; a mapped file is never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.as_tensor(given)


def whole(given: Tensor | NDArray[Any]) -> Tensor:
    """Labels as a tensor; short integers become int64, which losses need."""
    labels = as_tensor(given)
    short = labels.dtype in (torch.int8, torch.int16, torch.int32, torch.uint8)
    return labels.long() if short else labels


def check_data(what: str, tensors: tuple[Tensor, ...], values: bool = True) -> None:
    """Reject tensors of different lengths and, with `values`, non-finite values (reads all data)."""
    lengths = {len(t) for t in tensors}
    if len(lengths) != 1 or 0 in lengths:
        raise FairleadError(
            f"the {what} tensors have {', '.join(str(len(t)) for t in tensors)} rows: "
            "all need the same number of samples, at least one"
        )
    for position, t in enumerate(tensors):
        if values and t.is_floating_point() and not bool(torch.isfinite(t).all()):
            bad = int((~torch.isfinite(t)).reshape(len(t), -1).any(1).nonzero()[0])
            raise FairleadError(
                f"{what} tensor {position} holds NaN or infinite values, first in row {bad}: "
                "clean or drop these samples"
            )


def check_split(split: Split, samples: int) -> None:
    """Reject splits with empty clients or with samples that do not exist."""
    if len(split) == 0:
        raise FairleadError("there are no clients: give one index list per client")
    empty = np.flatnonzero(split.sizes == 0)
    if len(empty):
        raise FairleadError(f"client {empty[0]} has no data: give every client at least one sample")
    wrong = split.order[(split.order < 0) | (split.order >= samples)]
    if len(wrong):
        raise FairleadError(
            f"the split contains sample {wrong[0]}, but there are {samples}: "
            f"indices must be in 0 … {samples - 1}"
        )
    often = np.bincount(split.order, minlength=samples)
    shared = int((often > 1).sum())
    if 0 < shared < int((often > 0).sum()):  # where all are shared, that is meant
        warnings.warn(
            f"the split has sample {int((often > 1).argmax())} more than once, and {shared - 1} others: give "
            "each sample to one client, unless this is meant",
            stacklevel=4,
        )


def check_labels(labels: Tensor, classes: int, ignored: int = -100) -> None:
    """Reject class labels that the model has no output for; in sequences of
    labels, `ignored` is padding."""
    if labels.dim() > 1:
        labels = labels[labels != ignored]
    if not len(labels):
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise FairleadError(
            f"the labels run from {low} to {high}, but the model has {classes} outputs: "
            f"labels must be in 0 … {classes - 1}"
        )


def check_signs(labels: Tensor) -> None:
    """Reject labels for the logistic loss other than −1 and +1."""
    if not bool(((labels == 1) | (labels == -1)).all()):
        raise FairleadError("the labels must be −1 and +1: map 0 and 1 to them")
