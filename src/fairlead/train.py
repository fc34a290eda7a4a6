"""The training loop, readable from top to bottom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead.algorithm import Algorithm, State
from fairlead.callbacks import Callback
from fairlead.checkpoint import Checkpoints, Keeper, listed
from fairlead.course import Course, Ending, Plan
from fairlead.data.batches import Batches, BatchTable, Geometric
from fairlead.describe import about, described
from fairlead.engine.clients import Counters
from fairlead.engine.ledger import Ledger
from fairlead.engine.simulate import Mode, Session, Simulate
from fairlead.errors import Diverged, FairleadError, unknown
from fairlead.history import History
from fairlead.progress import Progress
from fairlead.runs import CHECKPOINTS, Recorder
from fairlead.sampling import Cohorts, Dropouts, as_sampler, check_dropout
from fairlead.schedules import check_rate
from fairlead.stop import Stop
from fairlead.task import Task


@dataclass
class Run:
    """What a training run leaves behind."""

    task: Task
    algorithm: Algorithm[Any, Any]
    history: History
    state: State
    """The server's state at the end; if the run diverged, before the round in which that was seen."""
    session: Session = field(repr=False)
    stopped: Ending
    """Why the run ended."""
    rounds: int
    """Rounds finished."""
    seconds: float
    """Time spent in rounds, without evaluation."""
    error: Diverged | None = None
    plan: Plan = field(kw_only=True, repr=False)
    config: Mapping[str, Any] = field(kw_only=True, repr=False)

    @property
    def x(self) -> Tensor:
        """The trained vector."""
        return self.state.x

    @property
    def counters(self) -> Counters:
        """Oracle calls and exchanges."""
        return self.session.counters

    @property
    def ledger(self) -> Ledger:
        """Every bit that travelled."""
        return self.session.ledger

    @property
    def engine(self) -> str:
        """How the run was executed, and why so."""
        return self.session.told

    def model(self) -> torch.nn.Module:
        """The trained model: the task's module with the final weights and buffers."""
        model = self.task.twin().model
        values = self.task.state_dict(self.x, self.session.buffers)
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                tensor.copy_(values[name])
        return model.eval()

    def about(self) -> dict[str, Any]:
        """Method, task, split, settings and versions, as JSON takes them."""
        return about(self)

    def write(
        self,
        folder: str | Path,
        more: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Keep what the run is and what it recorded in a folder of its own (see `fl.runs`)."""
        recorder = Recorder(folder, more=more, overwrite=overwrite)
        recorder.begin({**self.about(), "after": -1}, self.history)
        recorder.end(self)

    def save(self, path: str | Path) -> None:
        """Write the trained model's parameters and buffers as safetensors."""
        from safetensors.torch import save_file

        values = self.model().state_dict()
        save_file({name: t.detach().clone() for name, t in values.items()}, str(path))

    def rounds_to(self, metric: str, target: float) -> int | None:
        """The first recorded round that reached a target."""
        return self.history.first_reach(metric, target)

    def raise_if_diverged(self) -> Run:
        """Turn divergence, which is recorded, into an exception."""
        if self.error is not None:
            raise self.error
        return self


def train(
    task: Task,
    algorithm: Algorithm[Any, Any],
    *,
    rounds: int,
    cohort: Cohorts = None,
    batch_size: int | float | None = None,
    steps: int | Sequence[int] | Geometric | None = None,
    epochs: int | None = None,
    replacement: bool = False,
    drop_last: bool = False,
    batches: Batches | BatchTable | None = None,
    weighting: str | Sequence[float] = "uniform",
    dropout: Dropouts = 0.0,
    seed: int = 0,
    engine: Mode | Simulate = "auto",
    eval_every: int = 1,
    objective: bool = True,
    drift: bool = False,
    target: Mapping[str, float] | None = None,
    progress: bool | Progress | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | Recorder | None = None,
    checkpoints: str | Path | Checkpoints | None = None,
    resume: Run | str | Path | None = None,
) -> Run:
    """Train `task` with `algorithm`.

    cohort: clients a round: None for all, a number, a fraction, a sampler, or a list of cohorts.
    batch_size, steps, epochs, replacement, drop_last: the local work, see `Batches`;
        `batches` replays explicit batch indices instead.
    weighting: "uniform", "size", or one weight a client: the weights of f = Σ p_i f_i, used for
        every mean of the run.
    dropout: the share of sampled clients that do not answer, or a list of lost clients a round.
    eval_every: rounds between evaluations; objective: whether these compute f on all data;
        drift: whether they measure the drift diversity, of the whole model and of each layer.
    target: stop at the first evaluation that reaches it, for example {"accuracy": 0.9}.
    callbacks: told about the run while it goes on, see `fl.Callback`.
    out: a folder that keeps the run: what it is, its history as it comes, its checkpoints; see
        `fl.runs`. It must not hold a run yet, unless the run goes on from there.
    checkpoints: a folder, or `fl.Checkpoints(folder, every=…)`, for what it takes to go on after a stop;
        Ctrl-C and SIGTERM then end the run after the round they come in, with a checkpoint.
    resume: a run of the same settings with fewer rounds, or a folder of a run or of checkpoints, to
        go on from; it ends in the same bytes. "auto" goes on if there is a checkpoint, else begins.

    >>> import fairlead as fl
    >>> run = fl.train(fl.problems.theorem2(gradient=10), fl.Scaffold(lr=0.1), rounds=100, steps=10)
    >>> bool(run.history.last("distance") < 1e-5)
    True
    """
    plan, local = planned(
        rounds=rounds, cohort=cohort, batch_size=batch_size, steps=steps, epochs=epochs,
        replacement=replacement, drop_last=drop_last, batches=batches, weighting=weighting,
        dropout=dropout, seed=seed, eval_every=eval_every, objective=objective, drift=drift,
        target=target,
    )  # fmt: skip
    bar = Progress.of(progress, rounds, type(algorithm).__name__)
    course = set_out(task, algorithm, plan, local, engine, bar, callbacks, out, checkpoints, resume)
    stop = Stop(course.keeper is not None)
    with course.bar, stop, course.going(stop):
        course.begin()
        while course.goes_on():
            course.round()
    return finished(course)


def planned(
    *,
    rounds: int,
    cohort: Cohorts = None,
    batch_size: int | float | None = None,
    steps: int | Sequence[int] | Geometric | None = None,
    epochs: int | None = None,
    replacement: bool = False,
    drop_last: bool = False,
    batches: Batches | BatchTable | None = None,
    weighting: str | Sequence[float] = "uniform",
    dropout: Dropouts = 0.0,
    seed: int = 0,
    eval_every: int = 1,
    objective: bool = True,
    drift: bool = False,
    target: Mapping[str, float] | None = None,
) -> tuple[Plan, Batches]:
    """The settings of `train` as what is the same for every round, and the local work."""
    if batches is not None and (batch_size, steps, epochs) != (None, None, None):
        raise FairleadError("both batches and batch_size, steps or epochs are given: keep one")
    local = batches if isinstance(batches, Batches) else Batches(
        batch_size, steps, epochs, replacement, drop_last, batches
    )  # fmt: skip
    plan = Plan(
        rounds, as_sampler(cohort), dropout, seed, weighting, eval_every, objective, drift, target
    )
    return plan, local


def set_out(
    task: Task,
    algorithm: Algorithm[Any, Any],
    plan: Plan,
    local: Batches,
    engine: Mode | Simulate = "auto",
    bar: Progress | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | Recorder | None = None,
    checkpoints: str | Path | Checkpoints | None = None,
    resume: Run | str | Path | None = None,
) -> Course:
    """A run before its first round, with everything checked."""
    try:
        return _set_out(
            task, algorithm, plan, local, engine, bar, callbacks, out, checkpoints, resume
        )
    except FairleadError as error:
        if isinstance(out, Recorder):
            out.failed(error)
        raise


def _set_out(
    task: Task,
    algorithm: Algorithm[Any, Any],
    plan: Plan,
    local: Batches,
    engine: Mode | Simulate,
    bar: Progress | None,
    callbacks: Sequence[Callback],
    out: str | Path | Recorder | None,
    checkpoints: str | Path | Checkpoints | None,
    resume: Run | str | Path | None,
) -> Course:
    weights = task.client_weights(plan.weighting)
    _check(task, algorithm, plan, local)
    algorithm = algorithm.bind(task.layers, task.domain)
    setting = engine if isinstance(engine, Simulate) else Simulate(engine)
    session = setting.open(task, algorithm, local, weights, plan.seed)
    config = {
        "task": None, "method": described(algorithm), "batches": described(local),
        "cohort": described(plan.sampler), "weights": described(weights),
        "dropout": described(plan.dropout), "seed": plan.seed,
    }  # fmt: skip
    again = resume == "auto"
    if again:
        resume = _to_go_on(out, checkpoints)
    from_folder = isinstance(resume, str | Path)
    if out is not None:
        folder = out.folder if isinstance(out, Recorder) else Path(out)
        checkpoints = checkpoints or folder / CHECKPOINTS
    if checkpoints is not None or from_folder:
        config["task"] = task.fingerprint()
    keeper = None
    if checkpoints is not None:
        given = checkpoints if isinstance(checkpoints, Checkpoints) else Checkpoints(checkpoints)
        fresh = resume is None and out is None and session.first
        keeper = Keeper(given, config, getattr(session, "ranks", None), fresh)
    if not session.first:  # one of several processes, and another one tells and writes
        out, callbacks, bar = None, (), None
    if out is not None and not isinstance(out, Recorder):
        out = Recorder(out, resume=from_folder, overwrite=again)
    callbacks = callbacks if out is None else [out, *callbacks]
    bar = bar or Progress(False, plan.rounds, "")
    course = Course(task, algorithm, plan, session, config, callbacks, keeper, bar)
    try:
        if isinstance(resume, str | Path):
            course.restore(resume)
        elif resume is not None:
            _check_resume(resume, task, algorithm, plan.rounds, plan.seed)
            course.follow(resume)
    except FairleadError as error:
        course.fail(error)
        raise
    return course


def _to_go_on(
    out: str | Path | Recorder | None, checkpoints: str | Path | Checkpoints | None
) -> Path | None:
    """The folder to go on from, if there is a checkpoint in it."""
    if isinstance(checkpoints, Checkpoints):
        folder = Path(checkpoints.folder)
    elif checkpoints is not None:
        folder = Path(checkpoints)
    elif out is not None:
        folder = (out.folder if isinstance(out, Recorder) else Path(out)) / CHECKPOINTS
    else:
        raise FairleadError('resume="auto" needs a folder: give out=… or checkpoints=…')
    return folder if listed(folder) else None


def finished(course: Course) -> Run:
    """What a run that has ended leaves behind; its callbacks are told."""
    c, why = course, course.stopped or "rounds"
    run = Run(
        c.task, c.algorithm, c.history, c.state, c.session, why, c.done, c.clock, c.error,
        plan=c.plan, config=c.config,
    )  # fmt: skip
    for callback in c.callbacks:
        callback.end(run)
    return run


def _check(task: Task, algorithm: Algorithm[Any, Any], plan: Plan, local: Batches) -> None:
    """Everything that can be refused before training."""
    if not isinstance(algorithm, Algorithm):
        raise FairleadError(
            f"the method is {algorithm!r}: give an object such as fl.FedAvg(lr=0.1)"
        )
    for name, count in (("rounds", plan.rounds), ("eval_every", plan.eval_every)):
        if not isinstance(count, int) or count < 1:
            raise FairleadError(f"{name} is {count}: take a whole number, at least 1")
    local.check(task.sizes)
    single = np.flatnonzero(local.smallest(task.sizes) == 1)
    if task.needs_pairs and len(single):
        raise FairleadError(
            f"client {single[0]} has a batch of one sample, on which BatchNorm1d is not defined: "
            "set drop_last=True, or another batch size"
        )
    for name, rate in algorithm.rates().items():
        check_rate(name, rate, plan.rounds, local.most_steps(task.sizes, plan.rounds, plan.seed))
    known = task.recorded(plan.weighting, plan.objective)
    for name in plan.target or {}:
        if name not in known:
            raise unknown("metric for the target", name, known)
    plan.sampler.check(task.clients, plan.rounds)
    check_dropout(plan.dropout, plan.rounds)


def _check_resume(
    run: Run, task: Task, algorithm: Algorithm[Any, Any], rounds: int, seed: int
) -> None:
    """Refuse to go on from a run of other settings."""
    if run.stopped == "diverged" or run.rounds >= rounds:
        raise FairleadError(
            f"the run to resume diverged or has {run.rounds} rounds already: ask for more"
        )
    fresh = algorithm.init(task.start(seed)[0])
    same = (type(run.algorithm), run.session.seed, run.task.dim, run.task.clients)
    asked = (type(algorithm), seed, task.dim, task.clients)
    if same != asked or _fields(fresh) != _fields(run.state):
        raise FairleadError(
            "the run to resume has another method, seed or task: resume with its own"
        )


def _fields(state: State) -> set[str]:
    """What a state is made of; an optimizer's slots come with its first step."""
    return {name for name in state.tensors() if "slots/" not in name}
