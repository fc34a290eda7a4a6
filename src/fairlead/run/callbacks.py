"""Being told about a run while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.run.history import History
    from fairlead.run.train import Run


class Callback:
    """Override what is of use and give it to `train(callbacks=[…])`.

    >>> import fairlead as fl
    >>> class Patience(fl.Callback):
    ...     best, waited = float("inf"), 0
    ...     def row(self, row):
    ...         self.waited = 0 if row["loss"] < self.best else self.waited + 1
    ...         self.best = min(self.best, row["loss"])
    ...         return self.waited >= 5
    >>> task = fl.problems.theorem2(gradient=10)
    >>> fl.train(task, fl.FedAvg(lr=0.1), rounds=500, steps=10, callbacks=[Patience()]).stopped
    'callback'
    """

    def begin(self, about: Mapping[str, Any], history: History) -> None:
        """Before the first round, with what the run is (as JSON takes it) and, where it goes on
        from an earlier one, the rows recorded so far."""

    def row(self, row: Mapping[str, float]) -> bool | None:
        """After every evaluation; True ends the run."""

    def end(self, run: Run) -> None:
        """After the last round, also where the run diverged or was interrupted."""

    def failed(self, error: BaseException) -> None:
        """Instead of `end`, where an error ended the run."""
