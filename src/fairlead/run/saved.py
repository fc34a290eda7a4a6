"""Reading checkpoints: each is verified before anything is taken from it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fairlead.core.records import State
from fairlead.core.tensorfile import digest
from fairlead.engine.accounting import Counters
from fairlead.engine.session import Execution, Session
from fairlead.errors import FairleadError
from fairlead.run import past
from fairlead.run.past import Past
from fairlead.run.same import check_same

FORMAT = "3"
KINDS: dict[str, Any] = {
    "round": int, "seconds": int | float, "config": dict, "counters": dict, "engine": dict,
    "on_host": list, "past": dict,
}  # fmt: skip
UNREADABLE = (
    OSError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError, AttributeError, MemoryError,
)  # fmt: skip
"""What reading a file that is no checkpoint may raise."""


@dataclasses.dataclass
class Saved:
    """The contents of a checkpoint."""

    path: Path
    round: int
    seconds: float
    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    past: Past = dataclasses.field(default_factory=Past)

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
            _check_ids(rows["ids"], session)
            session.group.load_rows(session.states.store, rows)
        for name in sorted({key.split("/")[0] for key in self.part("residuals")}):
            left = self.part(f"residuals/{name}")
            if "v" in left:
                _check_ids(left["ids"], session)
                session.group.load_rows(session.residuals.of(name, left["v"]), left)

    def restore(self, state: State, session: Session) -> State:
        """Restore everything into a new session; returns the server's state."""
        try:
            return self._restore(state, session)
        except FairleadError:
            raise
        except (LookupError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
            raise FairleadError(f"{self.path.name} does not fit the run: {error}") from error

    def _restore(self, state: State, session: Session) -> State:
        place = session.task.device
        for name, t in self.part("state").items():
            like = state.tensors().get(name, t)  # optimizers add theirs in the first round
            if (t.shape, t.dtype) != (like.shape, like.dtype):
                raise ValueError(f"the server's {name} has another shape or type")
        if self.tensors["buffers"].shape != session.buffers.shape:
            raise ValueError("the buffers have another shape")
        session.group.restore(self.part("places"))
        for shard in [self, *(_read(path) for path in self.shards)]:
            shard.restore_rows(session)
        session.buffers = _placed(self.tensors["buffers"], place)
        session.versions.load(self.part("versions"))
        session.accounts.restored(Counters(**self.meta["counters"]), self.past.ledger)
        session.use(Execution.read(self.meta["engine"]))
        saved, host = self.part("state"), self.meta["on_host"]
        cpu = torch.device("cpu")
        placed = {n: _placed(t, cpu if n in host else place) for n, t in saved.items()}
        return state.filled(placed)


def shards_of(path: Path) -> list[Path]:
    """The files with clients' rows of a checkpoint written by several processes."""
    return sorted(path.parent.glob(f"{path.stem}.*.shard"))


def listed(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    found = Path(folder).glob("round-*.safetensors")
    return sorted(path for path in found if path.stem.partition("-")[2].isdecimal())


def keep_last(folder: Path, count: int) -> None:
    """Delete all but so many checkpoints, and what none of the others needs."""
    found = listed(folder)
    for old in found[: max(0, len(found) - count)]:
        for part in (*shards_of(old), old):
            with contextlib.suppress(OSError):
                part.unlink()
    logs = past.files(folder)
    if len(logs) > 1 or (logs and not count):
        used = [_meta(path).get("past") for path in listed(folder)]
        names = {one.get("file") for one in used if isinstance(one, dict)}
        for log in logs:
            if log.name not in names:
                with contextlib.suppress(OSError):
                    log.unlink()


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
    return next(filter(None, map(_meta, reversed(listed(_place(folder))))), {})


def _meta(path: Path) -> dict[str, Any]:
    """What a checkpoint says about itself, not verified; empty if it cannot be read."""
    with contextlib.suppress(*UNREADABLE), safe_open(path, framework="pt") as file:
        found = json.loads(file.metadata()["fairlead"])
        if isinstance(found, dict):
            return found
    return {}


def executed(folder: str | Path) -> Execution | None:
    """How the run in a folder was executed up to its newest checkpoint, if known."""
    with contextlib.suppress(FairleadError):
        return Execution.read(peek(folder).get("engine"))
    return None


def read(path: str | Path) -> Saved:
    """A checkpoint, verified by its checksums."""
    saved = _read(Path(path))
    _check_meta(saved)
    try:
        saved.past = past.read(saved.path.parent, saved.meta["past"])
    except FairleadError as error:
        raise FairleadError(f"{saved.path.name} is damaged: {error}") from error
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
        if not isinstance(meta, dict):
            raise TypeError("its description is no object")
        right = digest(tensors, meta) == header.get("sha256")
    except UNREADABLE as error:
        raise FairleadError(f"{path.name} is truncated or not a checkpoint: {error}") from error
    if meta.get("format") != FORMAT:
        raise FairleadError(
            f"{path.name} was written by a different version of fairlead: start the run again"
        )
    if not right:
        raise FairleadError(f"{path.name} is damaged: its checksum does not match")
    return Saved(path, meta.get("round", 0), meta.get("seconds", 0.0), tensors, meta)


def _check_meta(saved: Saved) -> None:
    """Refuse a description without what `Saved` reads."""
    for name, kind in KINDS.items():
        if not isinstance(saved.meta.get(name), kind) or isinstance(saved.meta[name], bool):
            raise FairleadError(f"{saved.path.name} is damaged: it has no {name}")
    if not all(type(count) is int for count in saved.meta["counters"].values()):
        raise FairleadError(f"{saved.path.name} is damaged: its counters are no numbers")
    Execution.read(saved.meta["engine"])
    if not isinstance(saved.meta.get("shards", []), list) or "buffers" not in saved.tensors:
        raise FairleadError(f"{saved.path.name} is damaged: it has not all its parts")
    if saved.round != number_of(saved.path):
        raise FairleadError(f"{saved.path.name} is damaged: it is of round {saved.round}")


def _check_ids(ids: Tensor, session: Session) -> None:
    """Refuse rows of clients that there are not."""
    known = ids.dim() == 1 and ids.dtype == torch.int64 and len(ids.unique()) == len(ids)
    if not known or (len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < session.task.clients):
        raise ValueError("it has rows of clients that there are not")


def _placed(t: Tensor, device: torch.device) -> Tensor:
    """A copy in its own memory: products round by the alignment of what they read, and tensors in a file
    are not aligned."""
    return t.to(device, copy=True)
