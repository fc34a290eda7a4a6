"""Callbacks: follow a run while it is in progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fairlead.core.records import State
from fairlead.engine.session import Session
from fairlead.errors import FairleadError
from fairlead.run.history import History
from fairlead.task.model import trained_model
from fairlead.task.per_client import ClientMetrics
from fairlead.task.task import Task


@dataclass(frozen=True)
class RoundView:
    """A read-only view of a run after a round."""

    round: int
    """Rounds finished."""
    state: State
    """The server's state."""
    session: Session = field(repr=False)
    history: History = field(repr=False)
    """The evaluations so far."""
    row: Mapping[str, float] = field(repr=False)
    """The last evaluation."""
    buffers: Tensor = field(repr=False)
    """The model's buffers."""

    @property
    def x(self) -> Tensor:
        """The model as a vector."""
        return self.state.x

    def model(self, transform: bool = True) -> nn.Module:
        """The model as a module of its own; transform as in `Run.model`."""
        return trained_model(self.task, self.x, self.buffers, transform)

    @property
    def task(self) -> Task:
        """What is trained."""
        return self.session.task

    @property
    def evaluated(self) -> bool:
        """Whether this round was evaluated."""
        return self.row["round"] == self.round

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
    """Override what you need and pass it to `train(callbacks=[…])`. A plain function is enough to see every round:
    it is called as `round` is.

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
    >>> seen = []
    >>> run = fl.train(task, fl.FedAvg(lr=0.1), rounds=3, callbacks=[lambda view: seen.append(view.round)])
    >>> seen
    [1, 2, 3]
    """

    def begin(self, about: Mapping[str, Any], history: History) -> None:
        """Before the first round, with the description of the run (as JSON) and, if it resumes an
        earlier one, the rows recorded so far."""

    def row(self, row: Mapping[str, float]) -> bool | None:
        """After every evaluation; True ends the run."""

    def clients(self, found: ClientMetrics) -> None:
        """With `train(per_client=…)`, before every `row`: the metrics of every client."""

    def measured(self, found: Any) -> None:
        """With probes in `train(measures=…)`, before the `row` with its numbers: what each found, as `fl.measure.take`
        returns it."""

    def round(self, view: RoundView) -> bool | None:
        """After every round, with the server's state and the clients'; True ends the run."""

    def saved(self) -> dict[str, Tensor]:
        """What to keep in checkpoints."""
        return {}

    def restore(self, saved: Mapping[str, Tensor], view: RoundView) -> None:
        """What was kept, after `begin`, if a run is resumed; for a run that had ended, instead of it."""

    def end(self, run: Any) -> None:
        """After the last round, also if the run diverged or was interrupted."""

    def failed(self, error: BaseException) -> None:
        """Instead of `end`, if an error ended the run."""


AnyCallback: TypeAlias = Callback | Callable[[RoundView], bool | None]


class _Function(Callback):
    """A plain function that is called after every round."""

    def __init__(self, of: Callable[[RoundView], bool | None]) -> None:
        self.of = of

    def round(self, view: RoundView) -> bool | None:
        return self.of(view)


def as_callbacks(given: Sequence[AnyCallback]) -> list[Callback]:
    """Callbacks, also from plain functions."""
    for one in given:
        if isinstance(one, type) or not (isinstance(one, Callback) or callable(one)):
            raise FairleadError(
                f"the callback is {one!r}: pass a function of the round, or an object such as "
                "fl.EarlyStopping()"
            )
    return [one if isinstance(one, Callback) else _Function(one) for one in given]


def kept_of(callbacks: Sequence[Callback]) -> dict[str, dict[str, Tensor]]:
    """What callbacks keep in checkpoints, by their kind and number among their kind."""
    return {name: kept for name, one in named(callbacks).items() if (kept := one.saved())}


def named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Callbacks by their kind and number among their kind."""
    found: dict[str, Callback] = {}
    for one in callbacks:
        kind = type(one).__name__
        found[f"{kind}-{sum(name.startswith(f'{kind}-') for name in found)}"] = one
    return found
