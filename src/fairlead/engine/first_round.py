"""A new method's first round is checked once: clients as a matrix against one client at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairlead.engine.api import Answer, Executor, Request, rows_of
from fairlead.engine.executors import OneByOne
from fairlead.engine.session import Session
from fairlead.errors import FairleadError

CLIENTS = 3
"""How many clients are compared."""


class Compared(Executor):
    """Another executor; in the first round `checked`, clients as a matrix, is compared with one client at a
    time."""

    def __init__(self, session: Session, executor: Executor, checked: Executor) -> None:
        self.session, self.executor, self.checked = session, executor, checked

    @property
    def remark(self) -> str:
        return self.executor.remark

    def execute(self, request: Request) -> Answer:
        session = self.session
        if session.accounts.counters.steps == 0 and not request.measuring:
            places = np.arange(min(CLIENTS, len(request.clients)))
            some = request.of(places, request.weights[: len(places)])
            self._compare(request, self.checked.execute(some), OneByOne(session).execute(some))
        return self.executor.execute(request)

    def _compare(self, request: Request, together: Answer, alone: Answer) -> None:
        method = type(self.session.method).__name__
        half = self.session.settled.form.half
        rough = 3e-2 if half else 1e-3 if self.session.task.dtype != torch.float64 else 1e-7
        pairs = {f"upload {n}": (v, together.sums[n]) for n, v in alone.sums.items()}
        if alone.states:
            one, many = _by_client(alone), _by_client(together)
            for name, rows in one.items():
                pairs[f"state {name}"] = rows, many[name]
        for name, (value, other) in pairs.items():
            if not bool(torch.isfinite(value).all()):
                continue  # the run will say that it diverged
            scale = float(value.abs().max()) + float(other.abs().max())
            if not float((value - other).abs().max()) <= rough * scale:
                raise FairleadError(
                    f"the {name} of {method}.{request.program} is another one when clients run as a matrix than "
                    "one at a time: reduce and index vectors along their last axis, for example "
                    'norm(dim=-1, keepdim=True) and x[..., part], or train with engine="loop"'
                )


def _by_client(answer: Answer) -> dict[str, Tensor]:
    """The states of an answer in the order of clients."""
    ids = np.concatenate([some for some, _ in answer.states])
    order = torch.from_numpy(np.argsort(ids))
    found: dict[str, list[Tensor]] = {}
    for some, kept in answer.states:
        for name, v in kept.tensors().items():
            found.setdefault(name, []).append(rows_of(v, len(some)))
    return {name: torch.cat(parts)[order.to(parts[0].device)] for name, parts in found.items()}
