"""Carrying out a recipe: what is missing, case by case, until a time budget is used up.

Every finished case is one line of cases.jsonl and a run folder; given again, the same call does what is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairlead.describe import described
from fairlead.errors import FairleadError
from fairlead.progress import Progress
from fairlead.run.folder import CHECKPOINTS
from fairlead.run.many import pays, train_many
from fairlead.run.train import Run, train
from fairlead.study.reproduce.case import Case, Form, Result, Results
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
) -> Done:
    """Do the missing cases of a recipe. budget: seconds after which no further case is begun. only: a part of the
    name of the cases to do. also: a second file of finished cases, such as those stored for the page of results."""
    recipe.check(form)
    until = None if budget is None else time.monotonic() + budget
    kept = _Kept(recipe, form, folder, also)
    with Progress.of(progress, 0, recipe.name) as bar:
        while True:
            cases, _ = wanted(recipe, form, kept.found)
            chosen = [case for case in cases if only is None or only in case.name]
            missing = [case for case in chosen if case.digest not in kept.found]
            bar.resize(len(cases))
            for some in _together(missing):
                if until is not None and time.monotonic() >= until:
                    break
                bar.update(sum(c.digest in kept.found for c in cases), {}, some[0].name)
                kept.do(some, bar)
            else:
                if missing:
                    continue  # further cases may depend on these
            cases, results = wanted(recipe, form, kept.found)
            return Done(results, len(cases) - len(results))


def _together(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Cases in groups that share their task and settings, in order."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        shared = [
            described(case.task),
            described(case.settings),
            case.compute is not None and case.name,
        ]
        groups.setdefault(json.dumps(shared), []).append(case)
    for group in groups.values():
        for k in range(0, len(group), TOGETHER):
            yield group[k : k + TOGETHER]


class _Kept:
    """The finished cases of a recipe, in a folder."""

    def __init__(self, recipe: Recipe, form: Form, folder: Path, also: Path | None) -> None:
        self.recipe, self.form, self.folder = recipe, form, folder
        self.files = [folder / CASES, *([also] if also is not None else [])]
        self.found: dict[str, Result] = {}
        for file in self.files:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FairleadError(f"cannot write to {file.parent}: {error.strerror}") from error
            self.found |= stored(file)
        self._task: tuple[str, Task] | None = None

    def do(self, cases: Sequence[Case], bar: Progress) -> None:
        """Do some cases that share their task and settings."""
        if cases[0].compute is not None:
            for case in cases:
                assert case.compute is not None
                begin = time.perf_counter()
                numbers = dict(case.compute())
                spent = round(time.perf_counter() - begin, 3)
                self._keep(Result(case.labels, case.digest, "computed", spent, numbers=numbers))
            return
        task = self._made(cases[0])
        settings = dict(cases[0].settings)
        plain = {k: v for k, v in settings.items() if k not in ("seed", "workers")}
        if task.device.type == "cpu" and len(cases) > 1 and pays(task, **plain):
            work = [(case.method, int(case.labels.get("seed", 0))) for case in cases]
            work = [(method, seed) for method, seed in work if method is not None]
            for case, run in zip(
                cases, train_many(task, work, progress=False, **plain), strict=True
            ):
                self._finish(case, run)
            return
        for case in cases:
            assert case.method is not None
            kept = {"out": self._folder(case), "resume": "auto"} if self.recipe.long else {}
            seed = int(case.labels.get("seed", 0))
            bar = bar.part(len(self.found), case.name)
            self._finish(
                case, train(task, case.method, seed=seed, progress=bar, **kept, **settings)
            )

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
        path.parent.mkdir(exist_ok=True)
        return path

    def _finish(self, case: Case, run: Run) -> None:
        if run.stopped == "interrupted":
            raise KeyboardInterrupt
        if not self.recipe.long:
            run.write(self._folder(case), overwrite=True)
        self._keep(
            Result.of(case, run, self.recipe.targets, self.recipe.columns, self.recipe.lasting)
        )
        shutil.rmtree(self._folder(case) / CHECKPOINTS, ignore_errors=True)

    def _keep(self, result: Result) -> None:
        """Append a line that is complete, or absent after a crash."""
        for path in self.files:
            with path.open("a+b") as file:
                file.seek(max(file.tell() - 1, 0))
                cut = file.read() not in (b"", b"\n")  # by a kill
                file.write(b"\n" * cut + result.line().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self.found[result.digest] = result
