"""The history of a run: columns of numbers, one row per evaluation."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.errors import FairleadError, needed
from fairlead.task.metrics import Better, check_better, known, reaches


class History(Mapping[str, NDArray[np.float64]]):
    """Rows of numbers, read as columns.

    better: which way is better, "lower" or "higher", for columns other than fairlead's own.

    >>> h = History()
    >>> h.append({"round": 0, "loss": 2.0})
    >>> h.append({"round": 1, "loss": 0.5})
    >>> h["loss"], h.last("loss"), h.first_reach("loss", 1.0)
    (array([2. , 0.5]), 0.5, 1)
    """

    def __init__(
        self, rows: list[dict[str, float]] | None = None, better: Mapping[str, Better] | None = None
    ) -> None:
        self.rows = rows or []
        self.better: dict[str, Better] = {**(better or {})}

    def append(self, row: Mapping[str, float]) -> None:
        """Add one evaluation."""
        self.rows.append(dict(row))

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        if not any(name in row for row in self.rows):
            raise KeyError(name)
        return np.array([row.get(name, np.nan) for row in self.rows], dtype=float)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        return len(dict.fromkeys(name for row in self.rows for name in row))

    def last(self, name: str) -> float:
        """The last value of a column."""
        return float(self[name][-1])

    def newest(self, name: str) -> float:
        """The last value of a column that only some rows have; 0 if none has."""
        return next((row[name] for row in reversed(self.rows) if name in row), 0.0)

    def direction(self, name: str) -> Better | None:
        """Which way a column is better, if that is known."""
        return self.better.get(name) or known(name)

    def best(self, name: str, better: Better | None = None) -> float:
        """The best value of a column. better: which way is better, if the column does not say."""
        values = self[name]
        way = self._direction(name, better)
        return float(np.nanmax(values) if way == "higher" else np.nanmin(values))

    def first_reach(self, name: str, target: float, better: Better | None = None) -> int | None:
        """The first recorded round in which a metric reaches `target`; `better` as in `best`."""
        good = reaches(self[name], target, self._direction(name, better))
        return int(self["round"][good.argmax()]) if good.any() else None

    def _direction(self, name: str, given: Better | None) -> Better:
        if given is not None:
            check_better(given)
        found = given or self.direction(name)
        if found is None:
            raise FairleadError(
                f'nothing says which way \'{name}\' is better: pass better="lower" or better="higher"'
            )
        return found

    def to_pandas(self) -> Any:
        """The rows as a pandas data frame."""
        return needed("pandas").DataFrame(self.rows)

    def to_polars(self) -> Any:
        """The rows as a polars data frame."""
        return needed("polars").DataFrame(self.rows, infer_schema_length=None)

    def to_jsonl(self, path: str | Path) -> None:
        """Write one JSON object per line, with null for non-finite values."""
        plain = [{k: v if math.isfinite(v) else None for k, v in r.items()} for r in self.rows]
        lines = [json.dumps(row) + "\n" for row in plain]
        Path(path).write_text("".join(lines), encoding="utf-8")

    def to_csv(self, path: str | Path) -> None:
        """Write a CSV file with a header."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(self))
            writer.writeheader()
            writer.writerows(self.rows)

    @classmethod
    def from_jsonl(cls, path: str | Path) -> History:
        """Read a file written by `to_jsonl`."""
        text = Path(path).read_text(encoding="utf-8")
        return cls([json.loads(line) for line in text.splitlines()])
