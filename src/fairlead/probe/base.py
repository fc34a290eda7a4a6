"""Measures taken inside rounds: sums over clients, reduced like uploads in every engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from torch import Tensor

from fairlead.core.records import Upload

Sums: TypeAlias = dict[str, dict[str, Tensor]]
"""Sums by the name of their measure and by their own name."""


class Measure(ABC):
    """Something measured on the clients of evaluated rounds, given to `train(measures=[…])`.

    It returns named sums over the clients at hand; the engine adds them up over chunks, exchanges and
    processes, and `value` turns the totals into numbers of the history. Nothing else leaves a client.
    """

    name: str
    """The prefix of its columns."""
    leaves: ClassVar[str] = "sums over clients"
    """What leaves a client, in words."""

    def upload(self, upload: Upload, clients: int) -> dict[str, Tensor]:
        """Sums over the uploads of some clients, (S, d) or (d,) for one of them."""
        return {}

    def point(self, y: Tensor, x: Tensor, active: Any) -> dict[str, Tensor]:
        """Sums over the points `y` after a local step of clients that started at `x`, where the method
        marks its points with `step.at(y)`. active: 1 for clients that took the step, 0 for others."""
        return {}

    @abstractmethod
    def value(self, total: Mapping[str, Tensor]) -> dict[str, float]:
        """The numbers to record, from the totals; empty if nothing was measured."""


def added(one: Sums, two: Sums) -> Sums:
    """The sums of both."""
    total = {measure: dict(sums) for measure, sums in one.items()}
    for measure, sums in two.items():
        mine = total.setdefault(measure, {})
        for name, value in sums.items():
            mine[name] = mine[name] + value if name in mine else value
    return total
