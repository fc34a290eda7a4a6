"""Columns of tables as tensors: numbers scaled, words as indicators, labels as class numbers."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fairlead.errors import FairleadError, unknown


@dataclass(frozen=True)
class Labels:
    """Targets: class numbers with the names they stand for, or numbers to regress on."""

    values: Tensor
    names: list[str] | None


def labels(values: ArrayLike, regression: bool = False) -> Labels:
    """Whole numbers and words are classes, other numbers are targets of a regression, and with
    `regression` all are.

    >>> labels(["yes", "no", "yes"])
    Labels(values=tensor([1, 0, 1]), names=['no', 'yes'])
    """
    array = np.asarray(values)
    if array.dtype.kind == "f" or regression:
        return Labels(torch.from_numpy(array.astype(np.float32)), None)
    found, codes = np.unique(array, return_inverse=True)
    return Labels(torch.from_numpy(codes.astype(np.int64)), [str(name) for name in found])


def read_csv(path: str | Path) -> dict[str, NDArray[Any]]:
    """The columns of a comma-separated file with a header: integers, numbers or words."""
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            head, *rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise FairleadError(f"{path} cannot be read as a table with a header: {error}") from error
    for number, row in enumerate(rows, 2):
        if len(row) != len(head):
            raise FairleadError(f"{path} has {len(row)} cells in line {number}, not {len(head)}")
    return {name: _typed([row[k] for row in rows]) for k, name in enumerate(head)}


def read_parquet(path: str | Path) -> dict[str, NDArray[Any]]:
    """The columns of a Parquet file."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise FairleadError("Parquet files need pyarrow: pip install pyarrow") from error
    try:
        table = parquet.read_table(path)
    except (OSError, ArrowException) as error:
        raise FairleadError(f"{path} cannot be read as a Parquet file: {error}") from error
    return {name: table[name].to_numpy() for name in table.column_names}


def _typed(cells: list[str]) -> NDArray[Any]:
    for kind in (np.int64, np.float64):
        try:
            return np.array([kind(cell) for cell in cells])
        except ValueError:
            continue
    return np.array(cells)


def column(table: Mapping[str, Any], name: str) -> NDArray[Any]:
    """One column, which must be there and have no gaps."""
    if name not in table:
        raise unknown("column", name, table)
    values = np.asarray(table[name])
    gaps = np.array([cell is None or cell == "" or cell != cell for cell in values.tolist()])
    if gaps.any():
        raise FairleadError(
            f"the column {name} has {int(gaps.sum())} empty cells, the first in row "
            f"{int(np.flatnonzero(gaps)[0])}: fill or drop them"
        )
    return values


def features(table: Mapping[str, Any], names: Sequence[str], scale: bool) -> Tensor:
    """Columns side by side: numbers (with `scale` to mean zero and variance one), and an indicator
    for each word of a column of words."""
    parts = []
    for name in names:
        values = column(table, name)
        if values.dtype.kind in "iufb":
            values = values.astype(np.float64)
            spread = values.std()
            parts.append((values - values.mean()) / (spread or 1.0) if scale else values)
        else:
            words = np.unique(values.astype(str))
            parts.extend((values.astype(str) == word).astype(np.float64) for word in words)
    if not parts:
        raise FairleadError("there is no column left for features: name some")
    return torch.from_numpy(np.stack(parts, 1).astype(np.float32))
