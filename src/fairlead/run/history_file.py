"""A history on disk: rows appended to an SQLite file, each a transaction of its own.

A killed process loses no row it has written, and others may read while it writes. A run that goes on
after a stop appends a further part, which says after which round it begins: later rows of earlier
parts, written after the checkpoint that the run went on from, no longer count, but stay in the file.
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
    # names that SQLite does not take for a column of their own, such as A where there is an a
    "CREATE TABLE IF NOT EXISTS names (name TEXT PRIMARY KEY, stands_in TEXT)",
)


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
        self.part = 0
        self._warned = False
        try:
            self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._refusal(error) from error
        try:
            self._db.execute("PRAGMA journal_mode = WAL")  # readers see whole rows meanwhile
            self._db.execute("PRAGMA synchronous = NORMAL")
            with self._whole():
                for table in TABLES:
                    self._db.execute(table)
            self._columns = {row[1]: row[1] for row in self._db.execute("PRAGMA table_info(rows)")}
            self._columns |= dict(self._db.execute("SELECT name, stands_in FROM names"))
        except sqlite3.Error as error:
            self.close()
            raise self._refusal(error) from error
        del self._columns["part"]

    def begin(self, after: int) -> None:
        """A further part of the run, whose rows count instead of earlier ones after that round."""
        try:
            made = self._db.execute(
                "INSERT INTO parts (after, began) VALUES (?, ?)", (after, _now())
            )
        except sqlite3.Error as error:
            raise self._refusal(error) from error
        self.part = int(made.lastrowid or 0)

    def append(self, row: Mapping[str, float]) -> None:
        """Add one row, which is safe from a crash of the process when this returns."""
        self.pending.append(dict(row))
        error = self._write()
        if error is not None and not self._warned:
            self._warned = True
            warnings.warn(
                f"the history {self.path} cannot be written now ({error}): rows are kept in memory "
                "and tried again with every row",
                stacklevel=2,
            )

    def end(self, why: str) -> None:
        """Note why the part ended, and close the file."""
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
                f"{len(self.pending)} rows are in run.history only",
                stacklevel=2,
            )

    def close(self) -> None:
        """Close the file as it is."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def _write(self) -> sqlite3.Error | None:
        """Write what is pending; what went wrong, if something did."""
        try:
            while self.pending:
                self._insert(self.pending[0])
                del self.pending[0]
        except sqlite3.Error as error:
            return error
        return None

    def _insert(self, row: Mapping[str, float]) -> None:
        columns = dict(self._columns)
        with self._whole():
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
    def _whole(self) -> Iterator[None]:
        """One transaction: all of it or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # a full disk has rolled back already
                self._db.execute("ROLLBACK")
            raise

    def _refusal(self, error: sqlite3.Error) -> FairleadError:
        return FairleadError(f"cannot write the history {self.path}: {error}")


def read_parts(path: str | Path) -> list[dict[str, Any]]:
    """The parts of a history: after which round each began, when, when it ended and why."""
    ((names, rows),) = _selected(
        path, "SELECT part, after, began, ended, why FROM parts ORDER BY part"
    )
    return [dict(zip(names, row, strict=True)) for row in rows]


def read_history(path: str | Path) -> History:
    """The rows that count, in the order of rounds; also while a run appends to them."""
    wanted = f"SELECT * FROM rows WHERE {VALID} ORDER BY round, part, rowid"
    (columns, rows), (_, renamed) = _selected(path, wanted, "SELECT stands_in, name FROM names")
    named = dict(renamed)
    names = [named.get(column, column) for column in columns[1:]]
    return History(
        [
            {
                name: float(value) if isinstance(value, str) else value
                for name, value in zip(names, row[1:], strict=True)
                if value is not None
            }
            for row in rows
        ]
    )


Selected = tuple[list[str], list[tuple[Any, ...]]]


def _selected(path: str | Path, *questions: str) -> list[Selected]:
    """The columns and rows of the answers, all of one moment; nothing in the folder changes."""
    place = Path(path)
    if not place.is_file():
        raise FairleadError(f"there is no history at {place}")
    journal = place.with_name(place.name + "-wal")
    try:
        if (
            not journal.exists()
        ):  # nobody writes: the file alone, also where only reading is allowed
            found = _asked(place, "mode=ro&immutable=1", questions)
            if not journal.exists():
                return found
        return _while_written(place, journal, questions)
    except (sqlite3.Error, OSError) as error:
        raise FairleadError(f"the history {place} cannot be read: {error}") from error


def _while_written(place: Path, journal: Path, questions: tuple[str, ...]) -> list[Selected]:
    try:
        return _asked(place, "mode=ro", questions)
    except sqlite3.OperationalError:  # a journal where only reading is allowed: read a copy
        with tempfile.TemporaryDirectory() as folder:
            for file in (place, journal):
                if file.exists():
                    shutil.copyfile(file, Path(folder) / file.name)
            return _asked(Path(folder) / place.name, "mode=rw", questions)


def _asked(place: Path, how: str, questions: tuple[str, ...]) -> list[Selected]:
    db = sqlite3.connect(f"{place.absolute().as_uri()}?{how}", uri=True, timeout=10)
    with contextlib.closing(db):
        db.execute("BEGIN")
        answers = []
        for question in questions:
            found = db.execute(question)
            answers.append(([column[0] for column in found.description], found.fetchall()))
        return answers


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _stored(value: Any) -> float | str:
    """A number as SQLite keeps it: it has no NaN, and no whole numbers beyond 64 bits."""
    number = value if isinstance(value, int | float) else value.item()
    if number != number:
        return "NaN"
    return number if abs(number) < 2**63 else float(number)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
