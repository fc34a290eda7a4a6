"""Callbacks: follow a run while it is in progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fairlead.core.records import State
from fairlead.engine.session import Session
from fairlead.run.history import History


@dataclass(frozen=True)
class RoundView:
    """A read-only view of a run after a round."""

    round: int
    """Rounds finished."""
    state: State
    """The server's state."""
    session: Session = field(repr=False)

    @property
    def x(self) -> Tensor:
        """The model."""
        return self.state.x

    @property
    def buffers(self) -> Tensor:
        """The model's buffers."""
        return self.session.buffers

    def client_states(self, clients: ArrayLike | None = None) -> Any:
        """What the given clients (by default all) keep: a record with one row per client; None if the method
        keeps nothing. Reading changes nothing; of several ranks, each sees only its own clients."""
        return client_states(self.session, clients)

    @property
    def clients(self) -> NDArray[np.int64]:
        """The clients that have kept something so far."""
        return self.session.states.touched


def client_states(session: Session, clients: ArrayLike | None) -> Any:
    """What the given clients of a session (by default all) keep."""
    everyone = np.arange(session.task.clients)
    return session.states.read(everyone if clients is None else np.asarray(clients, np.int64))


class Callback:
    """Override what you need and pass it to `train(callbacks=[…])`.

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
        """Before the first round, with the description of the run (as JSON) and, if it resumes an
        earlier one, the rows recorded so far."""

    def row(self, row: Mapping[str, float]) -> bool | None:
        """After every evaluation; True ends the run."""

    def round(self, view: RoundView) -> bool | None:
        """After every round, with the server's state and the clients'; True ends the run."""

    def end(self, run: Any) -> None:
        """After the last round, also if the run diverged or was interrupted."""

    def failed(self, error: BaseException) -> None:
        """Instead of `end`, if an error ended the run."""
