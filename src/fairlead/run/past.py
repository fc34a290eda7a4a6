"""The past of a run beside its checkpoints: the rows of its history and the exchanges of its ledger, in lines of
JSON that are appended and never changed.

A checkpoint names a file, and the length and digest of what it needs of it; so checkpoints do not grow with the
run. Every process that writes checkpoints begins a file of its own, with all that was before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.engine.accounting import Exchange, Ledger
from fairlead.errors import FairleadError
from fairlead.run.history import History

NAMES = re.compile(r"past-\d{1,9}\.jsonl")
Ids = NDArray[np.int64]


def files(folder: Path) -> list[Path]:
    """The files of this kind in a folder."""
    return sorted(path for path in folder.glob("past-*.jsonl") if NAMES.fullmatch(path.name))


class Writer:
    """Appends what is new to a file of its own, which is made by the first call."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "past-0.jsonl"
        self._rows = self._exchanges = self._size = 0
        self._digest = hashlib.sha256()

    def add(self, history: History, ledger: Ledger) -> dict[str, Any]:
        """Append what is new, and return what a checkpoint keeps of it."""
        rows, exchanges = history.rows[self._rows :], ledger.exchanges[self._exchanges :]
        if rows or exchanges:
            new = {"rows": rows, "exchanges": [_written(e) for e in exchanges]}
            line = json.dumps(new, default=_plain, separators=(",", ":")).encode() + b"\n"
            if not self._size:
                self.path = self.folder / f"past-{self._next()}.jsonl"
            with self.path.open("r+b" if self._size else "wb") as file:
                file.seek(self._size)
                file.truncate()  # what a full disk left of an earlier attempt
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            self._digest.update(line)
            self._size += len(line)
            self._rows, self._exchanges = len(history.rows), len(ledger.exchanges)
        return {"file": self.path.name, "bytes": self._size, "sha256": self._digest.hexdigest()}

    def _next(self) -> int:
        known = [int(path.stem.partition("-")[2]) for path in files(self.folder)]
        return max(known, default=-1) + 1


@dataclass
class Past:
    """What happened before a checkpoint."""

    rows: list[dict[str, float]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)


def read(folder: Path, about: Any) -> Past:
    """The past that a checkpoint needs."""
    name = about.get("file") if isinstance(about, Mapping) else None
    if not isinstance(name, str) or not NAMES.fullmatch(name):
        raise FairleadError("it does not say where its past is")
    size = about.get("bytes")
    try:
        data = b""
        if size:
            with (folder / name).open("rb") as file:
                data = file.read(size)
        if len(data) != size or hashlib.sha256(data).hexdigest() != about.get("sha256"):
            raise FairleadError(f"{name} is truncated or changed")
        return _read(data)
    except FairleadError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise FairleadError(f"{name} cannot be read: {error}") from error


def _read(data: bytes) -> Past:
    found = Past()
    for line in data.splitlines():
        new = json.loads(line)
        for row in new["rows"]:
            if not isinstance(row["round"], int) or not all(map(_is_number, row.values())):
                raise ValueError("a row of the history is not one of numbers")
            found.rows.append(row)
        for one in new["exchanges"]:
            found.ledger.add(_exchange(**one))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _plain(value: Any) -> Any:
    return value.item()


def _written(e: Exchange) -> dict[str, Any]:
    extra = e.all_down - e.down
    return {
        "round": e.round, "clients": e.clients.tolist(), "down": e.down, "up": _short(e.up),
        "nominal": e.nominal_up, "extra": _short(extra), "measure": e.measure,
    }  # fmt: skip


def _exchange(
    round: int, clients: list[int], down: int, up: Any, nominal: float, extra: Any, measure: str
) -> Exchange:
    ids = np.array(clients, np.int64)
    return Exchange(round, ids, down, _long(up, ids), nominal, _long(extra, ids), measure)


def _short(values: Ids) -> int | list[int]:
    """Numbers, or one that stands for all."""
    first = int(values[0]) if len(values) else 0
    return first if bool((values == first).all()) else values.tolist()


def _long(values: Any, like: Ids) -> Ids:
    found = np.full_like(like, values) if isinstance(values, int) else np.array(values, np.int64)
    if found.shape != like.shape:
        raise ValueError("an exchange has numbers for other clients than its own")
    return found
