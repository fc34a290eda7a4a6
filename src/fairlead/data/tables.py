"""Table columns as tensors: numbers standardised, strings one-hot encoded, labels as class indices."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fairlead.errors import FairleadError, unknown


@dataclass(frozen=True)
class Coding:
    """How labels are encoded: as class indices by name, or unchanged."""

    names: NDArray[Any] | None
    dtype: torch.dtype

    @property
    def classes(self) -> int | None:
        """The number of classes, if labels are encoded by name."""
        return None if self.names is None else len(self.names)

    def __call__(self, values: ArrayLike) -> Tensor:
        array = np.asarray(values)
        if self.names is None:
            return torch.tensor(array.tolist(), dtype=self.dtype)
        index = np.searchsorted(self.names, array)
        known = index < len(self.names)
        known[known] = self.names[index[known]] == array[known]
        if not known.all():
            raise FairleadError(
                f"the label {array[~known][0]} is in the test data but not in the training data"
            )
        return torch.from_numpy(index.astype(np.int64))


def coding(values: ArrayLike, loss: Any = None, keep: bool = False) -> Coding:
    """The encoding that a loss needs. Without a loss, or with cross-entropy or the logistic loss,
    integers and strings are classes; everything else is numeric. With `keep`, class indices from 0
    are unchanged.

    >>> coding(["yes", "no", "yes"])(["no", "yes"])
    tensor([0, 1])
    """
    array = np.asarray(values)
    if array.ndim == 2 and array.dtype.kind in "iu":  # a label per token
        return Coding(None, torch.int64)
    if array.ndim != 1 or array.dtype.kind not in "iufbUS":
        raise FairleadError(
            f"the labels are {array.dtype} of shape {array.shape}: give one number or string per sample"
        )
    if array.dtype.kind == "f" or loss not in (None, "cross_entropy", "logistic"):
        return Coding(None, torch.float32)
    if keep and array.dtype.kind in "iu" and array.min() >= 0 and loss != "logistic":
        return Coding(None, torch.int64)
    return Coding(np.unique(array), torch.int64)


def read_csv(path: str | Path) -> dict[str, NDArray[Any]]:
    """The columns of a CSV file with a header: integers, floats or strings."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            head, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FairleadError(f"{path} cannot be read as a table with a header: {error}") from error
    if not head or not rows:
        raise FairleadError(f"{path} cannot be read as a table: it has no header or no rows")
    twice = {name for name in head if head.count(name) > 1}
    if twice:
        raise FairleadError(f"{path} has the column {min(twice)} twice: rename one")
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
    """Integers, floats or strings; codes such as 007 and 1_000 are strings."""
    if any(_CODE.match(cell) for cell in cells):
        return np.array(cells)
    for kind in (np.int64, np.float64):
        try:
            return np.array([kind(cell) for cell in cells])
        except (ValueError, OverflowError):
            continue
    return np.array(cells)


_CODE = re.compile(r"[+-]?0\d|.*\d_\d")


def columns(table: Any) -> Mapping[str, Any]:
    """The columns by name of a dict, or of a table of pandas, polars or pyarrow."""
    if isinstance(table, Mapping):
        return table
    if hasattr(table, "collect"):  # a query of polars that has not run
        table = table.collect()
    names = getattr(table, "column_names", getattr(table, "columns", None))
    if names is None or callable(names):
        raise FairleadError(
            f"the table is a {type(table).__name__}: give a dict of columns, or a table of pandas, polars or pyarrow"
        )
    return {str(name): table[name] for name in names}


def column(table: Mapping[str, Any], name: str) -> NDArray[Any]:
    """One column, which must exist and have no empty cells."""
    if name not in table:
        raise unknown("column", name, table)
    values = np.asarray(table[name])
    if values.ndim != 1 or values.dtype.kind not in "iufbUSO":
        raise FairleadError(
            f"the column {name} holds {values.dtype} of shape {values.shape}: give numbers or strings"
        )
    if values.dtype.kind == "O":
        cells = values.tolist()
        if all(isinstance(cell, Decimal) for cell in cells):
            values = values.astype(float)
        elif not all(isinstance(cell, str | None) or cell != cell for cell in cells):
            raise FairleadError(
                f"the column {name} holds {type(cells[0]).__name__}: give numbers or strings"
            )
    gaps = np.array([_is_gap(cell) for cell in values.tolist()])
    if gaps.any():
        raise FairleadError(
            f"the column {name} has {int(gaps.sum())} empty cells, the first in row "
            f"{int(np.flatnonzero(gaps)[0])}: fill or drop them"
        )
    return values.astype(str) if values.dtype.kind == "O" else values


def _is_gap(cell: Any) -> bool:
    return cell is None or cell == "" or cell != cell


def features(table: Mapping[str, Any], names: Sequence[str], scale: bool) -> Tensor:
    """Columns side by side: numbers (with `scale`, standardised to mean zero and variance one), and
    strings one-hot encoded."""
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
        raise FairleadError("no column is left for the features: name at least one")
    return torch.from_numpy(np.stack(parts, 1).astype(np.float32))
