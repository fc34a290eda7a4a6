"""The file with what was measured of a run and is no single number: a table of clients, a curve of a bound or of prediction
sets. The newest finding of each name is kept."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

MEASURED = "measured.json"
LIMIT = 16 * 2**20
"""The most bytes that are read."""
PAIRED, LAYERS = 20, 24
"""The most clients and layers of a table of pairs that are kept."""


def write_measured(folder: Path, name: str, found: Mapping[str, Any]) -> None:
    """Keep a finding, atomically; a run goes on if that fails."""
    part = folder / f"{MEASURED}.part"
    try:
        text = json.dumps(rounded({**read_measured(folder), name: found}), allow_nan=False)
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(folder / MEASURED)
    except OSError as error:
        part.unlink(missing_ok=True)
        warnings.warn(f"cannot write to {folder}: {error.strerror}", stacklevel=2)


def read_measured(folder: Path) -> dict[str, dict[str, Any]]:
    """What was measured, by name; empty if there is nothing, or nothing that can be read."""
    path = folder / MEASURED
    try:
        if path.stat().st_size > LIMIT:
            return {}
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    entries = found.items() if isinstance(found, dict) else ()
    return {name: entry for name, entry in entries if isinstance(entry, dict)}


def pair_table(found: Any) -> dict[str, Any] | None:
    """The table of every two clients in what a probe found, by layer, as far as it is kept; None if it has none."""
    pairs, ids = found.vectors.get("pairs"), found.vectors.get("clients")
    if not pairs or ids is None:
        return None
    tables = {name: np.asarray(rows, float) for name, rows in list(pairs.items())[-LAYERS:]}
    left_out = [
        f"the first {PAIRED} of {len(ids)} clients" * (len(ids) > PAIRED),
        f"the last {LAYERS} of {len(pairs)} layers" * (len(pairs) > LAYERS),
    ]
    return {
        "where": found.where,
        "clients": list(ids)[:PAIRED],
        "layers": list(tables),
        "values": [table[:PAIRED, :PAIRED] for table in tables.values()],
        "more": " and ".join(filter(None, left_out)),
    }


def rounded(value: Any) -> Any:
    """Numbers with six digits, null if they are not finite; arrays as lists.

    >>> rounded({"a": np.array([1 / 3, np.nan]), "b": (2, "x")})
    {'a': [0.333333, None], 'b': [2, 'x']}
    """
    if isinstance(value, Mapping):
        return {str(name): rounded(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return rounded(value.tolist())
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
