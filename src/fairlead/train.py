"""The training loop, readable from top to bottom."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairlead.algorithm import Algorithm, State
from fairlead.checkpoint import Checkpoints, Keeper, newest
from fairlead.data.batches import Batches, BatchTable, Geometric
from fairlead.describe import described
from fairlead.engine.clients import Counters
from fairlead.engine.ledger import Ledger
from fairlead.engine.simulate import Mode, Session, Simulate
from fairlead.errors import Diverged, FairleadError, unknown
from fairlead.history import History
from fairlead.losses import better_larger
from fairlead.progress import Progress
from fairlead.sampling import Cohorts, Dropouts, answered, as_sampler, check_dropout
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
    stopped: Literal["rounds", "target", "diverged", "interrupted"]
    """Why the run ended."""
    rounds: int
    """Rounds finished."""
    seconds: float
    """Time spent in rounds, without evaluation."""
    error: Diverged | None = None

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
        return self.session.report

    def model(self) -> torch.nn.Module:
        """The trained model: the task's module with the final weights and buffers."""
        model = self.task.twin().model
        values = self.task.state_dict(self.x, self.session.buffers)
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                tensor.copy_(values[name])
        return model.eval()

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
    target: Mapping[str, float] | None = None,
    progress: bool | Progress | None = None,
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
    eval_every: rounds between evaluations; objective: whether these compute f on all data.
    target: stop at the first evaluation that reaches it, for example {"accuracy": 0.9}.
    checkpoints: a folder, or `fl.Checkpoints(folder, every=…)`, for what it takes to go on after a stop;
        Ctrl-C and SIGTERM then end the run after the round they come in, with a checkpoint.
    resume: a run of the same settings with fewer rounds, or a folder of checkpoints, to go on from;
        it ends in the same bytes.

    >>> import fairlead as fl
    >>> run = fl.train(fl.problems.theorem2(gradient=10), fl.Scaffold(lr=0.1), rounds=100, steps=10)
    >>> bool(run.history.last("distance") < 1e-5)
    True
    """
    if batches is not None and (batch_size, steps, epochs) != (None, None, None):
        raise FairleadError("both batches and batch_size, steps or epochs are given: keep one")
    local = batches if isinstance(batches, Batches) else Batches(
        batch_size, steps, epochs, replacement, drop_last, batches
    )  # fmt: skip
    sampler, weights = as_sampler(cohort), task.client_weights(weighting)
    _check(task, algorithm, rounds, local, eval_every, target, objective, weighting, seed)
    sampler.check(task.clients, rounds)
    check_dropout(dropout, rounds)

    algorithm = algorithm.bind(task.layers, task.domain)
    setting = engine if isinstance(engine, Simulate) else Simulate(engine)
    session = setting.open(task, algorithm, local, weights, seed)
    state = algorithm.init(task.start(seed)[0])
    history, bar = History(), Progress.of(progress, rounds, type(algorithm).__name__)
    clock, stopped, error, done, k = 0.0, "rounds", None, 0, 0
    keeper = None
    if checkpoints is not None or isinstance(resume, str | Path):
        config = {
            "task": task.fingerprint(), "method": described(algorithm), "batches": described(local),
            "cohort": described(sampler), "weights": described(weights),
            "dropout": described(dropout), "seed": seed,
        }  # fmt: skip
        if checkpoints is not None:
            given = (
                checkpoints if isinstance(checkpoints, Checkpoints) else Checkpoints(checkpoints)
            )
            keeper = Keeper(given, config)
        if isinstance(resume, str | Path):
            saved, wrong = newest(resume, config)
            for sentence in wrong:
                warnings.warn(f"passed over: {sentence}", stacklevel=2)
            state, history = saved.restore(state, session), saved.history()
            clock, done = saved.seconds, saved.round
            if done >= rounds:
                raise FairleadError(f"the run in {resume} has {done} rounds already: ask for more")
    elif resume is not None:
        _check_resume(resume, task, algorithm, rounds, seed)
        session.continue_from(resume.session)
        kept = [row for row in resume.history.rows if row["round"] % eval_every == 0]
        state, history = resume.state, History(kept)
        clock, done = resume.seconds, resume.rounds

    def record(clients: int) -> dict[str, float]:
        found = task.evaluate(state.x, session.buffers, weighting, objective)
        counts, ledger = session.counters, session.ledger
        row = {"round": k, **found, "clients": clients, "gradients": counts.gradients,
               "communications": k * algorithm.communications(),
               "exchanges": counts.exchanges, "bits": ledger.up + ledger.down,
               "bits_up": ledger.up, "bits_down": ledger.down, "nominal_up": ledger.nominal_up,
               "seconds": clock}  # fmt: skip
        history.append(row)
        return row

    stop = Stop(keeper is not None)
    with torch.random.fork_rng(devices=_devices(task)), torch.no_grad(), bar, stop:
        try:
            session.prepare(sampler.cohort(seed, 0, task.clients))
            begin = time.perf_counter()
            if resume is None:
                state = algorithm.start(state, session.everyone())
            clock += _since(begin, task)
            row = record(0) if resume is None else history.rows[-1]
            for k in range(done + 1, rounds + 1):
                if target is not None and _reached(row, target):
                    stopped, k = "target", k - 1
                    break
                begin = time.perf_counter()
                torch.manual_seed(
                    (seed * 1_000_003 + k) % 2**63
                )  # dropout layers; all else is counted
                sampled = sampler.cohort(seed, k - 1, task.clients)
                ids = answered(sampled, dropout, seed, k - 1)
                session.counters.lost += len(sampled) - len(ids)
                before = state, session.buffers
                if len(ids):  # a round in which nobody answers changes nothing
                    clients = session.cohort(k - 1, ids, sampled)
                    state = algorithm.round(state, clients)
                    session.counters.steps += int(clients.draw.steps.max())
                look = k % eval_every == 0 or k == rounds
                clock += _since(begin, task, wait=look)
                if look:
                    row = record(len(ids))
                if _lost(state.x, row if look else {}, look):
                    error = Diverged(
                        f"{type(algorithm).__name__} diverged in round {k}: the model or its loss is "
                        "not finite; take a smaller step size"
                    )
                    (state, session.buffers), stopped = before, "diverged"
                    break
                bar.update(k, row)
                if keeper is not None and (stop.asked or keeper.due(k) or k == rounds):
                    keeper.write(k, state, session, history, clock)
                if stop.asked:
                    stopped = "interrupted"
                    break
            if target is not None and stopped == "rounds" and _reached(row, target):
                stopped = "target"
        finally:
            session.close()
    return Run(task, algorithm, history, state, session, stopped, k, clock, error)


def _check(
    task: Task,
    algorithm: Algorithm[Any, Any],
    rounds: int,
    local: Batches,
    eval_every: int,
    target: Mapping[str, float] | None,
    objective: bool,
    weighting: str | Sequence[float],
    seed: int,
) -> None:
    """Everything that can be refused before training."""
    if not isinstance(algorithm, Algorithm):
        raise FairleadError(
            f"the method is {algorithm!r}: give an object such as fl.FedAvg(lr=0.1)"
        )
    for name, count in (("rounds", rounds), ("eval_every", eval_every)):
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
        check_rate(name, rate, rounds, local.most_steps(task.sizes, rounds, seed))
    known = task.recorded(weighting, objective)
    for name in target or {}:
        if name not in known:
            raise unknown("metric for the target", name, known)


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


def _reached(row: Mapping[str, float], target: Mapping[str, float]) -> bool:
    return all(row[n] >= goal if better_larger(n) else row[n] <= goal for n, goal in target.items())


def _lost(x: Tensor, row: Mapping[str, float], look: bool) -> bool:
    """Whether the run left the finite numbers. On a GPU only looked at when evaluating, so that
    rounds do not wait for each other."""
    if not look and x.device.type != "cpu":
        return False
    return not math.isfinite(float(x.sum())) or not math.isfinite(row.get("loss", 0.0))


def _since(begin: float, task: Task, wait: bool = True) -> float:
    if wait and task.device.type == "cuda":
        torch.cuda.synchronize(task.device)
    return time.perf_counter() - begin


def _devices(task: Task) -> list[int]:
    return [task.device.index or 0] if task.device.type == "cuda" else []
