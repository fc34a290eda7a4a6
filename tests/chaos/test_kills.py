"""Commands that are killed at random moments end in the same bytes when they are given again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from campaign import FAIRLEAD, KILLS, Tally, finished, killed, rng_of, torchrun

import fairlead as fl
from fairlead.run.saved import listed, read

pytestmark = pytest.mark.slow

SMALL = [
    "--task",
    "digits",
    "--method",
    "scaffold",
    "--rounds",
    "30",
    "--cohort",
    "5",
    "--checkpoint-every",
    "2",
]
LARGE = [
    "--task",
    "digits",
    "--method",
    "scaffold",
    "--model",
    "mlp:5000",
    "--rounds",
    "8",
    "--checkpoint-every",
    "1",
]
COMPARED = [
    "--task",
    "digits",
    "--methods",
    "fedavg,scaffold",
    "--rounds",
    "12",
    "--seeds",
    "2",
    "--grid",
    "1,0.3",
]
DRAWN = [
    "--task",
    "digits",
    "--methods",
    "fedavg",
    "--rounds",
    "8",
    "--space",
    "lr=0.01:1:log",
    "--trials",
    "6",
]


def run_result(folder: Path) -> object:
    """The state, history and ledger of a run, without times."""
    saved = read(listed(folder / "checkpoints")[-1])
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in saved.past.rows]
    stored = [
        {k: v for k, v in row.items() if k != "seconds"}
        for row in fl.runs.read(folder).history.rows
    ]
    assert rows == stored
    ledger = [(e.round, e.clients.tolist(), e.up.tolist()) for e in saved.past.ledger.exchanges]
    tensors = {
        name: t.numpy().tobytes() for name, t in saved.tensors.items() if "places" not in name
    }
    return saved.round, rows, ledger, tensors, (folder / "history.csv").is_file()


def files(*names: str) -> Callable[[Path], object]:
    def result(folder: Path) -> object:
        return {name: (folder / name).read_bytes() for name in names}

    return result


def page(folder: Path) -> object:
    text = (folder / "report.html").read_text()
    return len(text) > 10_000, text.rstrip().endswith("</html>")


@dataclass
class Attack:
    """A command, how it is continued, and what it ends in. share: of all kills."""

    begin: list[str]
    again: list[str]
    result: Callable[[Path], object]
    share: float
    whole: bool = True


def resumed(launcher: list[str], *flags: str) -> tuple[list[str], list[str]]:
    return [*launcher, "run", *flags, "--out", "out"], [*launcher, "resume", "out"]


def again(*words: str) -> tuple[list[str], list[str]]:
    return [*FAIRLEAD, *words, "--out", "out"], [*FAIRLEAD, *words, "--out", "out"]


WORKERS = ("--workers", "2", "--engine", "loop")
ATTACKS = {
    "run, resume": Attack(*resumed(FAIRLEAD, *SMALL), run_result, 0.25),
    "run, resume, d = 375,010": Attack(*resumed(FAIRLEAD, *LARGE), run_result, 0.15),
    "workers": Attack(*resumed(FAIRLEAD, *SMALL, *WORKERS), run_result, 0.15, whole=False),
    "torchrun": Attack(*resumed(torchrun(2), *SMALL), run_result, 0.1, whole=False),
    "compare": Attack(*again("compare", *COMPARED), files("table.md", "table.csv", "tuning.json"), 0.15),
    "tune": Attack(*again("tune", *DRAWN), files("trials.csv"), 0.1),
    "report": Attack(
        [*FAIRLEAD, "report", "runs", "--out", "out/report.html"],
        [*FAIRLEAD, "report", "runs", "--out", "out/report.html"], page, 0.05,
    ),
    "reproduce": Attack(
        *again("reproduce", "saddle-fig1", "--quick"), files("table.md", "numbers.json"), 0.05
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_kills(name: str, tmp_path: Path) -> None:
    attack, tally, rng = ATTACKS[name], Tally(f"kill {name}"), rng_of("kills", name)
    if name == "report":
        code, said = finished([*FAIRLEAD, "run", *SMALL, "--out", "runs/a"], tmp_path, tally)
        assert code == 0, said
        (tmp_path / "out").mkdir()
    begin = time.monotonic()
    code, said = finished(attack.begin, tmp_path, tally)
    took = time.monotonic() - begin
    assert code == 0, said
    expected = attack.result(tmp_path / "out")
    wanted = max(1, round(attack.share * KILLS))
    while tally.tries < wanted:
        shutil.rmtree(tmp_path / "out")
        if name == "report":
            (tmp_path / "out").mkdir()
        command = attack.begin
        for _ in range(rng.randint(1, 3)):  # several in one life
            killed(command, tmp_path, rng.uniform(0.1, 1.05) * took, rng, tally, attack.whole)
            if (tmp_path / "out" / "run.json").is_file() or attack.again == attack.begin:
                command = attack.again
            else:
                shutil.rmtree(tmp_path / "out", ignore_errors=True)  # no run had begun
                (tmp_path / "out").mkdir(exist_ok=True)
        code, said = finished(command, tmp_path, tally)
        if code != 0:
            tally.bad("wrong", f"code {code}: {said}")
            continue
        if attack.result(tmp_path / "out") != expected:
            tally.bad("wrong", f"{name} ended in another result after {tally.tries} kills")
    tally.end()
