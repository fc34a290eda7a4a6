"""What an npz file holds, from the headers of its arrays and its labels; samples are not read."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fairlead.errors import FairleadError


class Holdings(NamedTuple):
    """The contents of a data set's file."""

    train: int
    test: int
    extra: int
    """Samples of further clients."""
    classes: int
    clients: int | None

    @property
    def samples(self) -> str:
        """Training, test and extra samples.

        >>> Holdings(60_000, 10_000, 0, 10, None).samples
        '60,000 + 10,000'
        """
        more = [f"{n:,}" for n in (self.test, self.extra) if n]
        return " + ".join([f"{self.train:,}", *more])


def holdings(path: Path) -> Holdings:
    """What an npz file of training and test arrays holds."""
    try:
        with zipfile.ZipFile(path) as file:
            names = {name.removesuffix(".npy") for name in file.namelist()}
            length = {n: _length(file, n) for n in ("x_train", "x_test", "x_extra") if n in names}
        if not {"x_train", "y_train"} <= names:
            raise FairleadError(f"{path} has no arrays x_train and y_train")
        with np.load(path, allow_pickle=False) as arrays:
            classes = len(np.unique(arrays["y_train"]))
            clients = len(np.unique(arrays["writer_train"])) if "writer_train" in names else None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise FairleadError(f"{path} cannot be read: {error}") from error
    train, test, extra = (length.get(name, 0) for name in ("x_train", "x_test", "x_extra"))
    return Holdings(train, test, extra, classes, clients)


def _length(file: zipfile.ZipFile, name: str) -> int:
    """The first dimension of an array, from its header."""
    with file.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        return header(stream)[0][0]
