"""What a round of a method computes, found out before the first: gradients, and the bytes that its operators move.

One client takes a few steps with gradients that are zero and cost nothing, and nothing is committed. Two such rounds of
different length tell what a step costs from what comes before and after the steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairlead.data.batches import Draw
from fairlead.engine.api import Ids
from fairlead.engine.exchange import DryCohort
from fairlead.engine.executors import OneByOne
from fairlead.engine.session import Session
from fairlead.gradients.oracle import Gradients
from fairlead.task.task import Block

BANDWIDTH = 2e12
"""Bytes per second that operators on vectors move on a GPU for training."""
STEPS = 4
"""Steps of the longer round."""
_aten: Any = torch.ops.aten
_PICKS = (_aten.index.Tensor, _aten.index_select.default, _aten.gather.default)
"""Operators that read as much as they write."""


class Cost(NamedTuple):
    """What a client computes. gradients: of batches, where a larger one counts as several. bytes: read and written outside of them."""

    gradients: float
    bytes: float

    def seconds(self, gradient: float, clients: int) -> float:
        """How long that takes for all clients at once, if a gradient of the cohort takes so long."""
        return self.gradients * gradient + self.bytes * clients / BANDWIDTH


class _Counted(Gradients):
    """Gradients that are zero, counted in samples."""

    samples = 0

    def single(
        self, x: Tensor, block: Block, buffers: Tensor, keys: Any = None, first: int = 0
    ) -> tuple[Any, Tensor]:
        self.samples += len(block[0])
        return torch.zeros_like(x), buffers

    def full_single(
        self, client: int, x: Tensor, buffers: Tensor, limit: int, keys: Any = None
    ) -> tuple[Any, Tensor]:
        self.samples += int(self.task.sizes[client])
        return torch.zeros_like(x), buffers


class _Moved(TorchDispatchMode):
    """Counts the bytes that operators read and write."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            read = out if func in _PICKS else (args, kwargs)
            self.bytes += sum(_size(t) for t in tree_leaves((read, out)) if isinstance(t, Tensor))
        return out


def _size(t: Tensor) -> int:
    """The bytes of a tensor where it lies, what is repeated once."""
    lengths = (n for n, stride in zip(t.shape, t.stride(), strict=True) if stride)
    return t.element_size() * torch.Size(lengths).numel()


def round_cost(session: Session, ids: Ids, draw: Draw) -> Cost:
    """What a round costs each of some clients."""
    longest = draw.longest
    many = min(STEPS, longest)
    few = many // 2
    long = _dry(session, ids, draw, many)
    if not few:
        return long
    short = _dry(session, ids, draw, few)
    more = [(longest - many) * (a - b) / (many - few) for a, b in zip(long, short, strict=True)]
    return Cost(*(a + b for a, b in zip(long, more, strict=True)))


def _dry(session: Session, ids: Ids, draw: Draw, steps: int) -> Cost:
    """A round of so many steps by the client that takes most."""
    place = int(draw.steps.argmax())
    one = ids[place : place + 1]
    batches = Draw(draw.index[place : place + 1, :steps], draw.count[place : place + 1, :steps])
    counted = _Counted(session.task)
    with _Moved() as moved:
        dry_round(session, counted, one, batches)
    return Cost(counted.samples / max(1, int(draw.count.max())), moved.bytes)


def dry_round(session: Session, gradients: Gradients, ids: Ids, draw: Draw) -> None:
    """The first round by some clients with these gradients, which leaves no trace in the session."""
    before, session.gradients = session.gradients, gradients
    try:
        cohort = DryCohort(session, 0, ids, ids, OneByOne(session), draw)
        session.method.round(session.method.init(session.task.start(session.seed)[0]), cohort)
    finally:
        session.gradients = before
