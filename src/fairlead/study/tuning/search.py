"""The search: trials one by one, stopped when they can no longer win, or many at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from fairlead.describe import described
from fairlead.errors import FairleadError, needed, unknown
from fairlead.progress import Progress
from fairlead.run.callbacks import Callback
from fairlead.run.many import pays, train_many
from fairlead.run.train import Run, train
from fairlead.study.compare import labelled as labelled
from fairlead.study.measured import measured
from fairlead.study.tuning.objective import COLUMNS, Aim, Outcome
from fairlead.study.tuning.result import Entry, Tuning
from fairlead.study.tuning.space import GRID, Method, Space, Values, check_names
from fairlead.task.metrics import known
from fairlead.task.task import Task

if TYPE_CHECKING:
    from fairlead.study.tuning.studies import Claimed, Study

SAMPLERS = ("grid", "tpe", "random")
STUDY = "study.sqlite"
TOGETHER = 64  # runs per train_many call, the most that a killed tuning loses
REPORTS = 20  # checks of the median rule per run
RESERVED = ("seed", "callbacks", "checkpoints", "resume", "outs", "workers")


@dataclass(frozen=True)
class Job:
    """What all trials of all methods share."""

    task: Task
    rounds: int
    seeds: list[int]
    aim: Aim
    prune: bool
    together: bool
    settings: dict[str, Any]

    @property
    def train_settings(self) -> dict[str, Any]:
        """The settings of a run, which stops at the target if rounds or bits are counted."""
        stop = {self.aim.metric: self.aim.goal} if self.aim.to_target else None
        return {**self.settings, "rounds": self.rounds, "target": stop, "progress": False}


def tune(
    task: Task,
    methods: Method | Mapping[str, Method] | Sequence[Method],
    *,
    rounds: int,
    lr: Values | None = None,
    space: Mapping[str, Values] | None = None,
    seeds: int | Sequence[int] = 1,
    target: Mapping[str, float] | None = None,
    metric: str | None = None,
    by: Literal["rounds", "bits", "final", "best"] | str | None = None,
    protocol: Literal["papers"] | str | None = None,
    sampler: Literal["grid", "tpe", "random"] | str | None = None,
    trials: int | None = None,
    sampler_seed: int = 0,
    prune: bool | None = None,
    together: bool | None = None,
    out: str | Path | None = None,
    storage: str | None = None,
    progress: bool | Progress | None = None,
    **settings: Any,
) -> Tuning:
    """Find the best settings of each method; other settings are those of `train`. If the task has validation data
    (`valid`), settings are chosen on them, and the test set is only for the best trial's row of the table.

    lr: step sizes to try: a list, or a range (low, high, "log"); by default 10, 3, 1, 0.3 and 0.1 if
        nothing else is searched.
    space: other settings by name, such as {"mu": [0.1, 1], "server_lr": (0.1, 3.0, "log")}; a
        mapping names its values, {"compressor": {"none": None, "qsgd:2": fl.QSGD(2)}}. A method
        searches only the settings it has.
    by: the objective: the fewest "rounds" or "bits" to the target, mean over seeds, or the "final" or
        "best" metric; by default rounds if there is a target. `fairlead.study.tuning.objective` defines
        the penalty for missing it.
    protocol: "papers" tunes only the step size, on the same list and seeds for every method, for
        the fewest rounds to the target.
    sampler: "grid" tries every combination of lists; "tpe" and "random" make `trials` (20) draws,
        seeded by sampler_seed, and also allow ranges. One study per method.
    prune: stop a trial once it has spent more than the best complete one, or, by "final" or "best",
        when it is worse than the median. together: pass full trials to `train_many`, without
        pruning. By default together on a GPU and for small problems, else one by one with pruning.
    out: a folder for study.sqlite and, with `Tuning.write`, for results; finished trials found
        there are kept. storage: an Optuna database URL instead, so that several machines share trials.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(gradient=10.0)
    >>> goal = {"distance": 1e-3}
    >>> tuning = tune(task, fl.Scaffold(lr=1.0), rounds=90, steps=5, lr=[1.0, 0.5, 0.1], target=goal)
    >>> tuning.best("Scaffold").lr, [row.rounds for row in tuning.sensitivity("Scaffold")]
    (1.0, [None, 25.0, 20.0])
    """
    named = _named(methods)
    wanted, sampler, by = _resolved(lr, space, sampler, by, protocol, target)
    check_names(named, list(wanted))
    spaces = {label: Space.of(method, wanted) for label, method in named.items()}
    what = measured(task, metric, target, settings, "tune")
    goal = None if target is None else float(target[what.metric])
    aim = Aim(by, what.by, goal, what.better, None if what.by == what.metric else what.metric)
    listed = list(range(seeds) if isinstance(seeds, int) else seeds)
    _check(listed, sampler, trials, settings)
    if together is None and sampler != "tpe":
        together = pays(task, rounds=rounds, **settings) if prune is None else not prune
    prune, together = _mode(sampler, prune, bool(together))
    needed("optuna")
    from fairlead.study.tuning.studies import Study, opened

    job = Job(task, rounds, listed, aim, prune, together, settings)
    entries: dict[str, Entry] = {}
    with opened(storage or _study_file(out)) as store:
        studies = {
            label: Study(
                label, store, aim, spaces[label], sampler=sampler, seed=sampler_seed,
                trials=trials or 20, warmup=rounds // 4,
            )
            for label in named
        }  # fmt: skip
        for label, study in studies.items():
            study.check(_about(job, named[label], spaces[label], sampler, sampler_seed))
        total = sum(study.total for study in studies.values())
        with Progress.of(progress, total, "tuning") as bar:
            for label, study in studies.items():
                before = sum(len(entry.trials) for entry in entries.values())
                _search(job, label, named[label], study, bar, before)
                entries[label] = Entry(label, named[label], spaces[label], study.tried())
    return Tuning(aim, rounds, listed, entries, what)


def _search(job: Job, label: str, method: Method, study: Study, bar: Progress, before: int) -> None:
    """Run trials until all are finished, by this or other processes."""
    most = max(1, TOGETHER // len(job.seeds)) if job.together else 1
    while study.left(study.tried()):
        claimed = study.claim(most)
        if not claimed:
            study.wait()
            continue
        with study.working(claimed):
            if job.together:
                row = _at_once(job, method, study, claimed)
            else:
                row = _one_by_one(job, method, study, claimed[0])
        shown = ", ".join(f"{name} {_short(v)}" for name, v in claimed[-1].settings.items())
        bar.update(before + len(study.tried()), row, f"{label}, {shown}")


def _at_once(job: Job, method: Method, study: Study, claimed: list[Claimed]) -> Any:
    """Run full trials together."""
    pairs = [
        (study.space.apply(method, one.settings), seed) for one in claimed for seed in job.seeds
    ]
    runs = train_many(job.task, pairs, **job.train_settings)
    for index, one in enumerate(claimed):
        own = runs[index * len(job.seeds) : (index + 1) * len(job.seeds)]
        found = [job.aim.outcome(run, seed) for run, seed in zip(own, job.seeds, strict=True)]
        study.finish(one, found, given_up=False)
    return runs[-1].history.rows[-1]


def _one_by_one(job: Job, method: Method, study: Study, claimed: Claimed) -> Any:
    """Run seeds one by one, until one diverges or the trial can no longer win."""
    chosen = study.space.apply(method, claimed.settings)
    found: list[Outcome] = []
    row: Mapping[str, float] = {}
    given_up = False
    for seed in job.seeds:
        watch = _watch(job, study, claimed, found) if job.prune else Callback()
        if isinstance(watch, Spent) and watch.is_hopeless:
            given_up = True
            break
        run: Run = train(job.task, chosen, seed=seed, callbacks=[watch], **job.train_settings)
        found.append(job.aim.outcome(run, seed))
        row, given_up = run.history.rows[-1], run.stopped == "callback"
        if given_up or run.stopped == "diverged":
            break
    study.finish(claimed, found, given_up)
    return row


def _watch(job: Job, study: Study, claimed: Claimed, found: list[Outcome]) -> Callback:
    if job.aim.to_target:
        return Spent(job.aim, job.aim.total(found), study.least())
    step = max(1, job.rounds // REPORTS)
    return Median(job.aim, claimed.trial, len(found) * (job.rounds + 1), step)


class Spent(Callback):
    """Stops a run that, with the earlier seeds, has spent more than the best complete trial."""

    def __init__(self, aim: Aim, used: float, least: float) -> None:
        self.aim, self.used, self.least = aim, used, least
        self.column = COLUMNS[aim.by]

    @property
    def is_hopeless(self) -> bool:
        """Whether the trial can no longer win; one missed seed is enough, if another trial reached the
        target with all seeds."""
        return self.used > self.least

    def row(self, row: Mapping[str, float]) -> bool:
        return self.used + row[self.column] > self.least and not self.aim.reached(row)


class Median(Callback):
    """Stops a run that Optuna's median rule prunes; checked every `step` rounds."""

    def __init__(self, aim: Aim, trial: Any, offset: int, step: int) -> None:
        self.aim, self.trial, self.offset, self.step = aim, trial, offset, step
        self.due = step

    def row(self, row: Mapping[str, float]) -> bool:
        if row["round"] < self.due:
            return False
        self.due = row["round"] + self.step
        self.trial.report(row[self.aim.metric], self.offset + int(row["round"]))
        return self.trial.should_prune()


# -- arguments --------------------------------------------------------------------------------------


def _named(methods: Method | Mapping[str, Method] | Sequence[Method]) -> dict[str, Method]:
    if isinstance(methods, Mapping):
        named = dict(cast(Mapping[str, Method], methods))
    else:
        listed = methods if isinstance(methods, Sequence) else [methods]
        named = labelled(listed)
    if not named:
        raise FairleadError("there is nothing to tune: give at least one method")
    return named


def _resolved(
    lr: Values | None,
    space: Mapping[str, Values] | None,
    sampler: str | None,
    by: str | None,
    protocol: str | None,
    target: Mapping[str, float] | None,
) -> tuple[dict[str, Values], str, str]:
    """The search space, the sampler and the objective."""
    if protocol not in (None, "papers"):
        raise unknown("protocol", str(protocol), ["papers"])
    wanted = dict(space or {})
    if lr is not None and "lr" in wanted:
        raise FairleadError("the step size is given twice, as lr and in space: keep one")
    if lr is not None or not wanted:
        wanted = {"lr": list(GRID) if lr is None else lr, **wanted}
    if protocol == "papers":
        listed = list(wanted) == ["lr"] and not isinstance(wanted["lr"], tuple)
        if not listed or sampler not in (None, "grid") or by not in (None, "rounds"):
            raise FairleadError(
                "the papers' protocol tunes the step size on a list, by rounds: leave out space, "
                "sampler and by"
            )
        by = "rounds"
    ranges = any(isinstance(values, tuple) for values in wanted.values())
    sampler = sampler or ("tpe" if ranges else "grid")
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    return wanted, sampler, by or ("rounds" if target else "final")


def _check(seeds: list[int], sampler: str, trials: int | None, settings: Mapping[str, Any]) -> None:
    if not seeds:
        raise FairleadError("there are no seeds: give at least 1")
    if trials is not None and (sampler == "grid" or trials < 1):
        raise FairleadError(
            f"trials is {trials}: give at least 1, or leave it out for a grid, which tries all"
        )
    for name in RESERVED:
        if name in settings:
            raise FairleadError(f"tune sets {name} for its runs itself: leave it out")


def _mode(sampler: str, prune: bool | None, together: bool) -> tuple[bool, bool]:
    """Whether to prune, and whether to run trials together."""
    if together and sampler == "tpe":
        raise FairleadError("tpe needs each trial's result for the next: leave out together")
    if together and prune:
        raise FairleadError("trials that run together cannot be pruned: give together or prune")
    return (not together if prune is None else prune), together


def _about(job: Job, method: Method, space: Space, sampler: str, seed: int) -> dict[str, Any]:
    """The settings that must match to continue a study. A grid may grow."""
    fixed = described(method)
    searched: Any = described({name: vars(part) for name, part in space.parts.items()})
    if sampler == "grid":
        searched = list(space.parts)
    about = {
        "task": job.task.fingerprint(), "method": _without(fixed, set(space.parts)),
        "rounds": job.rounds, "seeds": job.seeds, "objective": job.aim.by, "metric": job.aim.metric,
        "target": job.aim.goal, **({} if known(job.aim.metric) else {"better": job.aim.better}), "sampler": sampler, "sampler_seed": seed, "space": searched,
        "settings": described({k: v for k, v in job.settings.items() if k != "engine"}),
    }  # fmt: skip
    return json.loads(json.dumps(about))


def _without(method: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """A method's description without the searched settings; of a schedule the shape is kept."""
    found: dict[str, Any] = {}
    for name, value in method.items():
        if name == "method" and isinstance(value, dict):
            found[name] = _without(value, names)
        elif name not in names:
            found[name] = value
        elif isinstance(value, dict) and "lr" in value:
            found[name] = {k: v for k, v in value.items() if k not in ("lr", "floor")}
    return found


def _study_file(out: str | Path | None) -> Path | None:
    if out is None:
        return None
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FairleadError(f"cannot write to {folder}: {error.strerror}") from error
    return folder / STUDY


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
