"""What a run goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.core.method import Algorithm
from fairlead.errors import FairleadError
from fairlead.run.checkpoint import Checkpoints
from fairlead.run.folder import CHECKPOINTS, Recorder
from fairlead.run.loop import Loop
from fairlead.run.saved import executed, listed, number_of, peek, read


def workers_before(
    out: str | Path | Recorder | None,
    checkpoints: str | Path | Checkpoints | None,
    resume: Any,
) -> int | None:
    """How many processes the run to resume had, if known."""
    if hasattr(resume, "session"):
        return resume.session.group.size
    folder = to_go_on(out, checkpoints) if resume == "auto" else resume
    known = None if folder is None else executed(folder)
    return None if known is None else known.workers


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


def as_begun(group: Sequence[Loop]) -> None:
    """Execute runs as the first of them with a checkpoint was."""
    for loop in group:
        known = None if loop.keeper is None else executed(loop.keeper.folder)
        if known is not None and known.workers == loop.session.group.size:
            group[0].session.use(known)
            return


def restore_together(loops: Sequence[Loop]) -> list[list[Loop]]:
    """Continue runs from their checkpoints. Returns those that go on together: runs whose rounds were executed as one,
    from the newest round that all of them have; others that have begun each from its own, alone; and those that have not."""
    groups = _as_they_were(loops)
    for group in groups:
        _restore(group)
    return groups


def _as_they_were(loops: Sequence[Loop]) -> list[list[Loop]]:
    """The runs by how many were executed as one."""
    found: dict[int, list[Loop]] = {}
    for loop in loops:
        assert loop.keeper is not None
        folder = loop.keeper.folder
        count = peek(folder).get("together", 1) if listed(folder) else 0
        found.setdefault(count, []).append(loop)
    if len(loops) in found:  # also those that were killed before their first checkpoint
        return [list(loops)]
    new, alone = found.pop(0, []), found.pop(1, [])
    return [*([new] if new else []), *([loop] for loop in alone), *found.values()]


def _restore(loops: Sequence[Loop]) -> None:
    folders = [loop.keeper.folder for loop in loops if loop.keeper is not None]
    known = [peek(folder) for folder in folders]
    joined = len(loops) > 1 and any(one.get("together", 1) > 1 for one in known)
    most = _shared_round(folders) if joined else None
    for loop, folder in zip(loops, folders, strict=True):
        gradients, started = loop.session.gradients, bool(listed(folder))
        if joined:
            assert loop.keeper is not None
            loop.keeper.together, started = len(loops), most is not None
        if started:
            loop.restore(folder, most, ended=True)
            loop.session.gradients = gradients  # they share what is captured
        else:
            for recorder in loop.callbacks:
                if isinstance(recorder, Recorder):
                    recorder.start_anew()


def _shared_round(folders: Sequence[Path]) -> int | None:
    """The newest round that all runs have an intact checkpoint of, or before which they had ended."""
    rounds = {number_of(path) for folder in folders for path in listed(folder)}
    return next(
        (k for k in sorted(rounds, reverse=True) if all(_is_at(f, k) for f in folders)), None
    )


def _is_at(folder: Path, round: int) -> bool:
    path = next((p for p in reversed(listed(folder)) if number_of(p) <= round), None)
    try:
        saved = None if path is None else read(path)
    except FairleadError:
        return False
    ended = ("rounds", "target", "diverged", "callback")
    return saved is not None and (saved.round == round or saved.stopped in ended)
