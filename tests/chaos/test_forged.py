"""Run folders whose files were changed: read, listed, reported and resumed without a traceback, a hang or a wrong
result."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import struct
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from campaign import FORGED, Tally, parts, rng_of
from conftest import uneven
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import app
from fairlead.core.tensorfile import write
from fairlead.run.saved import listed, read

pytestmark = pytest.mark.slow

METHOD = fl.Scaffold(lr=0.1)
WORK = {"cohort": 3, "batch_size": 4, "epochs": 1}
RUN = [
    "--task",
    "digits",
    "--method",
    "scaffold",
    "--rounds",
    "4",
    "--checkpoint-every",
    "1",
    "--cohort",
    "3",
]
ODD: list[Any] = [
    None, True, -1, 0, 10**30, -0.5, 1e400, float("nan"), "", "\x1b[31m", "../../../etc/passwd", [], {}, [[1]],
    {"a": {"b": []}}, "9" * 400, "\x00", "NaN", [None] * 50,
]  # fmt: skip


def bytes_changed(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    kind = rng.randrange(5)
    if kind == 0 and data:
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[rng.randrange(len(data) + 1) :]
    elif kind == 2:
        at = rng.randrange(len(data) + 1)
        data[at:at] = rng.randbytes(rng.randint(1, 64))
    elif kind == 3 and data:
        at = rng.randrange(len(data))
        data[at : at + rng.randint(1, 200)] = b"\0" * rng.randint(0, 200)
    else:
        data = bytearray(rng.choice([b"", b"{}", b"[]", b"null", rng.randbytes(300), data * 2]))
    path.write_bytes(data)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in inner:
        found += places(part, (*path, key))
    return found


def json_changed(rng: random.Random, value: Any) -> Any:
    """The value with one of its parts replaced or removed."""
    value = json.loads(json.dumps(value))
    path = rng.choice(places(value))
    at = value
    for key in path[:-1]:
        at = at[key]
    if rng.random() < 0.2:
        del at[path[-1]]
    else:
        at[path[-1]] = rng.choice(ODD)
    return value


def description(rng: random.Random, folder: Path) -> None:
    path = folder / "run.json"
    about = json.loads(path.read_text())
    for _ in range(rng.randint(1, 3)):
        about = json_changed(rng, about)
    if rng.random() < 0.05:
        path.write_text("[" * 100_000)
    else:
        path.write_text(json.dumps(about))


def history(rng: random.Random, folder: Path) -> None:
    """Any statement on the tables of the history."""
    name = rng.choice(["rows", "parts", "names"])
    column = {
        "rows": ["round", "part", "loss", "seconds"],
        "parts": ["after", "why", "began", "part"],
    }
    what = rng.choice(column.get(name, ["name"]))
    value = rng.choice(["NULL", "'abc'", "x'00ff'", "-5", "1e999", "9223372036854775807", "''"])
    statement = rng.choice([
        f"UPDATE {name} SET {what} = {value}", f"DELETE FROM {name}", f"DROP TABLE {name}",
        f"INSERT INTO {name} ({what}) VALUES ({value})", f"ALTER TABLE {name} ADD COLUMN evil",
        f"DROP TABLE {name}; CREATE VIEW {name} AS WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x FROM t) "
        "SELECT x AS part, x AS round, x AS after, x AS began, x AS ended, x AS why, x AS name, x AS stands_in FROM t",
    ])  # fmt: skip
    db = sqlite3.connect(folder / "history.sqlite")
    try:
        db.executescript(statement)
    except sqlite3.Error:
        pass
    finally:
        db.close()


def checkpoint(rng: random.Random, folder: Path) -> None:
    """Another content with a checksum that fits."""
    path = rng.choice(listed(folder / "checkpoints"))
    saved = read(path)
    tensors = {name: t.clone() for name, t in saved.tensors.items()}
    meta: Any = saved.meta
    kind = rng.randrange(4)
    if kind < 2:
        meta = json_changed(rng, meta)
    if kind in (1, 2):
        name = rng.choice(sorted(tensors))
        t = tensors[name]
        tensors[name] = rng.choice(
            [t[:0], t.float(), t.reshape(-1)[:1], torch.cat([t, t]) if t.dim() else t]
        )
    if kind == 3:
        tensors.pop(rng.choice(sorted(tensors)))
    with path.open("wb") as file:
        write(file, tensors, "fairlead", meta)


def header(rng: random.Random, folder: Path) -> None:
    """A length or an offset in a checkpoint's header."""
    path = rng.choice(listed(folder / "checkpoints"))
    data = path.read_bytes()
    if rng.random() < 0.5:
        path.write_bytes(struct.pack("<Q", rng.choice([0, 1, 2**63, len(data), 2**40])) + data[8:])
    else:
        size = struct.unpack("<Q", data[:8])[0]
        text = json.loads(data[8 : 8 + size])
        changed = json.dumps(json_changed(rng, text)).encode()
        path.write_bytes(struct.pack("<Q", len(changed)) + changed + data[8 + size :])


def past(rng: random.Random, folder: Path) -> None:
    bytes_changed(rng, rng.choice(list((folder / "checkpoints").glob("past-*"))))


def anything(rng: random.Random, folder: Path) -> None:
    bytes_changed(rng, rng.choice([p for p in sorted(folder.rglob("*")) if p.is_file()]))


def missing(rng: random.Random, folder: Path) -> None:
    path = rng.choice([p for p in sorted(folder.rglob("*")) if p.is_file()])
    path.unlink()
    if rng.random() < 0.3:
        path.mkdir()


FORGERIES: list[Callable[[random.Random, Path], None]] = [
    description,
    history,
    checkpoint,
    header,
    past,
    anything,
    missing,
]
VALUES = (checkpoint, header)
"""After these the checksum fits, so another value is another run: only the form is judged."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forged") / "run"
    found = CliRunner().invoke(app, ["run", *RUN, "--out", str(folder)])
    assert found.exit_code == 0, found.output
    return folder


def in_time(
    work: Callable[[], Any], seconds: float = 300.0
) -> tuple[bool, Any, BaseException | None]:
    """Whether work ended, and how."""
    kept: list[Any] = [None, None]

    def do() -> None:
        try:
            kept[0] = work()
        except BaseException as error:
            kept[1] = error

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive(), *kept


def commanded(words: list[str], tally: Tally, about: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ended, found, error = in_time(lambda: CliRunner().invoke(app, words))
    if not ended:
        tally.bad("hang", f"{words}: {about}")
        return None
    wrong = error or found.exception
    if wrong is not None and not isinstance(wrong, SystemExit):
        tally.bad("traceback", f"{words[:2]}: {about}: {wrong!r}")
    if found is not None and "\x1b[31m" in found.output:
        tally.bad("wrong", f"an escape sequence in the output of {words[:2]}: {about}")
    return found


@pytest.mark.parametrize(("part", "tries"), parts(FORGED // 2, 25))
def test_forged_folders_of_the_command_line(
    part: int, tries: int, original: Path, tmp_path: Path
) -> None:
    tally, rng = Tally("forged run folders, command line"), rng_of("forged commands", part)
    for number in range(tries):
        folder = tmp_path / "r"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(original, folder)
        forge = rng.choice(FORGERIES)
        forge(rng, folder)
        about = f"{forge.__name__} {part}, {number}"
        command = rng.choice(["show", "list", "diff", "report", "show", "resume"])
        words = {
            "show": ["runs", "show", str(folder)], "list": ["runs", "list", str(tmp_path)],
            "diff": ["runs", "diff", str(folder), str(original)],
            "report": ["report", str(folder), "--out", str(tmp_path / "page.html")],
            "resume": ["resume", str(folder)],
        }[command]  # fmt: skip
        commanded(words, tally, about)
        tally.tries += 1
    tally.end()


@pytest.mark.parametrize(("part", "tries"), parts(FORGED - FORGED // 2, 50))
def test_forged_folders_of_the_library(part: int, tries: int, tmp_path: Path) -> None:
    tally, rng = Tally("forged run folders, fl.train(resume=…)"), rng_of("forged library", part)
    task = uneven()
    whole = fl.train(task, METHOD, rounds=6, workers=1, **WORK)
    original = tmp_path / "original"
    keep = fl.Checkpoints(original / "checkpoints", every=1)
    fl.train(task, METHOD, rounds=4, out=original, checkpoints=keep, workers=1, **WORK)
    for number in range(tries):
        folder = tmp_path / "r"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(original, folder)
        forge = rng.choice(FORGERIES)
        forge(rng, folder)
        about = f"{forge.__name__} {part}, {number}"

        def resume(folder: Path = folder) -> fl.Run:
            return fl.train(task, METHOD, rounds=6, out=folder, resume="auto", **WORK)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ended, run, error = in_time(resume)
        tally.tries += 1
        if not ended:
            tally.bad("hang", about)
            break
        if error is not None:
            if not isinstance(error, fl.FairleadError):
                tally.bad("traceback", f"{about}: {error!r}")
        elif forge not in VALUES and not torch.equal(run.x, whole.x):
            tally.bad("wrong", f"{about}: another result")
        elif forge not in VALUES and len(fl.runs.read(folder).history.rows) != 7:
            tally.bad("wrong", f"{about}: the history has not all rows")
    tally.end()
