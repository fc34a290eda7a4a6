"""The loop of a run: its state, what it records, and when it ends."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from fairlead.core.method import Algorithm
from fairlead.core.records import State
from fairlead.data.batches import Draw
from fairlead.data.sampling import Dropouts, Sampler
from fairlead.engine.exchange import RoundCohort, everyone
from fairlead.engine.personal import client_metrics
from fairlead.engine.session import Execution, Session
from fairlead.engine.simulate import Simulate
from fairlead.engine.upcoming import Upcoming
from fairlead.errors import Diverged, FairleadError
from fairlead.probe import DriftDiversity, Measure, Probe
from fairlead.progress import Progress
from fairlead.run.about import about
from fairlead.run.average import Average, Averaging
from fairlead.run.callbacks import Callback, RoundView, kept_of, named
from fairlead.run.checkpoint import Keeper
from fairlead.run.folder import Recorder
from fairlead.run.generators import card_of, seed_generators
from fairlead.run.history import History
from fairlead.run.interrupt import Stop
from fairlead.run.measuring import split, take
from fairlead.run.saved import newest
from fairlead.task.evaluation import directions
from fairlead.task.metrics import Better, reaches
from fairlead.task.per_client import ClientMetrics, PerClient, columns
from fairlead.task.task import Task

Ending: TypeAlias = Literal["rounds", "target", "diverged", "interrupted", "callback"]


@dataclass(frozen=True)
class Plan:
    """The settings shared by all rounds of a run."""

    rounds: int
    sampler: Sampler
    dropout: Dropouts
    seed: int
    weighting: str | Sequence[float]
    eval_every: int
    objective: bool
    drift: bool
    measures: tuple[Measure | Probe, ...]
    target: Mapping[str, float] | None
    per_client: PerClient | None = None
    every: int | None = None
    average: Averaging = None

    def measures_in(self, round: int) -> bool:
        """Whether measures are taken after this round."""
        return round % (self.every or self.eval_every) == 0 or (
            self.every is None and round == self.rounds
        )


class Loop:
    """A run in progress."""

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm[Any, Any],
        plan: Plan,
        engine: Simulate,
        session: Session,
        config: Mapping[str, Any],
        callbacks: Sequence[Callback],
        keeper: Keeper | None,
        bar: Progress,
    ) -> None:
        self.task, self.algorithm, self.plan, self.session = task, algorithm, plan, session
        self.config, self.callbacks, self.keeper, self.bar = config, callbacks, keeper, bar
        self.engine = engine
        session.says = bar.say
        part = getattr(getattr(algorithm, "method", algorithm), "part", None)
        drift = (DriftDiversity(task.layers, part=part),) if plan.drift else ()
        inside, self.probes = split(plan.measures)
        self.measures = (*inside, *drift)
        self._watched = [c for c in callbacks if type(c).round is not Callback.round]
        self.stop = Stop(listen=False)
        self.upcoming = Upcoming(session, plan.sampler, plan.dropout, plan.rounds)
        self.state: State = algorithm.init(task.start(plan.seed)[0])
        self.average = Average.of(plan.average, self.state.x)
        self.better: dict[str, Better] = {**directions(task), **columns(task, plan.per_client)}
        self.history = History(better=self.better)
        self.clock, self.done, self.resumed = 0.0, 0, False
        self.measuring = 0.0
        self.whole = False
        """Whether it had already ended when it was resumed."""
        self.stopped: Ending | None = None
        self.error: Diverged | None = None
        self._before: tuple[State, Tensor] = self.state, session.buffers
        self._mean_before = self.average
        self._answered = 0
        self._kept: dict[str, dict[str, Tensor]] = {}
        """What callbacks kept in the run that is resumed."""

    # -- resuming -------------------------------------------------------------------------------

    def restore(self, folder: str | Path, most: int | None = None, ended: bool = False) -> None:
        """Resume from the newest checkpoint in a folder, after at most so many rounds. ended: a run that a
        callback ended does not go on."""
        saved, wrong = newest(folder, self.config, most)
        for sentence in wrong:
            warnings.warn(f"skipped: {sentence}", stacklevel=4)
        if saved.round > self.plan.rounds:
            raise FairleadError(
                f"the run in {folder} already has {saved.round} rounds: set rounds higher"
            )
        self.state = saved.restore(self.state, self.session)
        if self.average is not None:
            self.average = self.average.filled(saved.part("average"))
        self.history = History(saved.past.rows, self.better)
        self._kept = {name: saved.part(f"callbacks/{name}") for name in named(self.callbacks)}
        self.clock, self.done, self.resumed = saved.seconds, saved.round, True
        self.measuring = self.history.newest("measure_seconds")
        if saved.stopped == "diverged":
            self._diverge()
        elif saved.stopped == "callback" and ended:
            self.stopped = "callback"
        elif self.done < self.plan.rounds:
            last = self.history.last("round") == self.done
            if last and self.done % self.plan.eval_every:
                del self.history.rows[-1]  # evaluated only because it was the last round then
        self.whole = not self.goes_on()
        if self.whole:
            self.session.execution = Execution.read(saved.meta["engine"])
            self._leave_as_it_is()

    def _leave_as_it_is(self) -> None:
        """Call no callbacks if the folder already says that the run ended."""
        recorders = [c for c in self.callbacks if isinstance(c, Recorder)]
        if any(c.has_all(self.history, self.stopped) for c in recorders):
            for recorder in recorders:
                recorder.release()
            self._restore_callbacks()
            self.callbacks = ()

    def follow(self, run: Any) -> None:
        """Resume from a run in memory."""
        self.session.continue_from(run.session)
        kept = [row for row in run.history.rows if row["round"] % self.plan.eval_every == 0]
        self.state, self.history = run.state, History(kept, self.better)
        self._kept = kept_of(run.callbacks)
        self.average = run.average
        self.clock, self.done, self.resumed = run.seconds, run.rounds, True
        self.measuring = self.history.newest("measure_seconds")

    # -- rounds ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def going(self, stop: Stop) -> Iterator[None]:
        """While rounds run: torch's generators are restored, and callbacks are informed of errors."""
        self.stop = stop
        device = self.task.device
        cards = [card_of(device)] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=cards), torch.no_grad():
            try:
                yield
            except BaseException as error:
                self.fail(error)
                raise
            finally:
                self.session.close()
                self.upcoming.close()
                if self.keeper is not None:
                    self.keeper.close()

    def fail(self, error: BaseException) -> None:
        """Inform the callbacks that an error ended the run."""
        for callback in self.callbacks:
            callback.failed(error)

    def begin(self) -> None:
        """Decide how to run, and evaluate the starting point."""
        if self.keeper is not None:
            self.keeper.begin()
        if not self.whole:
            first = self.plan.sampler.cohort(self.plan.seed, 0, self.task.clients)
            self.engine.prepare(self.session, first, self.plan.rounds)
        after = self.done if self.resumed else -1
        known = {**about(self), "after": after} if self.callbacks else {}
        for callback in self.callbacks:
            callback.begin(known, self.history)
        if self.resumed:
            self._restore_callbacks()
        else:
            begin = time.perf_counter()
            self.state = self.algorithm.start(self.state, everyone(self.session))
            self.spend(begin)
            asked = self.session.group.agree(self._record(0))
            self.stopped = "callback" if asked[0] else None

    def view(self) -> RoundView:
        """What callbacks see of the run."""
        session, row = self.session, self.history.rows[-1]
        return RoundView(self.done, self.state, session, self.history, row, session.buffers)

    def _restore_callbacks(self) -> None:
        for name, callback in named(self.callbacks).items():
            if self._kept.get(name):
                callback.restore(self._kept[name], self.view())

    def goes_on(self) -> bool:
        """Whether another round is due."""
        plan, row = self.plan, self.history.rows[-1]
        goal = plan.target
        if self.stopped is None and goal is not None and _reached(row, goal, self.better):
            self.stopped = "target"
        elif self.stopped is None and self.done >= plan.rounds:
            self.stopped = "rounds"
        return self.stopped is None

    def cohort(self, draw: Draw | None = None) -> RoundCohort | None:
        """The clients that answer in the next round, with their batches if already drawn; None if no client
        answers, in which case nothing changes."""
        plan, k = self.plan, self.done
        # for dropout layers; all other randomness is counter-based
        seed_generators((plan.seed * 1_000_003 + k + 1) % 2**63, self.task.device)
        sampled, ids = self.upcoming.clients(k)
        self.session.accounts.counters.lost += len(sampled) - len(ids)
        taken = self.looks and self.plan.measures_in(self.done + 1)
        self.session.measures = self.measures if taken else ()
        self._before, self._answered = (self.state, self.session.buffers), len(ids)
        return self.upcoming.cohort(k, draw)

    @property
    def looks(self) -> bool:
        """Whether the next round is evaluated."""
        return (self.done + 1) % self.plan.eval_every == 0 or self.done + 1 == self.plan.rounds

    def spend(self, begin: float, share: float = 1.0, wait: bool = True) -> None:
        """Add the time since `begin` to the run's clock."""
        if wait and self.task.device.type == "cuda":
            torch.cuda.synchronize(self.task.device)
        self.clock += share * (time.perf_counter() - begin)

    def round(self) -> None:
        """One round."""
        begin = time.perf_counter()
        clients = self.cohort()
        if clients is not None:
            self.state = self.session.method.round(self.state, clients)
            self.session.accounts.counters.steps += clients.longest
            self._answered = len(clients.ids)
        self.spend(begin, wait=self.looks)
        self.after()

    def after(
        self,
        found: Mapping[str, float] | None = None,
        total: float | None = None,
        asked_for: tuple[bool, bool] | None = None,
    ) -> None:
        """Evaluate and record the round if due, and decide whether to end. For many runs at once: `found` is
        the evaluation, `total` the sum of x, `asked_for` whether to stop and to write a checkpoint."""
        look = self.looks
        self.done += 1
        if self.average is not None:
            self._mean_before, self.average = self.average, self.average.after(self.state.x)
        asked = self._record(self._answered, found) if look else False
        row = self.history.rows[-1]
        if self._lost(row if look else {}, look, total):
            self.state, self.session.buffers = self._before
            self.average = self._mean_before
            self._diverge()
            self._save()
            return
        self.bar.update(self.done, row)
        if look:
            self.session.group.check_alike(self.state.x)
        for callback in self._watched:
            asked = bool(callback.round(self.view())) or asked
        stop, due = asked_for or (self.stop.asked, self.due(self.done))
        asked, stop, due = self.session.group.agree(asked, stop, due)
        if asked:
            self.stopped = "callback"
        elif stop:
            self.stopped = "interrupted"
        if not self.goes_on() or due:
            self._save()

    def due(self, round: int) -> bool:
        """Whether a checkpoint is due after this round."""
        return self.keeper is not None and self.keeper.due(round)

    def _save(self) -> None:
        if self.keeper is not None:
            self.session.settle()
            self.keeper.more = {
                f"callbacks/{name}/{part}": t
                for name, kept in kept_of(self.callbacks).items()
                for part, t in kept.items()
            }
            if self.average is not None:
                kept = self.average.tensors()
                self.keeper.more |= {f"average/{name}": t for name, t in kept.items()}
            self.keeper.try_to_write(
                self.done, self.state, self.session, self.history, self.clock, self.stopped
            )

    def _diverge(self) -> None:
        self.stopped = "diverged"
        self.error = Diverged(
            f"{type(self.algorithm).__name__} diverged in round {self.done}: the model or its loss "
            "is not finite; use a smaller step size"
        )

    def _record(self, clients: int, found: Mapping[str, float] | None = None) -> bool:
        session, plan = self.session, self.plan
        session.settle()
        counts, ledger = session.accounts.counters, session.accounts.ledger
        if found is None:
            found = session.evaluate(self.state.x, plan.weighting, plan.objective)
        clients_now = self._clients()
        row = {
            "round": self.done, **found, "clients": clients, "gradients": counts.gradients,
            "communications": self.done * self.algorithm.communications(),
            "exchanges": counts.exchanges, "bits": ledger.up + ledger.down,
            "bits_up": ledger.up, "bits_down": ledger.down, "nominal_up": ledger.nominal_up,
            "seconds": self.clock, **session.measurements(self.measures), **self._probed(),
            **self._averaged(),
        }  # fmt: skip
        if plan.per_client is not None and clients_now is not None:
            row |= clients_now.summary(plan.per_client.bins)
            for callback in self.callbacks:
                callback.clients(clients_now)
        self.history.append(row)
        asked = [bool(callback.row(row)) for callback in self.callbacks]  # call every one
        return any(asked)

    def _clients(self) -> ClientMetrics | None:
        """The metrics of every client, if they are recorded."""
        setting = self.plan.per_client
        if setting is None:
            return None
        return client_metrics(self.session, self.state.x, setting, self.session.task)

    def _probed(self) -> dict[str, float]:
        """What probes find now, and what all have cost so far."""
        if not self.probes or not self.plan.measures_in(self.done):
            return {}
        found: dict[str, float] = {}
        for probe in self.probes:
            one = take(self.session, self.state, probe, self.done, where=f"round {self.done}")
            found.update(one.columns())
            self.measuring += one.seconds
            for callback in self.callbacks:
                callback.measured(one)
        accounts = self.session.accounts
        return {
            **found, "measure_gradients": accounts.counters.measured,
            "measure_bits": accounts.ledger.measured, "measure_seconds": self.measuring,
        }  # fmt: skip

    def _averaged(self) -> dict[str, float]:
        """The loss of the average iterate, and its distance to a known optimum."""
        if self.average is None:
            return {}
        plan, names = self.plan, ("loss", "gap", "distance")
        found = self.session.evaluate(self.average.x, plan.weighting, plan.objective)
        return {f"average_{name}": found[name] for name in names if name in found}

    def _lost(self, row: Mapping[str, float], look: bool, total: float | None) -> bool:
        """Whether the run diverged; checked on a GPU only when evaluating, so that rounds need not wait."""
        x = self.state.x
        if not look and x.device.type != "cpu":
            return False
        total = float(x.sum()) if total is None else total
        if not math.isfinite(total):  # short numbers overflow in a sum
            total = 0.0 if bool(torch.isfinite(x).all()) else total
        return not math.isfinite(total) or not math.isfinite(row.get("loss", 0.0))


def _reached(
    row: Mapping[str, float], target: Mapping[str, float], better: Mapping[str, Better]
) -> bool:
    return all(n in row and reaches(row[n], goal, better[n]) for n, goal in target.items())
