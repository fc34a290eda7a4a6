"""Trials in an Optuna storage that several processes share.

A process claims a trial by storing it as running, in one transaction; if an earlier trial has the same
settings, it then marks its own as failed. So no trial is run twice. While it works it updates a
heartbeat in the trial; a trial whose heartbeat stops, or whose process has ended on this machine, is
marked as failed and run again by another process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import sqlalchemy.exc
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, Trial, TrialState

from fairlead.errors import FairleadError
from fairlead.run.same import difference
from fairlead.study.tuning.objective import Aim, Outcome, Tried, stored
from fairlead.study.tuning.space import Range, Searched, Space

BEAT, GRACE, POLL = (
    5.0,
    30.0,
    0.2,
)  # seconds: heartbeat interval, heartbeat timeout, polling interval
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


@contextlib.contextmanager
def opened(storage: str | Path | None) -> Iterator[Any]:
    """The storage at a URL or in an SQLite file; in memory with None."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if storage is None:
        yield optuna.storages.InMemoryStorage()
        return
    url = storage if isinstance(storage, str) else f"sqlite:///{storage.resolve()}"
    connection = _connected(url.replace("{", "{{").replace("}", "}}"))
    try:
        yield connection
    finally:
        connection.remove_session()
        connection.engine.dispose()


def _connected(url: str) -> optuna.storages.RDBStorage:
    options: dict[str, Any] = {}
    address = url.split("@")[-1]  # without a password
    if url.startswith("sqlite"):
        options = {"connect_args": {"timeout": 60}}
    for attempt in range(10):
        try:
            return optuna.storages.RDBStorage(url, options)
        except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            # another process may be creating the tables
            if attempt == 9 or isinstance(error, sqlalchemy.exc.ArgumentError):
                shown = str(error).splitlines()[0]
                raise FairleadError(f"the storage {address} cannot be opened: {shown}") from error
            time.sleep(POLL)
        except ImportError as error:
            raise FairleadError(f"the storage {address} needs a driver: {error}") from error
    raise AssertionError


class Seeded(BaseSampler):
    """A sampler whose draws are a function of the seed and of the earlier trials; one whose process was killed is no
    trial, so that a study that is continued draws what it would have drawn."""

    def __init__(self, kind: type[TPESampler] | type[RandomSampler], seed: int) -> None:
        self.kind, self.seed = kind, seed
        self.inner: BaseSampler = kind(seed=seed)

    def before_trial(self, study: Any, trial: FrozenTrial) -> None:
        trials = study.get_trials(deepcopy=False)
        earlier = [t for t in trials if t.number < trial.number and t.state != TrialState.FAIL]
        drawn = np.random.SeedSequence([self.seed, len(earlier)]).generate_state(1)
        self.inner = self.kind(seed=int(drawn[0]))
        self.inner.before_trial(study, trial)

    def infer_relative_search_space(self, study: Any, trial: FrozenTrial) -> dict[str, Any]:
        return self.inner.infer_relative_search_space(study, trial)

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Any, trial: Any, param_name: str, param_distribution: Any
    ) -> Any:
        return self.inner.sample_independent(study, trial, param_name, param_distribution)


@dataclass
class Claimed:
    """A trial that this process runs."""

    trial: Trial
    settings: dict[str, Any]


class Study:
    """The trials of one method."""

    def __init__(
        self,
        label: str,
        storage: Any,
        aim: Aim,
        space: Space,
        *,
        sampler: str,
        seed: int,
        trials: int,
        warmup: int,
    ) -> None:
        self.aim, self.space, self.sampler = aim, space, sampler
        self.shared = isinstance(storage, optuna.storages.RDBStorage)
        self.storage = storage
        self.points = space.points() if sampler == "grid" else []
        self.total = len(self.points) or (trials if space.parts else 1)
        self.worker = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.mine: set[int] = set()
        self.seen: dict[int, tuple[Any, float]] = {}
        kind = TPESampler if sampler == "tpe" else RandomSampler
        self.study = optuna.create_study(
            storage=storage, study_name=label, load_if_exists=True, sampler=Seeded(kind, seed),
            pruner=optuna.pruners.MedianPruner(n_warmup_steps=warmup), direction="maximize" if aim.larger else "minimize",
        )  # fmt: skip

    def check(self, about: Mapping[str, Any]) -> None:
        """Reject a stored study with different settings."""
        known = self.study.user_attrs.get("about")
        if known is None:
            self.study.set_user_attr("about", dict(about))
            return
        other = [n for n in about if difference("", known.get(n), about[n]) is not None]
        if other:
            raise FairleadError(
                f"the study '{self.study.study_name}' was started with a different "
                f"{' and '.join(other)}: use another folder or storage, or the original settings"
            )

    # -- claiming trials ------------------------------------------------------------------------

    def claim(self, most: int) -> list[Claimed]:
        """At most `most` trials to run; none if all are finished or claimed by others."""
        trials = self._trials()
        if self.sampler == "grid":
            return self._claim_points(trials, most)
        active = sum(trial.state != TrialState.FAIL for trial in trials)
        found = [self._claim_drawn() for _ in range(min(most, self.total - active))]
        return [claimed for claimed in found if claimed is not None]

    def wait(self) -> None:
        """Wait for other processes to finish their trials."""
        time.sleep(POLL)

    def _claim_points(self, trials: Sequence[FrozenTrial], most: int) -> list[Claimed]:
        active = [_settings(trial) for trial in trials if trial.state != TrialState.FAIL]
        free = [point for point in self.points if point not in active][:most]
        distributions = {name: self._distribution(part) for name, part in self.space.parts.items()}
        for point in free:
            trial = optuna.trial.create_trial(
                state=TrialState.RUNNING, params=point, distributions=distributions,
                user_attrs={"worker": self.worker, "settings": point},
            )  # fmt: skip
            self.study.add_trial(trial)
        found, before = [], []
        for trial in self.study.get_trials(deepcopy=False) if free else []:
            if trial.state == TrialState.RUNNING and trial.user_attrs.get("worker") == self.worker:
                if _settings(trial) in before:
                    self.study.tell(trial.number, state=TrialState.FAIL)
                    continue
                found.append(Claimed(Trial(self.study, trial._trial_id), _settings(trial)))
                self.mine.add(trial.number)
            if trial.state != TrialState.FAIL:
                before.append(_settings(trial))
        return found

    def _claim_drawn(self) -> Claimed | None:
        distributions = {name: self._distribution(part) for name, part in self.space.parts.items()}
        trial = self.study.ask(distributions)
        trial.set_user_attr("worker", self.worker)
        trial.set_user_attr("settings", trial.params)
        earlier = [t for t in self.study.get_trials(deepcopy=False) if t.number < trial.number]
        if sum(t.state != TrialState.FAIL for t in earlier) >= self.total:
            self.study.tell(trial, state=TrialState.FAIL)
            return None
        self.mine.add(trial.number)
        return Claimed(trial, trial.params)

    def _distribution(self, part: Searched) -> BaseDistribution:
        if isinstance(part, Range) and part.whole:
            return IntDistribution(int(part.low), int(part.high), log=part.log)
        if isinstance(part, Range):
            return FloatDistribution(part.low, part.high, log=part.log)
        if self.sampler == "grid" and part.numeric:  # so that a grid can be extended later
            return FloatDistribution(min(part.samples()), max(part.samples()))
        return CategoricalDistribution(part.samples())

    def _trials(self) -> list[FrozenTrial]:
        """All trials, after marking those of dead processes as failed."""
        trials = self.study.get_trials(deepcopy=False)
        dead = [trial for trial in trials if self._is_dead(trial)]
        for trial in dead:
            self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        return self.study.get_trials(deepcopy=False) if dead else trials

    def _is_dead(self, trial: FrozenTrial) -> bool:
        if trial.state != TrialState.RUNNING or trial.number in self.mine:
            return False
        if _has_ended(trial.user_attrs.get("worker")):
            return True
        beat, now = trial.user_attrs.get("beat"), time.monotonic()
        before, since = self.seen.get(trial.number, (object(), now))
        if before != beat:
            since = now
        self.seen[trial.number] = (beat, since)
        return now - since > GRACE

    @contextlib.contextmanager
    def working(self, claimed: Sequence[Claimed]) -> Iterator[None]:
        """Update the heartbeat of trials while they run; an error marks them as failed."""
        stopped = threading.Event()

        def count() -> None:
            beat = 0
            while not stopped.wait(BEAT):
                beat += 1
                for one in claimed:
                    with contextlib.suppress(
                        optuna.exceptions.OptunaError, sqlalchemy.exc.SQLAlchemyError
                    ):
                        one.trial.set_user_attr("beat", beat)
            self.storage.remove_session()

        counter = threading.Thread(target=count, daemon=True)
        if self.shared:
            counter.start()
        try:
            yield
        except BaseException:
            for one in claimed:
                self.study.tell(one.trial.number, state=TrialState.FAIL, skip_if_finished=True)
            raise
        finally:
            stopped.set()
            if self.shared:
                counter.join()

    # -- results --------------------------------------------------------------------------------

    def finish(self, claimed: Claimed, runs: Sequence[Outcome], given_up: bool) -> None:
        """Store a trial's results, unless other processes assumed that this one was dead."""
        trial = claimed.trial
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            trial.set_user_attr("runs", stored(runs))
            diverged = any(run.stopped == "diverged" for run in runs)
            if given_up and self.aim.to_target and runs and not diverged:
                trial.report(self.aim.value(runs), 0)  # tells the sampler how close it came
            if given_up or diverged:
                self.study.tell(trial.number, state=TrialState.PRUNED, skip_if_finished=True)
            else:
                self.study.tell(trial.number, self.aim.value(runs), skip_if_finished=True)
        self.mine.discard(trial.number)

    def tried(self) -> list[Tried]:
        """The finished trials."""
        found: dict[str, Tried] = {}
        for trial in self.study.get_trials(deepcopy=False, states=FINISHED):
            runs = [Outcome(**run) for run in trial.user_attrs.get("runs", [])]
            state = "complete" if trial.state == TrialState.COMPLETE else "given up"
            if any(run.stopped == "diverged" for run in runs):
                state = "diverged"
            # a grid point that was run twice anyway counts once, and one whose process was killed not at all
            key = str(_settings(trial)) if self.points else str(trial.number)
            found.setdefault(key, Tried(len(found), _settings(trial), state, runs))
        return list(found.values())

    def left(self, tried: Sequence[Tried]) -> int:
        """The number of unfinished trials."""
        if self.sampler != "grid":
            return max(0, self.total - len(tried))
        done = [trial.settings for trial in tried]
        return sum(point not in done for point in self.points)

    def least(self) -> float:
        """The fewest rounds or bits to the target of any trial, summed over its seeds."""
        totals = [self.aim.total(trial.runs) for trial in self.tried() if trial.state == "complete"]
        return min(totals, default=float("inf"))


def _settings(trial: FrozenTrial) -> dict[str, Any]:
    return trial.user_attrs.get("settings", {})


def _has_ended(worker: str | None) -> bool:
    """Whether a process on this machine is known to have ended."""
    host, pid, _ = (worker or "::").rsplit(":", 2)
    if host != socket.gethostname() or os.name != "posix":
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
