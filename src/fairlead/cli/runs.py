"""What the commands for run folders do: fairlead runs list | show | diff | rm."""

from __future__ import annotations

import csv
import io
import json
import sys
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.table import Table

from fairlead.cli.common import COLUMNS
from fairlead.cli.console import Plain, plain
from fairlead.cli.tables import table
from fairlead.describe import counted
from fairlead.errors import FairleadError, unknown
from fairlead.figures.plots import MAIN
from fairlead.methods.citations import PAPERS
from fairlead.run import folder as runs
from fairlead.run.folder import CHECKPOINTS, StoredRun
from fairlead.run.history import History
from fairlead.run.saved import listed
from fairlead.task.per_client import histograms, in_a_line, is_histogram
from fairlead.track.tracker import best


def list_command(folders: Sequence[Path], sort: str, as_json: bool, as_csv: bool) -> None:
    """List all runs in the folders."""
    if sort not in COLUMNS:
        raise unknown("column", sort, COLUMNS)
    found = _listed(folders)
    found.sort(key=lambda row: (row[sort] is None, row[sort] if row[sort] is not None else 0))
    if as_json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    elif as_csv:
        _write_csv(list(COLUMNS), found)
    elif not found:
        _echo("there are no runs")
    else:
        _print(_overview(found, Plain().width))


def _listed(folders: Sequence[Path]) -> list[dict[str, Any]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = runs.find(folders)
    problems = [str(warning.message) for warning in caught]
    rows = []
    for run in found:
        try:
            rows.append(_row(run))
        except FairleadError as error:
            problems.append(f"skipped: {error}")
    for problem in problems:
        Plain(stderr=True).print(problem, markup=False, highlight=False, soft_wrap=True)
    return rows


def _row(run: StoredRun) -> dict[str, Any]:
    last = run.history.rows[-1] if run.history.rows else {}
    metric = next((name for name in MAIN if name in last), None)
    part = run.parts[-1] if run.parts else {"began": None, "ended": None}
    return {
        "folder": str(run.folder), "method": run.label, "lr": run.lr,
        "task": run.about.get("task", {}).get("name"), "seed": run.seed,
        "rounds": int(last.get("round", 0)), "asked": run.about.get("rounds"),
        "status": run.status, "metric": metric, "value": None if metric is None else last[metric],
        "bytes": run.size, "when": part["ended"] or part["began"],
    }  # fmt: skip


def _overview(rows: list[dict[str, Any]], width: int) -> Table:
    """A table for display; narrow terminals get fewer columns."""
    shown = [
        {
            "folder": row["folder"], "method": row["method"], "lr": _number(row["lr"]),
            "task": row["task"] or "", "seed": str(row["seed"]),
            "rounds": f"{row['rounds']}/{row['asked']}", "status": row["status"][:60],
            "last": "" if row["metric"] is None else f"{_name(row['metric'])} {_number(row['value'])}",
            "size": _size(row["bytes"]), "when": _when(row["when"]),
        }
        for row in rows
    ]  # fmt: skip
    names = [name for name in shown[0] if not (width < 110 and name in ("task", "size", "when"))]
    return table(
        [{name: row[name] for name in names} for row in shown], paths="folder", width=width
    )


def show_command(folder: Path, history: bool, as_csv: bool) -> None:
    """Show one run."""
    run = runs.read(folder)
    if as_csv:
        _write_csv(list(run.history), run.history.rows)
    elif history:
        _echo(_text(run.history))
    else:
        _show(run)


def _show(run: StoredRun) -> None:
    row = _row(run)
    _echo(f"{run.folder}: {run.label} on {row['task']}, {row['rounds']} of {row['asked']} rounds, "
          f"{run.status}, {_size(run.size)}")  # fmt: skip
    hidden = ("split.counts", "format", "began", "after")
    shown = {
        k: v
        for k, v in runs.flat(run.about).items()
        if k not in hidden and not k.startswith("better.")
    }
    _pairs("settings", {k: v for k, v in shown.items() if v is not None and v != ""})
    parts = Table("began", "from", "ended", "why", title="parts", box=box.SIMPLE_HEAD)
    for part in run.parts:
        start = "the start" if part["after"] < 0 else f"round {part['after']}"
        why = part["why"] or ("running" if part is run.parts[-1] and run.busy else "broken off")
        parts.add_row(_when(part["began"]), start, _when(part["ended"]), why)
    _print(parts)
    if run.history.rows:
        values = Table("", "last", "best", title="values", box=box.SIMPLE_HEAD)
        top = best(run.history)
        last = run.history.rows[-1]
        for name, value in last.items():
            if not is_histogram(name):
                values.add_row(_name(name), _number(value), _number(top.get(name)))
        for name, of in histograms(last).items():
            values.add_row(f"{_name(name)} histogram", in_a_line(*of), "")
        _print(values)
    kept = {
        f"round {int(path.stem.partition('-')[2])}": _size(path.stat().st_size)
        for path in listed(run.folder / CHECKPOINTS)
    }
    _pairs("checkpoints", kept or {"none": ""})
    paper = PAPERS.get(run.about.get("paper", ""))
    if paper is not None:
        _echo(paper.bibtex)


def diff_command(one: Path, two: Path) -> None:
    """Show how two runs differ; exit with 1 if rows differ."""
    a, b = runs.read(one), runs.read(two)
    settings = Table("setting", str(one), str(two), title="settings", box=box.SIMPLE_HEAD)
    different = runs.differences(a, b)
    for name, (first, second) in different.items():
        settings.add_row(name, _short(first), _short(second))
    if different:
        _print(settings)
    else:
        _echo("the settings are the same")
    last = [history.rows[-1] if history.rows else {} for history in (a.history, b.history)]
    numbers = Table("", str(one), str(two), title="last values", box=box.SIMPLE_HEAD)
    for name in dict.fromkeys([*last[0], *last[1]]):
        numbers.add_row(_name(name), *(_number(row.get(name)) for row in last))
    _print(numbers)
    at = runs.first_difference(a.history, b.history)
    if at is None:
        _echo(f"all rows are the same ({counted(len(a.history.rows), 'row')}), apart from seconds")
        return
    _echo(f"the rows differ from round {at} on")
    raise typer.Exit(1)


def rm_command(folders: Sequence[Path], yes: bool) -> None:
    """Delete runs: their own files and checkpoints, and folders left empty."""
    found = [runs.read(folder) for folder in folders]
    for run in found:  # check all before deleting any
        if run.busy:
            raise FairleadError(f"a process is writing to {run.folder}: stop it first")
        if run.folder.is_symlink():
            raise FairleadError(f"{run.folder} is a link: give {run.folder.resolve()} itself")
        files = runs.belongings(run.folder)
        _echo(f"{run.folder}: {run.label}, {counted(len(files), 'file')}, {_size(run.size)}")
        others = _others(run.folder, files)
        if others:
            _echo(f"  kept: {', '.join(others[:8])}{', …' * (len(others) > 8)}")
    if not yes and not typer.confirm(f"Delete {'this run' if len(found) == 1 else 'these runs'}?"):
        _echo("nothing was deleted")
        return
    for run in found:
        runs.remove(run.folder)
        _echo(f"deleted: {run.folder}")


def _others(folder: Path, own: Sequence[Path]) -> list[str]:
    """The top-level names in a folder that are kept."""
    mine = {folder / runs.LOCK, *own}
    left = [p for p in folder.rglob("*") if p not in mine and (p.is_symlink() or not p.is_dir())]
    return sorted({path.relative_to(folder).parts[0] for path in left})


def _echo(text: str) -> None:
    Plain().print(text, markup=False, highlight=False, soft_wrap=True)


def _print(table: Table) -> None:
    Plain(markup=False).print(table, highlight=False)  # brackets are literal


def _pairs(title: str, values: dict[str, Any]) -> None:
    table = Table(title=title, box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(name, _short(value))
    _print(table)


def _text(history: History) -> str:
    """Columns side by side, of any total width."""
    columns = [[_name(name), *(_number(row.get(name)) for row in history.rows)] for name in history]
    widths = [max(map(len, column)) for column in columns]
    return "\n".join(
        "  ".join(f"{word:>{width}}" for word, width in zip(line, widths, strict=True))
        for line in zip(*columns, strict=True)
    )


def _write_csv(names: list[str], rows: Sequence[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    sys.stdout.write(plain(text.getvalue()) if sys.stdout.isatty() else text.getvalue())


def _name(column: str) -> str:
    return column.replace("_", " ")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.5g}"


def _short(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:199]}…"


def _size(count: int) -> str:
    """A size in bytes, human-readable.

    >>> _size(900), _size(1_500_000)
    ('900 B', '1.5 MB')
    """
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _when(text: str | None) -> str:
    """A time in the local time zone, to the minute."""
    if text is None:
        return ""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):  # not one of ours
        return text
