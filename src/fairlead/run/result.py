"""The result of a training run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fairlead.core.method import Algorithm
from fairlead.core.records import State
from fairlead.describe import described
from fairlead.engine.accounting import Counters, Ledger
from fairlead.engine.personal import client_metrics
from fairlead.engine.resources import Needs
from fairlead.engine.session import Session
from fairlead.engine.simulate import Preparation, Simulate
from fairlead.errors import Diverged
from fairlead.figures.plots import run_figure
from fairlead.run.about import about
from fairlead.run.average import Average
from fairlead.run.callbacks import Callback, client_states
from fairlead.run.folder import Recorder
from fairlead.run.history import History
from fairlead.run.loop import Ending, Plan
from fairlead.run.show import html, sentence
from fairlead.task.model import trained_model
from fairlead.task.per_client import ClientMetrics, PerClient, check_per_client
from fairlead.task.task import Task


@dataclass(repr=False)
class Run:
    """The result of a training run; a notebook shows it as a table and a curve.

    >>> import fairlead as fl
    >>> run = fl.train(fl.problems.theorem2(), fl.Scaffold(lr=0.1), rounds=5, steps=10)
    >>> run.rounds, run.stopped, run.counters.exchanges, run.ledger.up
    (5, 'rounds', 5, 1280)
    >>> run.history["round"]
    array([0., 1., 2., 3., 4., 5.])
    """

    task: Task
    algorithm: Algorithm[Any, Any]
    history: History
    state: State
    """The server's state at the end; if the run diverged, before the round in which this was detected."""
    session: Session = field(repr=False)
    stopped: Ending
    """Why the run ended."""
    rounds: int
    """Rounds finished."""
    seconds: float
    """Time spent in rounds, without evaluation."""
    error: Diverged | None = None
    average: Average | None = field(default=None, repr=False)
    """The mean of the iterates, if it was kept."""
    plan: Plan = field(kw_only=True, repr=False)
    config: Mapping[str, Any] = field(kw_only=True, repr=False)
    callbacks: Sequence[Callback] = field(default=(), kw_only=True)

    def __repr__(self) -> str:
        return f"<Run: {sentence(self)}>"

    def _repr_html_(self) -> str:
        return html(self)

    def plot(self, path: str | Path | None = None, x: str = "round") -> Any:
        """The curves of the two main metrics against rounds, or another column of the history."""
        return run_figure(self, path, x)

    @property
    def x(self) -> Tensor:
        """The trained vector."""
        return self.state.x

    @property
    def counters(self) -> Counters:
        """Oracle calls and exchanges."""
        return self.session.accounts.counters

    @property
    def ledger(self) -> Ledger:
        """Every bit sent."""
        return self.session.accounts.ledger

    @property
    def engine(self) -> str:
        """How the run was executed, and why."""
        return self.session.report

    @property
    def needs(self) -> Needs:
        """The memory that the run needed."""
        first = self.plan.sampler.cohort(self.plan.seed, 0, self.task.clients)
        return Preparation(Simulate(), self.session, first, self.plan.rounds).needs

    def client_states(self, clients: ArrayLike | None = None) -> Any:
        """What the given clients (by default all) keep at the end: a record with one row per client; None if
        the method keeps nothing.

        >>> import fairlead as fl
        >>> run = fl.train(fl.problems.theorem2(), fl.Scaffold(lr=0.1), rounds=2, steps=3)
        >>> run.client_states([0]).c.shape
        torch.Size([1, 1])
        """
        return client_states(self.session, clients)

    def model(self, transform: bool = True) -> torch.nn.Module:
        """The trained model: the task's module with the final weights and buffers.

        transform: if the task has an input transform, the model applies it, so that it takes inputs as they are in
            the data (images as bytes); False for the plain module, which expects transformed inputs.
        """
        return trained_model(self.task, self.x, self.session.buffers, transform)

    def per_client(self, setting: PerClient | None = None) -> ClientMetrics:
        """The metrics of every client on its own test data, with the final model; `fl.PerClient(steps=5)` also with
        personalised ones. By default as in the run. With several ranks, call it on all of them.

        >>> import fairlead as fl
        >>> x, y = torch.eye(4).repeat(5, 1), torch.arange(4).repeat(5)
        >>> task = fl.Task.from_arrays(x, y, client=y // 2, hold_out=0.4)
        >>> run = fl.train(task, fl.FedAvg(lr=1.0), rounds=20)
        >>> run.per_client()["client_accuracy"]
        array([1., 1.])
        """
        setting = setting or self.plan.per_client or PerClient()
        check_per_client(self.task, setting, getattr(self.algorithm, "lr", None))
        return client_metrics(self.session, self.x, setting, self.task)

    def about(self) -> dict[str, Any]:
        """Method, task, split, settings and versions, as JSON."""
        return about(self)

    def write(
        self,
        folder: str | Path,
        more: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the run's description and history to a folder (see `fl.runs`)."""
        recorder = Recorder(folder, more=more, overwrite=overwrite)
        recorder.begin({**self.about(), "after": -1}, self.history)
        recorder.end(self)

    def save(self, path: str | Path) -> None:
        """Write the trained model's parameters and buffers as safetensors, for `module.load_state_dict`. The file's
        metadata say under "fairlead" what was trained, and which transform its inputs need."""
        from safetensors.torch import save_file

        values = self.model(transform=False).state_dict()
        about = {"method": type(self.algorithm).__name__, "task": self.task.name,
                 "rounds": self.rounds, "transform": described(self.task.transform)}  # fmt: skip
        tensors = {name: t.detach().clone() for name, t in values.items()}
        save_file(tensors, str(path), {"fairlead": json.dumps(about)})

    def rounds_to(self, metric: str, target: float) -> int | None:
        """The first recorded round that reached a target."""
        return self.history.first_reach(metric, target)

    def raise_if_diverged(self) -> Run:
        """Raise an exception if the run diverged."""
        if self.error is not None:
            raise self.error
        return self
