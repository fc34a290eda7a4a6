"""Answers of several processes: their sums as one vector, and that of a process without clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fairlead.engine.api import Answer, Executor, Ids, Request


def _parts(answer: Answer) -> dict[tuple[str, str], Tensor]:
    parts = {("sum", name): t for name, t in answer.sums.items()}
    parts |= {("rows", name): t for name, t in answer.rows.items()}
    if answer.buffers is not None:
        parts["buffers", ""] = answer.buffers
    for measure, sums in answer.measured.items():
        parts |= {(measure, name): t for name, t in sums.items()}
    return parts


def flat_sums(answer: Answer) -> Tensor:
    """All sums of an answer, one after another."""
    parts = [t.reshape(-1) for t in _parts(answer).values()]
    if len(parts) == 1 and parts[0].device.type == "cpu":
        return parts[0]
    return torch.cat(parts) if parts else torch.zeros(0)


def with_sums(answer: Answer, flat: Tensor) -> Answer:
    """The answer with other sums, from what `flat_sums` gave."""
    parts = _parts(answer)
    pieces = flat.split([t.numel() for t in parts.values()])
    found = {
        key: piece.reshape(t.shape) for (key, t), piece in zip(parts.items(), pieces, strict=True)
    }
    return replace(
        answer,
        sums={name: found["sum", name] for name in answer.sums},
        rows={name: found["rows", name] for name in answer.rows},
        buffers=found.get(("buffers", "")),
        measured={
            measure: {name: found[measure, name] for name in sums}
            for measure, sums in answer.measured.items()
        },
    )


def among(rows: Tensor, places: Ids, count: int) -> Tensor:
    """Some rows among those of the other clients, which are zero here: the sum over processes is all of them."""
    whole = rows.new_zeros((count, rows.shape[-1]))
    whole[torch.from_numpy(places).to(rows.device)] = rows
    return whole


class Blanks:
    """The zeros that a process without clients adds, shaped like a discarded answer of one client."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._like: dict[Any, Answer] = {}

    def of(self, request: Request, one: Ids) -> Answer:
        """For a request; `one` is a client that can be asked."""
        shapes = [getattr(v, "shape", ()) for v in request.broadcast.values()]
        key = (request.program, request.exchange, tuple(shapes), len(request.measures))
        if key not in self._like:
            some = replace(request, clients=one, weights=request.weights[:1])
            self._like[key] = self.executor.execute(some)
        like = self._like[key]
        return Answer(
            0,
            kind=like.kind,
            sums={name: torch.zeros_like(v) for name, v in like.sums.items()},
            rows={name: v[:0] for name, v in like.rows.items()},
            buffers=None if like.buffers is None else torch.zeros_like(like.buffers),
            residuals=[
                (one[:0], {n: v[:0] for n, v in held.items()}) for _, held in like.residuals[:1]
            ],
            measured={
                measure: {n: torch.zeros_like(v) for n, v in sums.items()}
                for measure, sums in like.measured.items()
            },
        )
