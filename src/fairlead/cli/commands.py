"""What the commands do that train: fairlead run | resume | compare."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from fairlead.cli.build import build_methods, build_task
from fairlead.cli.common import out
from fairlead.cli.names import each_method
from fairlead.cli.settings import AXES, DEFAULTS, execution, local, numbers, target, workers
from fairlead.cli.show import say_memory, say_split, say_written, title
from fairlead.cli.tables import table
from fairlead.cli.write import (
    is_written,
    write_comparison,
    write_run,
)
from fairlead.engine.processes.distribute import Distributed
from fairlead.engine.processes.environment import is_first, restarted
from fairlead.engine.processes.ranks import launched
from fairlead.errors import FairleadError, unknown
from fairlead.figures.style import check_figures
from fairlead.run import folder as runs
from fairlead.run.checkpoint import Checkpoints
from fairlead.run.folder import CHECKPOINTS, COMPARISON, Recorder
from fairlead.run.saved import listed
from fairlead.run.train import train
from fairlead.study.compare import compare
from fairlead.study.folder import ComparisonFolder
from fairlead.task.per_client import histograms, in_a_line, is_histogram
from fairlead.track import trackers


def run_command(s: dict[str, Any]) -> None:
    """Train with one method."""
    _run(s, resume=False)


def resume_command(folder: Path, rounds: int | None) -> None:
    """Resume a stopped run."""
    compared = (folder / COMPARISON).is_file()
    about = {} if compared else runs.read_about(folder)
    settings = about.get("settings")
    if compared or about.get("command") == "compare":
        raise FairleadError(
            f"{folder} belongs to a comparison: give its compare command again to continue it"
        )
    if not isinstance(settings, dict):
        raise FairleadError(
            f"the run in {folder} was not started by a command: resume it with fl.train(resume=…)"
        )
    known = {key: settings[key] for key in DEFAULTS if key in settings}
    changed = {} if rounds is None else {"rounds": rounds}
    _run({**DEFAULTS, **known, "out": folder, **changed}, resume=True)


def _run(s: dict[str, Any], resume: bool) -> None:
    folder = None if s["out"] is None else Path(s["out"])
    check_figures(s["figure"], drawn=folder is not None)  # fail before training, not after
    again = resume or restarted()
    if folder is not None and again and is_written(folder, s):
        out.print(f"the run in {folder} is finished: nothing is left to do", highlight=False)
        return
    built = build_task(s)
    ((label, chosen),) = build_methods([s["method"]], s, s["lr"]).items()
    callbacks = trackers(s["track"] or "", folder) if is_first() else []
    kept: dict[str, Any] = {}
    if folder is not None:
        keep = Checkpoints(folder / CHECKPOINTS, every=s["checkpoint_every"])
        goes_on = bool(
            again and listed(keep.folder)
        )  # or it was killed before its first checkpoint
        kept = {"out": folder, "checkpoints": keep, "resume": folder if goes_on else None}
        if is_first():
            more = {"label": label, "settings": {**s, "out": str(folder)}}
            replace = s["overwrite"] or again
            kept["out"] = Recorder(folder, more=more, overwrite=replace, resume=goes_on)
    work = local(s)
    if launched():
        work["engine"] = Distributed(s["engine"], timeout=s["timeout"], **execution(s))
    say_memory(built, [chosen], rounds=s["rounds"], **work)
    result = train(
        built, chosen, rounds=s["rounds"], seed=s["seed"], target=target(s["target"], built),
        callbacks=callbacks, workers=workers(s["workers"]), **kept, **work,
    )  # fmt: skip
    row = result.history.rows[-1]
    last = {k: v for k, v in row.items() if k != "clients" and not is_histogram(k)}
    shown = Table(title=f"{label} on {built.name}", box=box.SIMPLE, show_header=False)
    for key, number in last.items():
        is_integer = number == int(number) if math.isfinite(number) else False
        shown.add_row(key.replace("_", " "), f"{number:,.0f}" if is_integer else f"{number:,.5g}")
    for key, of in histograms(row).items():
        shown.add_row(f"{key.replace('_', ' ')} histogram", in_a_line(*of))
    out.print(shown)
    out.print(f"engine: {result.engine}", highlight=False)
    say_split(built, s)
    if folder is not None and is_first():
        say_written(write_run(folder, s, result))
    if result.stopped == "interrupted":
        out.print(f"stopped in round {result.rounds}: continue with fairlead resume {s['out']}")
    if result.error is not None:
        raise result.error


def compare_command(s: dict[str, Any]) -> None:
    """Compare methods."""
    built = build_task(s)
    names = each_method(s["methods"])
    tried = numbers(s["grid"]) if s["lr"] is None else None
    if tried is not None and not (tried and all(lr > 0 for lr in tried)):
        raise FairleadError(
            f"the grid is '{s['grid']}': give positive step sizes, such as 1,0.3,0.1"
        )
    if s["seeds"] < 1:
        raise FairleadError(f"seeds is {s['seeds']}: it must be at least 1")
    place = None
    if s["out"] is not None:
        check_figures(s["figure"])  # fail before training, not after
        place = ComparisonFolder(s["out"], settings=s, overwrite=s["overwrite"])
    start: Any = s["lr"] if tried is None else tried[0]
    if s["x"] not in AXES:
        raise unknown("axis", s["x"], AXES)
    methods = build_methods(names, s, start, tuned=tried is not None)
    say_memory(built, methods.values(), rounds=s["rounds"], **local(s))
    result = compare(
        built, methods, rounds=s["rounds"], seeds=s["seeds"], grid=tried,
        target=target(s["target"], built), workers=workers(s["workers"]), out=place, **local(s),
    )  # fmt: skip
    rows = result.table()
    narrow = [{k: v for k, v in row.items() if k not in ("gradients", "seconds")} for row in rows]
    out.print(table(rows if out.width > 110 else narrow, title(built, s)))
    first = next(iter(result.entries.values())).runs[0]
    out.print(f"engine: {first.engine}", highlight=False)
    say_split(built, s)
    for note in result.notes():
        out.print(note, highlight=False)
    if s["out"] is not None:
        say_written(write_comparison(Path(s["out"]), s, result))
