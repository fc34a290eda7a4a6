"""Checkpoints: everything a run needs to resume bitwise, in one safetensors file per saved round.

A file holds the server's state, the memory of every client that has taken part, compression residuals,
buffers, ledger, counters, history and how the run was executed; random numbers are counter-based, so no
generator state is saved. It is written under a temporary name and renamed, with its SHA-256 inside, so
it is complete or absent; a damaged file is skipped in favour of the one before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fairlead.core.records import State
from fairlead.core.tensorfile import Pieces, digest, write
from fairlead.engine.accounting import Counters
from fairlead.engine.processes.ranks import Ranks
from fairlead.engine.session import Execution, Session
from fairlead.errors import FairleadError
from fairlead.run.history import History
from fairlead.run.ledger_file import ledger_of, ledger_tensors
from fairlead.run.same import check_same

Tensors = dict[str, Tensor | Pieces]
FORMAT = "2"
ROWS = ("store/", "residuals/")


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Where and when to write checkpoints.

    every: rounds between checkpoints; minutes: time between them, whichever comes first.
    last: how many to keep. first: minutes until the first one, if `minutes` is longer.
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


@dataclasses.dataclass
class Saved:
    """The contents of a checkpoint."""

    path: Path
    round: int
    seconds: float
    tensors: dict[str, Tensor]
    meta: dict[str, Any]

    @property
    def stopped(self) -> str | None:
        """Why the run ended with this round; None if it went on."""
        return self.meta.get("stopped")

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names start with `name/`."""
        cut = len(name) + 1
        return {k[cut:]: t for k, t in self.tensors.items() if k.startswith(f"{name}/")}

    @property
    def shards(self) -> list[Path]:
        """The files with the clients' rows, if several processes wrote them."""
        count = len(self.meta.get("shards", []))
        return [self.path.with_suffix(f".{rank}-of-{count}.shard") for rank in range(count)]

    def restore_rows(self, session: Session) -> None:
        """Restore the rows in this file that belong to this process's clients."""
        rows = self.part("store")
        if session.states.store is not None and rows:
            session.group.load_rows(session.states.store, rows)
        for name in sorted({key.split("/")[0] for key in self.part("residuals")}):
            left = self.part(f"residuals/{name}")
            if "v" in left:
                session.group.load_rows(session.residuals.of(name, left["v"]), left)

    def history(self) -> History:
        """The rows recorded so far."""
        columns, table = self.meta["columns"], self.tensors["history"].tolist()
        given = self.tensors["given"].tolist()
        whole = set(self.meta.get("integers", columns))
        return History(
            [
                {
                    c: _number(v) if c in whole else v
                    for c, v, g in zip(columns, row, has, strict=True)
                    if g
                }
                for row, has in zip(table, given, strict=True)
            ]
        )

    def restore(self, state: State, session: Session) -> State:
        """Restore everything into a new session; returns the server's state."""
        place = session.task.device
        session.group.restore(self.part("places"))
        for shard in [self, *(_read(path) for path in self.shards)]:
            shard.restore_rows(session)
        session.buffers = _placed(self.tensors["buffers"], place)
        session.versions.load(self.part("versions"))
        ledger = ledger_of(self.part("ledger"), self.meta["nominal"])
        session.accounts.restored(Counters(**self.meta["counters"]), ledger)
        session.use(Execution.read(self.meta["engine"]))
        saved, host = self.part("state"), self.meta["on_host"]
        cpu = torch.device("cpu")
        placed = {n: _placed(t, cpu if n in host else place) for n, t in saved.items()}
        return state.filled(placed)


class Keeper:
    """Writes the checkpoints of one run."""

    def __init__(
        self,
        setting: Checkpoints,
        config: dict[str, Any],
        ranks: Ranks | None = None,
        fresh: bool = False,
    ) -> None:
        self.setting, self.config = setting, config
        self.ranks = ranks if ranks is not None and ranks.size > 1 else None
        self.folder = Path(setting.folder)
        self.since, self.written, self.failed = time.monotonic(), -1, False
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
        """Count the time from now on."""
        self.since = time.monotonic()

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
        tensors, meta = _collected(round, state, session, history, seconds)
        tensors |= self.more
        meta |= {"config": self.config, "stopped": stopped, "together": self.together}
        path = self._path(round)
        if self.ranks is None:
            self._write(path, round, tensors, meta)
        else:
            self._write_parts(self.ranks, path, round, tensors, meta)
        if self.ranks is None or self.ranks.first:
            for old in listed(self.folder)[: -self.setting.last]:
                for part in shards_of(old):
                    part.unlink(missing_ok=True)
                old.unlink(missing_ok=True)
        self.since, self.written = time.monotonic(), round
        return path

    def _write_parts(
        self, ranks: Ranks, path: Path, round: int, tensors: Tensors, meta: dict[str, Any]
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
                self._write(path, round, rest, {**meta, "shards": [d.hex() for d in digests]})
        except FairleadError as error:
            failed = error
        if ranks.most([failed is not None])[0]:
            raise failed or FairleadError(f"rank 0 could not write the checkpoint of round {round}")

    def _write(self, path: Path, round: int, tensors: Tensors, meta: dict[str, Any]) -> str:
        """Write a file atomically; returns its digest."""
        beside = path.with_name(path.name + ".part")
        try:
            with beside.open("wb") as file:
                found = write(file, tensors, "fairlead", meta)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
            _settle(self.folder)
            return found
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise FairleadError(
                f"the checkpoint of round {round} could not be written to {self.folder}: "
                f"{error.strerror}; earlier checkpoints are intact"
            ) from error

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:09d}.safetensors"


def shards_of(path: Path) -> list[Path]:
    """The files with clients' rows of a checkpoint written by several processes."""
    return sorted(path.parent.glob(f"{path.stem}.*.shard"))


def listed(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(Path(folder).glob("round-*.safetensors"))


def number_of(path: Path) -> int:
    """The round of a checkpoint, from its name."""
    return int(path.stem.partition("-")[2])


def _place(folder: str | Path) -> Path:
    """The folder with the checkpoints, given that or a run folder."""
    inner = Path(folder) / "checkpoints"
    return inner if inner.is_dir() else Path(folder)


def newest(
    folder: str | Path, config: Mapping[str, Any], most: int | None = None
) -> tuple[Saved, list[str]]:
    """The newest intact checkpoint of a run with these settings, after at most so many rounds, and why
    newer ones were skipped."""
    folder = _place(folder)
    found = [path for path in listed(folder) if most is None or number_of(path) <= most]
    if not found:
        raise FairleadError(f"there is no checkpoint in {folder}: run with checkpoints=… first")
    wrong = []
    for path in reversed(found):
        try:
            saved = read(path)
            check_same(f"{path.name} is of a run", saved.meta["config"], config)
            return saved, wrong
        except FairleadError as error:
            wrong.append(str(error))
    raise FairleadError(f"no checkpoint in {folder} is usable: {wrong[0]}")


def peek(folder: str | Path) -> dict[str, Any]:
    """What the newest checkpoint in a folder says about itself, not verified; empty if there is none."""
    for path in reversed(listed(_place(folder))):
        wrong = contextlib.suppress(OSError, SafetensorError, KeyError, TypeError, ValueError)
        with wrong, safe_open(path, framework="pt") as file:
            found = json.loads(file.metadata()["fairlead"])
            if isinstance(found, dict):
                return found
    return {}


def executed(folder: str | Path) -> dict[str, Any]:
    """How the run in a folder was executed up to its newest checkpoint; empty if unknown."""
    return peek(folder).get("engine", {})


def read(path: str | Path) -> Saved:
    """A checkpoint, verified by its checksums."""
    saved = _read(Path(path))
    for shard, expected in zip(saved.shards, saved.meta.get("shards", []), strict=True):
        if not shard.is_file() or digest(*_contents(_read(shard))) != expected:
            raise FairleadError(f"{saved.path.name} is damaged: {shard.name} is missing or changed")
    return saved


def _contents(saved: Saved) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return saved.tensors, saved.meta


def _read(path: Path) -> Saved:
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
        meta = json.loads(header["fairlead"])
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise FairleadError(f"{path.name} is truncated or not a checkpoint: {error}") from error
    if meta.get("format") != FORMAT:
        raise FairleadError(
            f"{path.name} was written by a different version of fairlead: start the run again"
        )
    if digest(tensors, meta) != header.get("sha256"):
        raise FairleadError(f"{path.name} is damaged: its checksum does not match")
    return Saved(path, meta["round"], meta.get("seconds", 0.0), tensors, meta)


def _collected(
    round: int, state: State, session: Session, history: History, seconds: float
) -> tuple[Tensors, dict[str, Any]]:
    columns = list(history)
    table = [[row.get(name, 0.0) for name in columns] for row in history.rows]
    given = [[name in row for name in columns] for row in history.rows]
    tensors: Tensors = {f"state/{name}": t for name, t in state.tensors().items()}
    store, part = session.states.store, session.group.part
    if store is not None:
        rows = store.pieces(part(store))
        tensors |= {f"store/{name}": t for name, t in rows.items()}
    for field, left in session.residuals.stores.items():
        rows = left.pieces(part(left))
        tensors |= {f"residuals/{field}/{name}": t for name, t in rows.items()}
    tensors |= {f"ledger/{name}": t for name, t in ledger_tensors(session.accounts.ledger).items()}
    tensors |= {f"places/{name}": t for name, t in session.group.saved().items()}
    tensors |= {f"versions/{name}": t for name, t in session.versions.export().items()}
    tensors["buffers"] = session.buffers
    tensors["history"] = torch.tensor(table, dtype=torch.float64)
    tensors["given"] = torch.tensor(given, dtype=torch.bool)
    meta = {
        "format": FORMAT, "round": round, "seconds": seconds, "columns": columns,
        "integers": [n for n in columns if all(isinstance(r.get(n, 0), int) for r in history.rows)],
        "counters": dataclasses.asdict(session.accounts.counters), "engine": session.settled.saved(),
        "nominal": [e.nominal_up for e in session.accounts.ledger.exchanges],
        "on_host": [name for name, t in state.tensors().items() if t.device.type == "cpu"],
    }  # fmt: skip
    return tensors, meta


def _number(value: float) -> float:
    return int(value) if value == value and abs(value) < 2**53 and value == int(value) else value


def _placed(t: Tensor, device: torch.device) -> Tensor:
    """A copy in its own memory: products round by the alignment of what they read, and tensors in a file
    are not aligned."""
    return t.to(device, copy=True)


def _settle(folder: Path) -> None:
    """Flush the folder's new entry to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
