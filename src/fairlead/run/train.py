"""The training loop, readable from top to bottom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.core.method import Algorithm
from fairlead.data.batches import Batches, BatchTable, Geometric
from fairlead.data.sampling import Cohorts, Dropouts, as_sampler
from fairlead.describe import described
from fairlead.engine.processes.workers import AUTO, Workers
from fairlead.engine.simulate import Mode, Simulate
from fairlead.errors import FairleadError
from fairlead.probe import Measure, Probe
from fairlead.progress import Progress
from fairlead.run.alone import alone
from fairlead.run.average import Averaging
from fairlead.run.callbacks import AnyCallback, Callback, as_callbacks
from fairlead.run.checkpoint import Checkpoints, Keeper
from fairlead.run.checks import check, check_resume
from fairlead.run.folder import CHECKPOINTS, Recorder
from fairlead.run.interrupt import Stop
from fairlead.run.loop import Loop, Plan
from fairlead.run.processes import processes_of
from fairlead.run.result import Run
from fairlead.run.resume import begins_with_all, has_ended, to_go_on, workers_before
from fairlead.task.per_client import PerClient
from fairlead.task.task import Task


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
    workers: Workers = "auto",
    eval_every: int = 1,
    objective: bool = True,
    drift: bool = False,
    measures: Sequence[Measure | Probe] = (),
    every: int | None = None,
    average: Averaging = None,
    target: Mapping[str, float] | None = None,
    per_client: bool | PerClient | None = None,
    progress: bool | Progress | None = None,
    callbacks: Sequence[AnyCallback] = (),
    out: str | Path | Recorder | None = None,
    checkpoints: str | Path | Checkpoints | None = None,
    resume: Run | str | Path | None = None,
) -> Run:
    """Train `task` with `algorithm`.

    cohort: clients per round: None for all, a number, a fraction, a sampler, or a list of cohorts.
    batch_size, steps, epochs, replacement, drop_last: the local work, see `Batches`;
        `batches` replays explicit batch indices instead.
    weighting: "uniform", "size", or one weight per client: the weights of f = Σ p_i f_i, used for
        every mean of the run.
    dropout: the share of sampled clients that do not answer, or a list of lost clients per round.
    workers: how many processes share the clients of a round, on a CPU, with one thread each: this one
        and others started for the run; "auto" is one per core if a round is enough work for them, otherwise one.
    eval_every: rounds between evaluations; objective: whether they compute f on all data;
        drift: whether they measure drift diversity, for the whole model and per layer;
        measures: what else to measure on clients, see `fl.measure`; every: rounds between measures, a multiple of
        `eval_every`, by default that.
    average: "uniform", or a decay: also keep the mean of the iterates, with weights (1 − decay)^−r, and record its
        loss as `average_loss`; see `Run.average`.
    per_client: record the metrics of every client on its own test data, as mean, standard deviation, worst tenth
        and histogram over clients; `fl.PerClient(steps=5)` also those of personalised models.
    target: stop at the first evaluation that reaches it, for example {"accuracy": 0.9}.
    callbacks: follow the run while it is in progress: functions of the round, or see `fl.Callback`.
    out: a folder for the run's description, its history (written as it grows) and its checkpoints; see
        `fl.runs`. It must not already hold a run, unless that run is resumed.
    checkpoints: a folder, or `fl.Checkpoints(folder, every=…)`, from which the run can be resumed;
        Ctrl-C and SIGTERM then end the run after the current round, with a checkpoint.
    resume: a run with the same settings and fewer rounds, or a folder of a run or of checkpoints, to
        continue to the same final bytes; "auto" continues if there is a checkpoint and starts otherwise.
        A folder's run that has ended is returned as it is; its callbacks are called only if its end
        was not recorded.

    >>> import fairlead as fl
    >>> run = fl.train(fl.problems.theorem2(gradient=10), fl.Scaffold(lr=0.1), rounds=100, steps=10)
    >>> bool(run.history.last("distance") < 1e-5)
    True
    """
    plan, local = planned(
        rounds=rounds, cohort=cohort, batch_size=batch_size, steps=steps, epochs=epochs,
        replacement=replacement, drop_last=drop_last, batches=batches, weighting=weighting,
        dropout=dropout, seed=seed, eval_every=eval_every, objective=objective, drift=drift,
        measures=measures, every=every, average=average, target=target, per_client=per_client,
    )  # fmt: skip
    setting = engine if isinstance(engine, Simulate) else Simulate(engine)
    if type(setting) is Simulate and has_ended(out, checkpoints, resume, rounds):
        workers = 1  # nothing is left to do
    before = workers_before(out, checkpoints, resume) if workers in AUTO else None
    with (
        alone(),
        processes_of(workers, setting, task, algorithm, plan, local, before, out) as (group, why),
    ):
        bar = Progress.of(progress, plan.rounds, type(algorithm).__name__)
        how = group.engine(setting)
        loop = prepared(task, algorithm, plan, local, how, bar, callbacks, out, checkpoints, resume)
        loop.session.remark = why or loop.session.remark
        stop = Stop(loop.keeper is not None and group.first)
        with loop.bar, stop, loop.going(stop):
            loop.begin()
            while loop.goes_on():
                loop.round()
            group.collect(loop.session)
    return finished(loop)


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
    measures: Sequence[Measure | Probe] = (),
    every: int | None = None,
    average: Averaging = None,
    target: Mapping[str, float] | None = None,
    per_client: bool | PerClient | None = None,
) -> tuple[Plan, Batches]:
    """The settings of `train`, as a plan and the local work."""
    if batches is not None and (batch_size, steps, epochs) != (None, None, None):
        raise FairleadError("batches and batch_size, steps or epochs are both given: keep one")
    local = batches if isinstance(batches, Batches) else Batches(
        batch_size, steps, epochs, replacement, drop_last, batches
    )  # fmt: skip
    rounds, seed, eval_every = (
        int(n) if isinstance(n, np.integer) else n for n in (rounds, seed, eval_every)
    )
    plan = Plan(
        rounds, as_sampler(cohort), dropout, seed, weighting, eval_every, objective, drift,
        tuple(measures), target, PerClient.of(per_client), every, average,
    )  # fmt: skip
    return plan, local


def prepared(
    task: Task,
    algorithm: Algorithm[Any, Any],
    plan: Plan,
    local: Batches,
    engine: Mode | Simulate = "auto",
    bar: Progress | None = None,
    callbacks: Sequence[AnyCallback] = (),
    out: str | Path | Recorder | None = None,
    checkpoints: str | Path | Checkpoints | None = None,
    resume: Run | str | Path | None = None,
    fingerprint: Mapping[str, Any] | None = None,
) -> Loop:
    """A checked run before its first round; `fingerprint` is the task's, if it is known."""
    try:
        return _prepared(
            task, algorithm, plan, local, engine, bar, as_callbacks(callbacks), out, checkpoints, resume,
            fingerprint,
        )  # fmt: skip
    except FairleadError as error:
        if isinstance(out, Recorder):
            out.failed(error)
        raise


def _prepared(
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
    fingerprint: Mapping[str, Any] | None,
) -> Loop:
    weights = task.client_weights(plan.weighting)
    check(task, algorithm, plan, local)
    settled = algorithm.settled(task.constants)
    algorithm = settled.bind(task.layers, task.domain).to(task.device)
    setting = engine if isinstance(engine, Simulate) else Simulate(engine)
    most = (
        task.clients if begins_with_all(algorithm) else plan.sampler.most(task.clients, plan.rounds)
    )
    session = setting.open(task, algorithm, local, weights, plan.seed, most)
    config = {
        "task": None, "method": described(algorithm), "batches": described(local),
        "cohort": described(plan.sampler), "weights": described(weights),
        "dropout": described(plan.dropout), "seed": plan.seed,
    }  # fmt: skip
    if plan.average is not None:
        config["average"] = plan.average
    again = resume == "auto"
    if again:
        resume = to_go_on(out, checkpoints)
    from_folder = isinstance(resume, str | Path)
    if out is not None:
        folder = out.folder if isinstance(out, Recorder) else Path(out)
        checkpoints = checkpoints or folder / CHECKPOINTS
    if checkpoints is not None or from_folder:
        config["task"] = fingerprint or task.fingerprint()
    keeper = None
    if checkpoints is not None:
        given = checkpoints if isinstance(checkpoints, Checkpoints) else Checkpoints(checkpoints)
        fresh = resume is None and out is None and session.group.first
        own = out is None and session.group.first  # else the run's folder is locked
        keeper = Keeper(given, config, getattr(session.group, "ranks", None), fresh, own)
    if not session.group.first:  # only the first process reports and writes
        out, callbacks, bar = None, (), None
    if out is not None and not isinstance(out, Recorder):
        out = Recorder(out, resume=from_folder, overwrite=again)
    callbacks = callbacks if out is None else [out, *callbacks]
    bar = bar or Progress(False, plan.rounds, "")
    loop = Loop(task, algorithm, plan, setting, session, config, callbacks, keeper, bar)
    try:
        if isinstance(resume, str | Path):
            loop.restore(resume, ended=again)
        elif resume is not None:
            check_resume(resume, config, task, plan)
            loop.follow(resume)
    except FairleadError as error:
        loop.fail(error)
        raise
    return loop


def finished(loop: Loop) -> Run:
    """The result of a run that has ended; its callbacks are informed."""
    c, why = loop, loop.stopped or "rounds"
    run = Run(
        c.task, c.algorithm, c.history, c.state, c.session, why, c.done, c.clock, c.error,
        c.average, plan=c.plan, config=c.config, callbacks=c.callbacks,
    )  # fmt: skip
    own = [callback for callback in c.callbacks if isinstance(callback, Recorder)]
    try:
        for callback in c.callbacks:
            if callback not in own:
                callback.end(run)
    except BaseException as error:
        for recorder in own:
            recorder.failed(error)
        raise
    for recorder in own:  # the last to know: a run that ended in its folder has ended for all
        recorder.end(run)
    return run
