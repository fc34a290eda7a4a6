"""The processes of a run, as its session sees them. One process is the plain case."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fairlead.engine.state.store import ClientStore
from fairlead.task.evaluation import Spread


class Group:
    """One process, which has all clients."""

    size = 1
    first = True
    """Whether this process writes and reports."""
    spread: Spread | None = None
    """How evaluations are shared."""

    @property
    def several(self) -> bool:
        """Whether there are other processes."""
        return self.size > 1

    @property
    def total(self) -> Any:
        """A function that sums numbers over processes, where there are several."""
        return None

    def agree(self, *asked: bool) -> list[bool]:
        """What any of the processes asks for."""
        return list(asked)

    def evaluates(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some clients that this process evaluates."""
        return ids

    def check_alike(self, x: Tensor) -> None:
        """Refuse to go on where the processes have different models."""

    def tell(self, value: Any) -> Any:
        """What the first process gives."""
        return value

    def follow(self, other: Group) -> None:
        """Have clients where an earlier run had them."""

    def take_rows(self, into: ClientStore[Any], rows: ClientStore[Any]) -> None:
        """Copy the rows of this process's clients from another run."""
        into.take(rows, rows.touched)

    def load_rows(self, store: ClientStore[Any], rows: dict[str, Tensor]) -> None:
        """Put the rows of this process's clients back."""
        store.load(rows)

    def part(self, store: ClientStore[Any]) -> NDArray[np.int64]:
        """The clients whose rows this process writes into a checkpoint."""
        return store.touched

    def wrote(self, ids: NDArray[np.int64]) -> None:
        """Note that these clients have a state now."""

    def saved(self) -> dict[str, Tensor]:
        """Which process has which clients, where there are several."""
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Have clients where they were: equal bytes need equal shares."""
