"""A history on disk: rows appended to an SQLite file, each a transaction of its own.

A killed process loses no row it has written, and others may read while it writes. A run that goes on
after a stop appends a further part, which says after which round it begins: later rows of earlier
parts, written after the checkpoint that the run went on from, no longer count, but stay in the file.
"""

from __future__ import annotations

import contextlib
import sqlite3
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairlead.errors import FairleadError
from fairlead.history import History

VALID = "NOT EXISTS (SELECT 1 FROM parts WHERE parts.part > rows.part AND rows.round > parts.after)"


class HistoryFile:
    """Writes rows; what the disk does not take is kept and tried again with the next row.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "history.sqlite"
    >>> file = HistoryFile(path)
    >>> file.begin(after=-1)
    >>> file.append({"round": 0, "loss": 2.0})
    >>> file.append({"round": 1, "loss": 0.5, "accuracy": 0.9})
    >>> file.end("rounds")
    >>> read_history(path)["loss"]
    array([2. , 0.5])
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.pending: list[dict[str, float]] = []
        self._warned = False
        try:
            self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")  # readers see whole rows meanwhile
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("CREATE TABLE IF NOT EXISTS parts (part INTEGER PRIMARY KEY, "
                             "after INTEGER, began TEXT, ended TEXT, why TEXT)")  # fmt: skip
            self._db.execute("CREATE TABLE IF NOT EXISTS rows (part INTEGER, round INTEGER)")
            self._columns = {row[1] for row in self._db.execute("PRAGMA table_info(rows)")}
        except sqlite3.Error as error:
            raise FairleadError(f"cannot write the history {self.path}: {error}") from error
        self.part = 0

    def begin(self, after: int) -> None:
        """A further part of the run, whose rows count instead of earlier ones after that round."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            made = self._db.execute("INSERT INTO parts (after, began) VALUES (?, ?)", (after, now))
        except sqlite3.Error as error:
            raise FairleadError(f"cannot write the history {self.path}: {error}") from error
        self.part = int(made.lastrowid or 0)

    def append(self, row: Mapping[str, float]) -> None:
        """Add one row, which is safe from a crash of the process when this returns."""
        self.pending.append(dict(row))
        try:
            while self.pending:
                self._insert(self.pending[0])
                del self.pending[0]
        except sqlite3.Error as error:
            if not self._warned:
                warnings.warn(
                    f"the history {self.path} cannot be written now ({error}): rows are kept in memory "
                    "and tried again with every row",
                    stacklevel=2,
                )
            self._warned = True

    def _insert(self, row: Mapping[str, float]) -> None:
        for name in row:
            if name not in self._columns:
                self._db.execute(f"ALTER TABLE rows ADD COLUMN {_quoted(name)}")
                self._columns.add(name)
        names = ", ".join(map(_quoted, row))
        marks = ", ".join("?" * len(row))
        values = (self.part, *row.values())
        self._db.execute(f"INSERT INTO rows (part, {names}) VALUES (?, {marks})", values)

    def end(self, why: str) -> None:
        """Note why the part ended, and close the file."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            self._db.execute(
                "UPDATE parts SET ended = ?, why = ? WHERE part = ?", (now, why, self.part)
            )
        except sqlite3.Error as error:
            warnings.warn(f"the history {self.path} could not be ended: {error}", stacklevel=2)
        if self.pending:
            warnings.warn(
                f"{len(self.pending)} rows could not be written to {self.path}: they are in run.history",
                stacklevel=2,
            )
        self.close()

    def close(self) -> None:
        """Close the file as it is."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()


def read_parts(path: str | Path) -> list[dict[str, Any]]:
    """The parts of a history: after which round each began, when, when it ended and why."""
    with _opened(path) as db:
        found = db.execute("SELECT part, after, began, ended, why FROM parts ORDER BY part")
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found]


def read_history(path: str | Path) -> History:
    """The rows that count, in the order of rounds; also while a run appends to them."""
    with _opened(path) as db:
        found = db.execute(f"SELECT * FROM rows WHERE {VALID} ORDER BY round, part")
        names = [column[0] for column in found.description][1:]
        rows = found.fetchall()
    return History(
        [
            {name: value for name, value in zip(names, row[1:], strict=True) if value is not None}
            for row in rows
        ]
    )


@contextlib.contextmanager
def _opened(path: str | Path) -> Any:
    place = Path(path)
    if not place.is_file():
        raise FairleadError(f"there is no history at {place}")
    try:
        db = _readable(place)
        try:
            yield db
        finally:
            db.close()
    except sqlite3.Error as error:
        raise FairleadError(f"the history {place} cannot be read: {error}") from error


def _readable(place: Path) -> sqlite3.Connection:
    """A connection that changes nothing; on a medium that cannot be written to, the file alone."""
    where = place.absolute().as_uri()
    db = sqlite3.connect(f"{where}?mode=ro", uri=True, timeout=10)
    try:
        db.execute("SELECT 1 FROM parts LIMIT 1").fetchall()
        return db
    except sqlite3.OperationalError:
        db.close()
        if place.with_name(place.name + "-wal").exists():
            raise
        return sqlite3.connect(f"{where}?mode=ro&immutable=1", uri=True)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
