"""What is refused before a task exists."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairlead.data.splits import Split
from fairlead.errors import FairleadError


def check_data(what: str, tensors: tuple[Tensor, ...]) -> None:
    """Refuse tensors of different lengths, and values that are not finite."""
    lengths = {len(t) for t in tensors}
    if len(lengths) != 1 or 0 in lengths:
        raise FairleadError(
            f"the {what} tensors have {', '.join(str(len(t)) for t in tensors)} rows: "
            "give every one the same number of samples, at least one"
        )
    for place, t in enumerate(tensors):
        if t.is_floating_point() and not bool(torch.isfinite(t).all()):
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
    if split.order.min() < 0 or split.order.max() >= samples:
        raise FairleadError(
            f"the split names sample {split.order.max()}, but there are {samples}: "
            f"indices run from 0 to {samples - 1}"
        )
