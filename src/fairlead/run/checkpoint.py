"""Checkpoints: everything a run needs to resume bitwise, in one safetensors file per saved round.

A file holds the server's state, the memory of every client that has taken part, compression residuals,
buffers, counters and how the run was executed; random numbers are counter-based, so no generator state is
saved. History and ledger, which grow, are beside it (see `fairlead.run.past`). It is written under a temporary
name and renamed, with its SHA-256 inside, so it is complete or absent; a damaged file is skipped in favour
of the one before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from fairlead.core.records import State
from fairlead.core.tensorfile import Pieces, write
from fairlead.engine.accounting import Ledger
from fairlead.engine.processes.ranks import Ranks
from fairlead.engine.session import Session
from fairlead.errors import FairleadError
from fairlead.run import past
from fairlead.run.history import History
from fairlead.run.lock import LOCK, locked
from fairlead.run.saved import FORMAT, keep_last, listed

Tensors = dict[str, Tensor | Pieces]
ROWS = ("store/", "residuals/")


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Where and when to write checkpoints.

    every: rounds between checkpoints; minutes: time between them, whichever comes first.
    last: how many to keep. first: minutes until the first one, if `minutes` is longer.

    >>> import tempfile
    >>> import fairlead as fl
    >>> task, method, folder = fl.problems.theorem2(), fl.Scaffold(lr=0.1), tempfile.mkdtemp()
    >>> run = fl.train(task, method, rounds=4, steps=3, checkpoints=Checkpoints(folder, every=2))
    >>> longer = fl.train(task, method, rounds=8, steps=3, resume=folder)
    >>> bool(longer.x == fl.train(task, method, rounds=8, steps=3).x)
    True
    """

    folder: str | Path
    every: int | None = None
    minutes: float | None = 10.0
    last: int = 3
    first: float = 0.5

    def __post_init__(self) -> None:
        if (self.every is not None and self.every < 1) or self.last < 1:
            raise FairleadError(
                f"checkpoints: every is {self.every} and last is {self.last}: both must be at least 1"
            )
        for name in ("minutes", "first"):
            given = getattr(self, name)
            if given is not None and not given > 0:
                raise FairleadError(f"checkpoints: {name} is {given}: must be positive")


class Keeper:
    """Writes the checkpoints of one run."""

    def __init__(
        self,
        setting: Checkpoints,
        config: dict[str, Any],
        ranks: Ranks | None = None,
        fresh: bool = False,
        lock: bool = False,
    ) -> None:
        self.setting, self.config = setting, config
        self.ranks = ranks if ranks is not None and ranks.size > 1 else None
        self.folder = Path(setting.folder)
        self.since, self.written, self.failed = time.monotonic(), -1, False
        self.past = past.Writer(self.folder)
        self._lock: IO[str] | None = None
        self._locks = lock
        self.together = 1
        """How many runs are trained as one, this one included."""
        self.more: Tensors = {}
        """What else to write: what callbacks keep."""
        if fresh and listed(self.folder):
            raise FairleadError(
                f"{self.folder} holds checkpoints of an earlier run: continue it with resume, or use "
                "another folder"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FairleadError(f"cannot write to {self.folder}: {error.strerror}") from error

    def begin(self) -> None:
        """Count the time from now on, and keep other processes from writing here."""
        self.since = time.monotonic()
        if self._locks:
            self._lock = locked(self.folder / LOCK)

    def close(self) -> None:
        """Let others write here."""
        if self._lock is not None:
            self._lock.close()

    def due(self, round: int) -> bool:
        """Whether to write a checkpoint after this round."""
        every, minutes = self.setting.every, self.setting.minutes
        if minutes is not None and self.written < 0:
            minutes = min(minutes, self.setting.first)
        by_round = (every is not None and round % every == 0) or self.failed
        return by_round or (minutes is not None and time.monotonic() - self.since > 60 * minutes)

    def try_to_write(
        self,
        round: int,
        state: State,
        session: Session,
        history: History,
        seconds: float,
        stopped: str | None = None,
    ) -> None:
        """Write a checkpoint; if that fails, warn once and retry after the next round."""
        try:
            self.write(round, state, session, history, seconds, stopped)
            self.failed = False
        except FairleadError as error:
            if not self.failed:
                warnings.warn(f"{error}; the run continues and will retry", stacklevel=2)
            self.failed = True

    def write(
        self,
        round: int,
        state: State,
        session: Session,
        history: History,
        seconds: float,
        stopped: str | None = None,
    ) -> Path:
        """Write a checkpoint atomically, and delete the oldest. stopped: why the run ends here, if it does."""
        if round == self.written:
            return self._path(round)
        tensors, meta = _collected(round, state, session, seconds)
        tensors |= self.more
        meta |= {"config": self.config, "stopped": stopped, "together": self.together}
        path = self._path(round)
        before = history, session.accounts.ledger
        if self.ranks is None:
            self._write_main(path, round, tensors, meta, before)
        else:
            self._write_parts(self.ranks, path, round, tensors, meta, before)
        if self.ranks is None or self.ranks.first:
            keep_last(self.folder, self.setting.last)
        self.since, self.written = time.monotonic(), round
        return path

    def _write_parts(
        self,
        ranks: Ranks,
        path: Path,
        round: int,
        tensors: Tensors,
        meta: dict[str, Any],
        before: tuple[History, Ledger],
    ) -> None:
        """Write this rank's rows; once all ranks have, rank 0 writes the rest with their digests."""
        rows = {name: t for name, t in tensors.items() if name.startswith(ROWS)}
        rest = {name: t for name, t in tensors.items() if name not in rows}
        shard = path.with_suffix(f".{ranks.rank}-of-{ranks.size}.shard")
        failed: FairleadError | None = None
        about, found = {"format": FORMAT, "round": round, "rank": ranks.rank}, "0" * 64
        try:
            found = self._write(shard, round, rows, about)
        except FairleadError as error:
            failed = error
        digests = ranks.gather(bytes.fromhex(found))
        if ranks.most([failed is not None])[0]:
            raise failed or FairleadError(f"another rank could not write its part of round {round}")
        try:
            if ranks.first:
                meta["shards"] = [d.hex() for d in digests]
                self._write_main(path, round, rest, meta, before)
        except FairleadError as error:
            failed = error
        if ranks.most([failed is not None])[0]:
            raise failed or FairleadError(f"rank 0 could not write the checkpoint of round {round}")

    def _write_main(
        self,
        path: Path,
        round: int,
        tensors: Tensors,
        meta: dict[str, Any],
        before: tuple[History, Ledger],
    ) -> None:
        """Write what is not in shards, after the past that it needs."""
        with self._said(round):
            meta["past"] = self.past.add(*before)
        self._write(path, round, tensors, meta)

    def _write(self, path: Path, round: int, tensors: Tensors, meta: dict[str, Any]) -> str:
        """Write a file atomically; returns its digest."""
        beside = path.with_name(path.name + ".part")
        with self._said(round):
            try:
                with beside.open("wb") as file:
                    found = write(file, tensors, "fairlead", meta)
                    file.flush()
                    os.fsync(file.fileno())
                beside.replace(path)
                _settle(self.folder)
                return found
            except OSError:
                beside.unlink(missing_ok=True)
                raise

    @contextlib.contextmanager
    def _said(self, round: int) -> Iterator[None]:
        """Turn an OSError into a FairleadError."""
        try:
            yield
        except OSError as error:
            raise FairleadError(
                f"the checkpoint of round {round} could not be written to {self.folder}: "
                f"{error.strerror}; earlier checkpoints are intact"
            ) from error

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:09d}.safetensors"


def _collected(
    round: int, state: State, session: Session, seconds: float
) -> tuple[Tensors, dict[str, Any]]:
    tensors: Tensors = {f"state/{name}": t for name, t in state.tensors().items()}
    store, part = session.states.store, session.group.part
    if store is not None:
        rows = store.pieces(part(store))
        tensors |= {f"store/{name}": t for name, t in rows.items()}
    for field, left in session.residuals.stores.items():
        rows = left.pieces(part(left))
        tensors |= {f"residuals/{field}/{name}": t for name, t in rows.items()}
    tensors |= {f"places/{name}": t for name, t in session.group.saved().items()}
    tensors |= {f"versions/{name}": t for name, t in session.versions.export().items()}
    tensors["buffers"] = session.buffers
    meta = {
        "format": FORMAT, "round": round, "seconds": seconds,
        "counters": dataclasses.asdict(session.accounts.counters), "engine": session.settled.saved(),
        "on_host": [name for name, t in state.tensors().items() if t.device.type == "cpu"],
    }  # fmt: skip
    return tensors, meta


def _settle(folder: Path) -> None:
    """Flush the folder's new entry to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
