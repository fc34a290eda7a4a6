"""A history on disk: rows appended to an SQLite file, each in its own transaction.

A killed process loses no row it has written, and others can read while it writes. A resumed run appends
a new part, which records the round after which it starts: later rows of earlier parts, written after
the checkpoint that the run resumed from, stay in the file but are no longer valid.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairlead.errors import FairleadError
from fairlead.run.history import History

VALID = "NOT EXISTS (SELECT 1 FROM parts WHERE parts.part > rows.part AND rows.round > parts.after)"
TABLES = (
    "CREATE TABLE IF NOT EXISTS parts (part INTEGER PRIMARY KEY, after INTEGER, began TEXT, "
    "ended TEXT, why TEXT)",
    "CREATE TABLE IF NOT EXISTS rows (part INTEGER, round INTEGER)",
    # names that SQLite rejects as new columns, such as A if there is an a
    "CREATE TABLE IF NOT EXISTS names (name TEXT PRIMARY KEY, stands_in TEXT)",
)


class HistoryFile:
    """Writes rows; a row that cannot be written is kept and retried with the next one.

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
        self.part = 0
        self._warned = False
        try:
            self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._write_error(error) from error
        try:
            self._db.execute("PRAGMA journal_mode = WAL")  # so that others can read meanwhile
            self._db.execute("PRAGMA synchronous = NORMAL")
            with self._transaction():
                for table in TABLES:
                    self._db.execute(table)
            self._columns = {row[1]: row[1] for row in self._db.execute("PRAGMA table_info(rows)")}
            self._columns |= dict(self._db.execute("SELECT name, stands_in FROM names"))
        except sqlite3.Error as error:
            self.close()
            raise self._write_error(error) from error
        del self._columns["part"]

    def begin(self, after: int) -> None:
        """Start a new part of the run, whose rows replace earlier ones after that round."""
        try:
            inserted = self._db.execute(
                "INSERT INTO parts (after, began) VALUES (?, ?)", (after, _now())
            )
        except sqlite3.Error as error:
            raise self._write_error(error) from error
        self.part = int(inserted.lastrowid or 0)

    def append(self, row: Mapping[str, float]) -> None:
        """Add one row; once this returns, it survives a crash of the process."""
        self.pending.append(dict(row))
        error = self._write()
        if error is not None and not self._warned:
            self._warned = True
            warnings.warn(
                f"the history {self.path} cannot be written now ({error}): rows are kept in memory "
                "and retried with every new row",
                stacklevel=2,
            )

    def end(self, why: str) -> None:
        """Record why the part ended, and close the file."""
        error = self._write()
        try:
            self._db.execute(
                "UPDATE parts SET ended = ?, why = ? WHERE part = ?", (_now(), why, self.part)
            )
        except sqlite3.Error as other:
            error = error or other
        self.close()
        if error is not None:
            warnings.warn(
                f"the end of the history {self.path} could not be written ({error}): its last "
                f"{len(self.pending)} rows are only in run.history",
                stacklevel=2,
            )

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def _write(self) -> sqlite3.Error | None:
        """Write the pending rows; return the error, if any."""
        try:
            while self.pending:
                self._insert(self.pending[0])
                del self.pending[0]
        except sqlite3.Error as error:
            return error
        return None

    def _insert(self, row: Mapping[str, float]) -> None:
        columns = dict(self._columns)
        with self._transaction():
            for name in row:
                if name not in columns:
                    columns[name] = self._new_column(name, set(columns.values()))
            names = ", ".join(["part", *(_quoted(columns[name]) for name in row)])
            marks = ", ".join("?" * (len(row) + 1))
            values = (self.part, *map(_stored, row.values()))
            self._db.execute(f"INSERT INTO rows ({names}) VALUES ({marks})", values)
        self._columns = columns

    def _new_column(self, name: str, others: set[str]) -> str:
        taken = {"part", *(other.lower() for other in others)}
        plain = column = name.replace("\0", " ")
        number = 1
        while column.lower() in taken:
            number += 1
            column = f"{plain} ({number})"
        self._db.execute(f"ALTER TABLE rows ADD COLUMN {_quoted(column)}")
        if column != name:
            self._db.execute("INSERT INTO names VALUES (?, ?)", (name, column))
        return column

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # already rolled back on a full disk
                self._db.execute("ROLLBACK")
            raise

    def _write_error(self, error: sqlite3.Error) -> FairleadError:
        return FairleadError(f"cannot write the history {self.path}: {error}")


def read_parts(path: str | Path) -> list[dict[str, Any]]:
    """The parts of a history: the round after which each starts, when it began and ended, and why."""
    ((names, rows),) = _select(
        path, "SELECT part, after, began, ended, why FROM parts ORDER BY part"
    )
    found = [dict(zip(names, row, strict=True)) for row in rows]
    for part in found:
        words = (part["began"], part["ended"], part["why"])
        if not isinstance(part["after"], int) or not all(isinstance(w, str | None) for w in words):
            raise FairleadError(
                f"the history {path} is damaged: its parts are not what they should be"
            )
    return found


def read_history(path: str | Path) -> History:
    """The valid rows in order of rounds; also while a run appends to them."""
    wanted = f"SELECT * FROM rows WHERE {VALID} ORDER BY round, part, rowid"
    (columns, rows), (_, renamed) = _select(path, wanted, "SELECT stands_in, name FROM names")
    named = dict(renamed)
    names = [named.get(column, column) for column in columns[1:]]
    try:
        found: list[dict[str, float]] = [
            {
                name: value if isinstance(value, int | float) else float(value)
                for name, value in zip(names, row[1:], strict=True)
                if value is not None
            }
            for row in rows
        ]
    except (TypeError, ValueError) as error:
        raise FairleadError(f"the history {path} is damaged: {error}") from error
    if not all(isinstance(row.get("round"), int) for row in found):
        raise FairleadError(f"the history {path} is damaged: it has rows of no round")
    return History(found)


def has_rounds(path: Path, history: History) -> bool:
    """Whether a file has the rounds of a history, no more and no fewer."""
    try:
        found = [row["round"] for row in read_history(path).rows]
    except FairleadError:
        return False
    return found == [row["round"] for row in history.rows]


def put_aside(path: Path, why: str) -> None:
    """Keep a file that is no good under another name, with a warning."""
    kept = path.with_name(f"{path.name}.damaged")
    warnings.warn(
        f"{why}: it is kept as {kept.name}, and made anew from the checkpoint", stacklevel=3
    )
    path.replace(kept)
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)


Selected = tuple[list[str], list[tuple[Any, ...]]]


def _select(path: str | Path, *queries: str) -> list[Selected]:
    """The columns and rows of each query, in one snapshot; nothing in the folder changes."""
    path = Path(path)
    if not path.is_file():
        raise FairleadError(f"there is no history at {path}")
    journal = path.with_name(path.name + "-wal")
    try:
        if not journal.exists():  # no writer: this also works in a read-only folder
            found = _execute(path, "mode=ro&immutable=1", queries)
            if not journal.exists():
                return found
        return _select_with_journal(path, journal, queries)
    except (sqlite3.Error, OSError) as error:
        raise FairleadError(f"the history {path} cannot be read: {error}") from error


def _select_with_journal(path: Path, journal: Path, queries: tuple[str, ...]) -> list[Selected]:
    try:
        return _execute(path, "mode=ro", queries)
    except sqlite3.OperationalError:  # a journal in a read-only folder: read a copy
        with tempfile.TemporaryDirectory() as folder:
            for file in (path, journal):
                if file.exists():
                    shutil.copyfile(file, Path(folder) / file.name)
            return _execute(Path(folder) / path.name, "mode=rw", queries)


def _execute(path: Path, mode: str, queries: tuple[str, ...]) -> list[Selected]:
    db = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=10)
    with contextlib.closing(db):
        db.execute("BEGIN")
        kinds = db.execute(
            "SELECT type FROM sqlite_master WHERE name IN ('parts', 'rows', 'names')"
        )
        if any(kind != "table" for (kind,) in kinds):
            raise sqlite3.DatabaseError("it is not a history")
        results = []
        for query in queries:
            found = db.execute(query)
            results.append(([column[0] for column in found.description], found.fetchall()))
        return results


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _stored(value: Any) -> float | str:
    """A number that SQLite can store: it has no NaN, and no integers beyond 64 bits."""
    number = value if isinstance(value, int | float) else value.item()
    if number != number:
        return "NaN"
    return number if abs(number) < 2**63 else float(number)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
