"""Commands that are killed at random moments end in the same bytes when they are given again."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from campaign import FAIRLEAD, KILLS, Tally, finished, killed, lasted, parts, rng_of, torchrun

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
    """A command, how it is continued, and what it ends in. share: of all kills. whole: all its processes are killed,
    not one of them. needs: what must be installed."""

    begin: list[str]
    again: list[str]
    result: Callable[[Path], object]
    share: float
    whole: bool = True
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> str:
        """What is not installed."""
        return ", ".join(name for name in self.needs if find_spec(name) is None)


def resumed(launcher: list[str], *flags: str) -> tuple[list[str], list[str]]:
    return [*launcher, "run", *flags, "--out", "out"], [*launcher, "resume", "out"]


def again(*words: str) -> tuple[list[str], list[str]]:
    return [*FAIRLEAD, *words, "--out", "out"], [*FAIRLEAD, *words, "--out", "out"]


WORKERS = ("--workers", "2", "--engine", "loop")
ATTACKS = {
    "run, resume": Attack(*resumed(FAIRLEAD, *SMALL), run_result, 0.25),
    # the engine is timed by the first run, which is not killed, and known to those that follow
    "run, resume, d = 375,010": Attack(*resumed(FAIRLEAD, *LARGE), run_result, 0.07),
    "run, resume, d = 375,010, loop": Attack(
        *resumed(FAIRLEAD, *LARGE, "--engine", "loop"), run_result, 0.04
    ),
    "run, resume, d = 375,010, vmap": Attack(
        *resumed(FAIRLEAD, *LARGE, "--engine", "vmap"), run_result, 0.04
    ),
    "workers": Attack(*resumed(FAIRLEAD, *SMALL, *WORKERS), run_result, 0.15, whole=False),
    "torchrun": Attack(*resumed(torchrun(2), *SMALL), run_result, 0.1, whole=False),
    "compare": Attack(*again("compare", *COMPARED), files("table.md", "table.csv", "tuning.json"), 0.15),
    "tune": Attack(*again("tune", *DRAWN), files("trials.csv"), 0.1, needs=("optuna",)),
    "report": Attack(
        [*FAIRLEAD, "report", "runs", "--out", "out/report.html"],
        [*FAIRLEAD, "report", "runs", "--out", "out/report.html"], page, 0.05,
    ),
    "reproduce, computed": Attack(
        *again("reproduce", "scaffold-lower", "--quick"), files("scaffold-lower/quick/table.md"), 0.03,
        needs=("matplotlib",),
    ),
    "reproduce, run folders": Attack(
        *again("reproduce", "all-methods", "--quick", "--only", "digits,method=scaffold,"),
        files("all-methods/quick/table.md"), 0.05, needs=("matplotlib",),
    ),
}  # fmt: skip


def every_part() -> list[tuple[str, int, int]]:
    """(attack, part, kills); attacks that cannot run here leave their kills to the others."""
    shares = {name: attack.share for name, attack in ATTACKS.items() if not attack.missing}
    found = [(name, 0, 0) for name in ATTACKS if name not in shares]
    for name, share in shares.items():
        kills = math.ceil(KILLS * share / sum(shares.values()))
        found += [(name, part, tries) for part, tries in parts(kills, 6)]
    return found


@pytest.mark.parametrize(("name", "part", "kills"), every_part())
def test_kills(name: str, part: int, kills: int, tmp_path: Path) -> None:
    attack, tally, rng = ATTACKS[name], Tally(f"kill {name}"), rng_of("kills", name, part)
    if attack.missing:
        pytest.skip(f"{name} needs {attack.missing}, which is not installed")
    if name == "report":
        code, said = finished([*FAIRLEAD, "run", *SMALL, "--out", "runs/a"], tmp_path, tally)
        assert code == 0, said
    out = tmp_path / "out"
    out.mkdir()
    began, took = lasted(attack.begin, tmp_path, out)
    expected = attack.result(out)
    while tally.tries < kills:
        shutil.rmtree(out)
        out.mkdir()
        command = attack.begin
        for _ in range(rng.randint(1, 3)):  # several in one life
            early = rng.random() < 0.15
            after = rng.uniform(0.1 * began, began) if early else rng.uniform(began, 1.05 * took)
            killed(command, tmp_path, after, rng, tally, attack.whole)
            if (out / "run.json").is_file() or attack.again == attack.begin:
                command = attack.again
            else:
                shutil.rmtree(out)  # no run had begun
                out.mkdir()
        code, said = finished(command, tmp_path, tally)
        if code != 0:
            tally.bad("wrong", f"code {code}: {said}")
        elif attack.result(out) != expected:
            tally.bad("wrong", f"{name} ended in another result after {tally.tries} kills")
    tally.end()
