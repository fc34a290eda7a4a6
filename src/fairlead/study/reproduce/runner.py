"""Carrying out a recipe: what is missing, case by case, until a time budget is used up.

Every finished case is one line of cases.jsonl and a run folder; given again, the same call does what is missing. Processes
that do so at the same time share the work (see `claims`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fairlead.describe import described
from fairlead.errors import FairleadError
from fairlead.progress import Progress
from fairlead.run.folder import CHECKPOINTS
from fairlead.run.many import pays, train_many
from fairlead.run.train import Run, train
from fairlead.study.reproduce.case import Case, Form, Result, Results
from fairlead.study.reproduce.catalog import recipes
from fairlead.study.reproduce.claims import Claims, Work, alone_on, helpers
from fairlead.study.reproduce.recipe import Recipe
from fairlead.task.task import Task

CASES = "cases.jsonl"
TOGETHER = 24
"""Runs that are trained together at most, between two looks at the clock."""


@dataclass(frozen=True)
class Done:
    """How far a recipe has come."""

    results: Results
    missing: int
    """Cases that are still to be done."""


def stored(file: Path) -> dict[str, Result]:
    """The finished cases of a file by digest; a line cut off by a kill is left out."""
    if not file.is_file():
        return {}
    found: dict[str, Result] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            result = Result.read(line)
        except (ValueError, TypeError):
            continue
        found[result.digest] = result
    return found


def wanted(recipe: Recipe, form: Form, found: Mapping[str, Result]) -> tuple[list[Case], Results]:
    """The cases that can be known from the results so far, and the results of those that are done."""
    cases: list[Case] = []
    while True:
        done = Results([found[case.digest] for case in cases if case.digest in found])
        asked = list(recipe.cases(form, done))
        if len(asked) == len(cases):
            return asked, done
        cases = asked


def carry_out(
    recipe: Recipe,
    form: Form,
    folder: Path,
    budget: float | None = None,
    only: str | None = None,
    progress: bool | None = None,
    also: Path | None = None,
    jobs: int = 1,
) -> Done:
    """Do the missing cases of a recipe. budget: seconds after which no further case is begun. only: a part of the
    name of the cases to do. also: a second file of finished cases, such as those stored for the page of results.
    jobs: processes that share the cases."""
    recipe.check(form)
    until = None if budget is None else time.monotonic() + budget
    work = Work(recipe.name, form, folder, until, only, also, jobs)
    kept = Kept(recipe, work)
    with helpers(work), Progress.of(progress, 0, recipe.name) as bar:
        do_missing(kept, bar)
    kept.read()
    cases, results = wanted(recipe, form, kept.found)
    kept.complete(results)
    return Done(results, len(cases) - len(results))


def do_missing(kept: Kept, bar: Progress) -> None:
    """Do the missing cases that no other process does, and wait for those that others do."""
    work = kept.work
    with contextlib.closing(Claims(work.folder)) as claims:
        while missing := _missing(kept, bar):
            busy = None
            for some in _together(missing, work, kept.recipe.long):
                if work.over():
                    return
                with claims.of(some) as mine:
                    kept.read()  # another process may just have done them
                    todo = [case for case in mine if case.digest not in kept.found]
                    if todo:
                        bar.update(kept.done, {}, todo[0].name)
                        kept.do(todo, bar)
                    elif not mine:
                        busy = busy or some[0]
            if busy is not None and busy.digest not in kept.found:
                bar.say("waiting for other processes")
                claims.wait(busy)
            kept.read()


def _missing(kept: Kept, bar: Progress) -> list[Case]:
    """The cases to do, as far as they can be known from the results so far."""
    only = kept.work.only
    cases, done = wanted(kept.recipe, kept.work.form, kept.found)
    kept.done = len(done)
    bar.resize(len(cases))
    return [c for c in cases if c.digest not in kept.found and (only is None or only in c.name)]


def _together(cases: Sequence[Case], work: Work, long: bool) -> Iterator[list[Case]]:
    """Cases in groups that share their task, settings and kind of method, in order. On a GPU, which does many at
    little more cost, all processes take whole groups, but share out those of long cases."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        shared = [
            described(case.task),
            described(case.settings),
            case.name if case.compute is not None else type(case.method).__name__,
        ]
        groups.setdefault(json.dumps(shared), []).append(case)
    for group in groups.values():
        shares = work.jobs if long or work.form.device == "cpu" else 1
        size = max(1, min(TOGETHER, len(group) // shares))
        for k in range(0, len(group), size):
            yield group[k : k + size]


class Kept:
    """The finished cases of a recipe, in a folder; also those that it shares with other recipes."""

    def __init__(self, recipe: Recipe, work: Work) -> None:
        self.recipe, self.work, self.form, self.folder = recipe, work, work.form, work.folder
        self.files = [work.folder / CASES, *([work.also] if work.also is not None else [])]
        self.found: dict[str, Result] = {}
        self.done = 0
        """How many of the recipe's cases are finished."""
        self._sizes: list[int] = []
        for file in self.files:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FairleadError(f"cannot write to {file.parent}: {error.strerror}") from error
        self.read()
        self._task: tuple[str, Task] | None = None

    def read(self) -> None:
        """The finished cases, also those of other processes."""
        files = [*self.others, *self.files]
        sizes = [file.stat().st_size if file.is_file() else 0 for file in files]
        if sizes != self._sizes:
            for file in files:
                self.found |= stored(file)
            self._sizes = sizes

    @property
    def others(self) -> list[Path]:
        """Where recipes that store the same of a case keep theirs."""
        form, found = self.form.name, []
        for name in recipes():
            if name != self.recipe.name and keeps_alike(recipes()[name], self.recipe):
                found.append(self.folder.parent.parent / name / form / CASES)
                if self.work.also is not None:
                    found.append(self.work.also.with_name(f"{name}.{form}.jsonl"))
        return found

    def complete(self, results: Results) -> None:
        """Add to each file what only another one has."""
        for path in self.files:
            known = stored(path)
            for result in results:
                if result.digest not in known:
                    append(path, result)

    def do(self, cases: Sequence[Case], bar: Progress) -> None:
        """Do some cases that share their task and settings, together or one by one until the time is up."""
        if cases[0].compute is not None:
            for case in self._in_time(cases):
                assert case.compute is not None
                begin = time.perf_counter()
                numbers = dict(case.compute())
                spent = round(time.perf_counter() - begin, 3)
                self._keep(Result(case.labels, case.digest, "computed", spent, numbers=numbers))
            return
        task = self._made(cases[0])
        settings = dict(cases[0].settings)
        plain = {k: v for k, v in settings.items() if k not in ("seed", "workers")}
        if len(cases) > 1 and pays(task, **plain):
            work = [(case.method, int(case.labels.get("seed", 0))) for case in cases]
            work = [(method, seed) for method, seed in work if method is not None]
            outs = [self._folder(case) for case in cases]
            kept = {"outs": outs, "resume": "auto"} if self.recipe.long else {}
            part = bar.part(self.done, cases[0].name, 1 / settings["rounds"])
            runs = train_many(task, work, progress=part, **kept, **plain)
            for case, run in zip(cases, runs, strict=True):
                self._finish(case, run)
            return
        for case in self._in_time(cases):
            assert case.method is not None
            kept = {"out": self._folder(case), "resume": "auto"} if self.recipe.long else {}
            seed = int(case.labels.get("seed", 0))
            part = bar.part(self.done, case.name, 1 / settings["rounds"])
            self._finish(
                case, train(task, case.method, seed=seed, progress=part, **kept, **settings)
            )

    def _in_time(self, cases: Sequence[Case]) -> Iterator[Case]:
        """The cases that are begun in time; the first one is."""
        for number, case in enumerate(cases):
            if number and self.work.over():
                return
            yield case

    def _made(self, case: Case) -> Task:
        """The task of a case; the newest one is kept."""
        assert case.task is not None
        key = json.dumps(described(case.task))
        if self._task is None or self._task[0] != key:
            self._task = None  # frees its memory first
            self._task = key, partial(case.task, device=self.form.device)()
        return self._task[1]

    def _folder(self, case: Case) -> Path:
        """The run folder of a case."""
        path = self.folder / "runs" / f"{case.name[:80]}-{case.digest[:8]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _finish(self, case: Case, run: Run) -> None:
        if run.stopped == "interrupted":
            raise KeyboardInterrupt
        if not self.recipe.long:
            run.write(self._folder(case), overwrite=True)
        recipe = self.recipe
        found = Result.of(case, run, recipe.targets, recipe.columns, recipe.lasting)
        self._keep(found if recipe.curves else replace(found, curve={}))
        shutil.rmtree(self._folder(case) / CHECKPOINTS, ignore_errors=True)

    def _keep(self, result: Result) -> None:
        for path in self.files:
            append(path, result)
        self.found[result.digest] = result
        self.done += 1


def keeps_alike(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes store the same of equal cases."""
    kinds = ("targets", "columns", "lasting", "curves")
    return all(getattr(one, kind) == getattr(other, kind) for kind in kinds)


def append(path: Path, result: Result) -> None:
    """Append a line that is complete, or absent after a crash."""
    with path.open("a+b") as file, alone_on(file):
        file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
        cut = file.read() not in (b"", b"\n")  # by a kill
        file.write(b"\n" * cut + result.line().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
