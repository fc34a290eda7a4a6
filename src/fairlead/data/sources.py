"""Data sets. The embedded one is scikit-learn's digits: 1,797 real images of 8 × 8 pixels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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
        return len(self.y.unique())

    def against_others(self, label: int) -> Dataset:
        """One label as +1, all others as −1."""
        if not bool((self.y == label).any()):
            raise FairleadError(f"no sample of {self.name} has the label {label}")
        y, y_test = (torch.where(t == label, 1.0, -1.0) for t in (self.y, self.y_test))
        return Dataset(f"{self.name}, {label} against others", self.x, y, self.x_test, y_test)


def digits(test_share: float = 0.2, seed: int = 0) -> Dataset:
    """Handwritten digits in [0, 1] (Alpaydin and Kaynak 1998), the same test part for a seed."""
    x, y = _embedded("load_digits")
    order = np.random.default_rng(seed).permutation(len(x))
    cut = round(len(x) * test_share)
    images = torch.tensor(x / 16.0, dtype=torch.float32)
    labels = torch.tensor(y, dtype=torch.int64)
    test, kept = order[:cut], order[cut:]
    return Dataset("digits", images[kept], labels[kept], images[test], labels[test])


def diabetes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ten measurements of 442 patients and the progression of their disease (Efron et al. 2004), both
    with mean zero and variance one."""
    x, y = _embedded("load_diabetes")
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()


def _embedded(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise FairleadError(
            "the embedded data come with scikit-learn: pip install fairlead[all]"
        ) from error
    return getattr(datasets, name)(return_X_y=True)


def load(name: str) -> Dataset:
    """A data set by name: digits, or one stored as NAME.npz in the folder $FAIRLEAD_DATA."""
    if name == "digits":
        return digits()
    folder = os.environ.get("FAIRLEAD_DATA")
    path = Path(folder or ".") / f"{name}.npz"
    if folder is None or not path.is_file():
        raise FairleadError(
            f"there is no {name}.npz: set FAIRLEAD_DATA to the folder that holds it, or take digits"
        )
    with np.load(path, allow_pickle=False) as file:
        arrays = [torch.from_numpy(file[k]) for k in ("x_train", "y_train", "x_test", "y_test")]
    return Dataset(name, *arrays)
