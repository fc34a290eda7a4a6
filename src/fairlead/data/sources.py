"""Data sets. The embedded one is scikit-learn's digits: 1,797 real images of 8 × 8 pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairlead.errors import FairleadError


@dataclass(frozen=True)
class Dataset:
    """Images or rows with labels, divided into training and test parts."""

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def classes(self) -> int:
        """How many labels there are."""
        return int(self.y.max()) + 1


def digits(test_share: float = 0.2, seed: int = 0) -> Dataset:
    """Handwritten digits in [0, 1] (Alpaydin and Kaynak 1998), the same test part for a seed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise FairleadError(
            "the digits come with scikit-learn: pip install fairlead[all]"
        ) from error
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    cut = round(len(x) * test_share)
    images = torch.tensor(x / 16.0, dtype=torch.float32)
    labels = torch.tensor(y, dtype=torch.int64)
    test, kept = order[:cut], order[cut:]
    return Dataset("digits", images[kept], labels[kept], images[test], labels[test])
