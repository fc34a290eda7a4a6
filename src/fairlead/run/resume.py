"""What a run goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairlead.core.method import Algorithm
from fairlead.errors import FairleadError
from fairlead.run.checkpoint import Checkpoints, executed, listed, peek
from fairlead.run.folder import CHECKPOINTS, Recorder


def workers_before(
    out: str | Path | Recorder | None,
    checkpoints: str | Path | Checkpoints | None,
    resume: Any,
) -> int | None:
    """How many processes the run to resume had, if known."""
    if hasattr(resume, "session"):
        return resume.session.group.size
    folder = to_go_on(out, checkpoints) if resume == "auto" else resume
    return None if folder is None else executed(folder).get("workers")


def has_ended(
    out: str | Path | Recorder | None,
    checkpoints: str | Path | Checkpoints | None,
    resume: Any,
    rounds: int,
) -> bool:
    """Whether the run to resume has all its rounds or diverged, as its newest checkpoint says."""
    if resume is None or hasattr(resume, "session"):
        return False
    folder = to_go_on(out, checkpoints) if resume == "auto" else resume
    found = {} if folder is None else peek(folder)
    return found.get("round") == rounds or found.get("stopped") == "diverged"


def begins_with_all(algorithm: Algorithm[Any, Any]) -> bool:
    """Whether all clients take part before the first round."""
    inner = getattr(algorithm, "method", None)
    if isinstance(inner, Algorithm):
        return begins_with_all(inner)
    return getattr(algorithm, "warm_start", type(algorithm).start is not Algorithm.start)


def to_go_on(
    out: str | Path | Recorder | None, checkpoints: str | Path | Checkpoints | None
) -> Path | None:
    """The folder to resume from, if it has a checkpoint."""
    if isinstance(checkpoints, Checkpoints):
        folder = Path(checkpoints.folder)
    elif checkpoints is not None:
        folder = Path(checkpoints)
    elif out is not None:
        folder = (out.folder if isinstance(out, Recorder) else Path(out)) / CHECKPOINTS
    else:
        raise FairleadError('resume="auto" needs a folder: pass out=… or checkpoints=…')
    return folder if listed(folder) else None
