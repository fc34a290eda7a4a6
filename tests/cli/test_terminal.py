"""What a user sees in a terminal: help, names, files of their own, narrow tables."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import NEEDED, app, common, doctor
from fairlead.cli.flags import PANELS
from fairlead.cli.settings import DEFAULTS, METHOD_SETTINGS, OPTIONS
from fairlead.cli.tables import table

SMALL = ["--rounds", "2", "--clients", "3", "--lr", "0.1"]


def _commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[str]:
    """The words of every command and of every group of commands."""
    yield " ".join(before)
    for name, command in getattr(group, "commands", {}).items():
        yield from _commands(command, (*before, name))


COMMANDS = list(_commands(typer.main.get_command(app)))


def _run(*words: str, code: int = 0, columns: int = 80) -> str:
    common.out.width = columns
    result = CliRunner(env={"COLUMNS": str(columns), "NO_COLOR": "1"}).invoke(app, list(words))
    assert result.exit_code == code, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, in which nothing is imported yet."""
    kept = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80", **environment}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=kept, check=False, timeout=120
    )  # fmt: skip


# -- start -----------------------------------------------------------------------------------------


def test_help_of_every_command_has_examples_and_needs_no_torch() -> None:
    code = f"""
import sys
sys.modules["torch"] = sys.modules["numpy"] = None  # importing them is an error
from fairlead.cli import app
for command in {COMMANDS!r}:
    print("==", command)
    app([*command.split(), "--help"], standalone_mode=False)
app(["--version"], standalone_mode=False)
"""
    done = _python(code)
    assert done.returncode == 0, done.stderr
    parts = done.stdout.split("== ")[1:]
    assert len(parts) == len(COMMANDS)
    for command, part in zip(COMMANDS, parts, strict=True):
        assert f"   fairlead {command}" in part.partition("Examples:")[2], command
        assert max(map(len, part.splitlines())) <= 80
    assert done.stdout.splitlines()[-1] == f"fairlead {fl.__version__}"


def test_a_run_says_something_before_it_imports_torch() -> None:
    code = """
import sys
sys.modules["numpy"] = None  # torch and all the rest come after it
from fairlead.cli import app
app(["run", "--task", "theorem2"])
"""
    done = _python(code)
    assert done.stderr.startswith("run on theorem2: loading PyTorch …\n")
    assert "import of numpy halted" in done.stderr


def test_importing_fairlead_is_lazy_and_complete() -> None:
    code = """
import sys
import fairlead as fl
assert "torch" not in sys.modules
assert not hasattr(fl, "__wrapped__") and "torch" not in sys.modules
assert fl.errors.FairleadError is fl.FairleadError  # a submodule
assert set(fl.__all__) <= set(dir(fl)) and "Scaffold" in fl.__all__
assert all(getattr(fl, name) is not None for name in fl.__all__)
from fairlead import *
assert Scaffold is fl.Scaffold and tasks is fl.tasks and testing is fl.testing
assert not hasattr(fl, "Scafold")
"""
    done = _python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_typer_it_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; import runpy; runpy.run_module('fairlead', run_name='__main__')"
    done = _python(code)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{NEEDED}\n")
    assert "pip install typer rich" in NEEDED


def test_shells_complete_commands_and_flags() -> None:
    code = "from fairlead.cli import app; app(prog_name='fairlead')"
    given = {"_FAIRLEAD_COMPLETE": "complete_bash", "_TYPER_COMPLETE_TESTING": "1"}
    done = _python(code, **given, COMP_WORDS="fairlead comp", COMP_CWORD="1")
    assert done.stdout.split() == ["compare"]
    done = _python(code, **given, COMP_WORDS="fairlead run --batch", COMP_CWORD="2")
    assert done.stdout.split() == ["--batch-size"]


# -- help ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "compare", "tune"])
def test_flags_are_in_panels(command: str) -> None:
    text = _run(command, "--help")
    found = re.findall(r"╭─ (.+?) ─", text)
    own = ["Search"] if command == "tune" else []
    assert found == ["Options", *PANELS, *own]
    for panel, part in zip(found, text.split("╭─")[1:], strict=True):
        for flag in re.findall(r"│ --(\S+)", part):
            key = flag.replace("-", "_")
            assert key in PANELS.get(panel, ()) or panel in ("Options", *own), flag


def test_every_setting_is_in_one_panel() -> None:
    placed = [key for keys in PANELS.values() for key in keys]
    assert sorted(placed) == sorted(OPTIONS)
    assert set(METHOD_SETTINGS) <= set(PANELS["Method"])


def test_flags_that_are_true_or_false_can_be_negated(tmp_path) -> None:
    (tmp_path / "s.toml").write_text("drop-last = true\nobjective = true\n")
    words = ["run", "--config", str(tmp_path / "s.toml"), "--out"]
    _run(*words, str(tmp_path / "a"), "--no-objective", "--no-drop-last", *SMALL)
    _run(*words, str(tmp_path / "b"), *SMALL)
    a, b = (fl.runs.read(tmp_path / name) for name in "ab")
    assert "loss" not in a.history
    assert "loss" in b.history
    assert [run.about["settings"]["drop_last"] for run in (a, b)] == [False, True]


# -- names -----------------------------------------------------------------------------------------


def test_names_are_taken_in_any_case(tmp_path) -> None:
    words = ["--task", "Digits", "--split", "Dirichlet", "--model", "MLP:7x5", "--engine", "Loop"]
    words += [
        "--weighting",
        "SIZE",
        "--dtype",
        "Float64",
        "--figure",
        "SVG",
        "--schedule",
        "Cosine",
    ]
    _run("run", "--method", "SCAFFOLD", "--option", "i", *words, *SMALL, "--out", str(tmp_path))
    run = fl.runs.read(tmp_path)
    assert run.label == "Scaffold"
    assert run.about["method"]["option"] == "I"
    assert run.about["settings"]["split"] == "dirichlet"
    assert (tmp_path / "run.svg").is_file()


@pytest.mark.parametrize("name", ["MimeLite", "mime_lite", "MIME-LITE", "Mime-Lite"])
def test_methods_are_found_as_tables_and_papers_write_them(name: str) -> None:
    assert "MimeLite on theorem2" in _run(
        "run", "--task", "THEOREM2", "--method", name, "--rounds", "1"
    )
    assert "@inproceedings{karimireddy2021breaking" in _run("cite", name)


def test_data_sets_and_experiments_in_any_case() -> None:
    assert "digits is embedded" in _run("data", "get", "Digits")
    assert "did you mean 'saddle-fig" in _run("reproduce", "Saddle-Fig9", code=2)


# -- one method twice ------------------------------------------------------------------------------


def test_one_method_twice_with_different_settings(tmp_path) -> None:
    methods = "fedavg,FedAvg:momentum=0.9,server_lr=0.5,fedpaq:compressor=QSGD:2"
    text = _run("compare", "--methods", methods, "--seeds", "1", *SMALL, "--out", str(tmp_path))
    assert "momentum=0.9" in text
    found = {run.label: run.about["method"] for run in fl.runs.find(tmp_path)}
    labels = ["FedAvg", "FedAvg momentum=0.9, server_lr=0.5", "FedPAQ compressor=QSGD:2"]
    assert list(found) == labels
    assert [found[label]["momentum"] for label in labels] == [0, 0.9, 0]
    plain, heavy = (fl.runs.read(tmp_path / f"{n}-0").history for n in
                    ("FedAvg", "FedAvg-momentum-0.9-server_lr-0.5"))  # fmt: skip
    task = fl.tasks.digits(clients=3)
    for method, history in (
        (fl.FedAvg(lr=0.1), plain),
        (fl.FedAvg(lr=0.1, momentum=0.9, server_lr=0.5), heavy),
    ):
        run = fl.train(task, method, rounds=2, batch_size=0.2)
        assert history["loss"].tolist() == run.history["loss"].tolist()


def test_methods_have_step_sizes_of_their_own_unless_they_are_tuned(tmp_path) -> None:
    words = ["compare", "--methods", "fedavg:lr=1,fedavg", "--seeds", "1"]
    _run(*words, *SMALL, "--out", str(tmp_path))
    assert {run.label: run.lr for run in fl.runs.find(tmp_path)} == {
        "FedAvg": 0.1,
        "FedAvg lr=1": 1,
    }
    text = _run(*words, "--rounds", "2", code=2)
    assert "is chosen from the grid: leave out its lr" in " ".join(text.split())


def test_one_method_is_tuned_twice_and_its_best_run_has_its_settings(tmp_path) -> None:
    words = ["tune", "--methods", "fedavg,fedavg:momentum=0.9", "--seeds", "1", "--grid", "1,0.3"]
    words += ["--rounds", "2", "--clients", "3"]
    _run(*words, "--out", str(tmp_path))
    best = tmp_path / "best-FedAvg-momentum-0.9.toml"
    _run("run", "--config", str(best), "--out", str(tmp_path / "r"))
    run = fl.runs.read(tmp_path / "r")
    assert run.label == "FedAvg momentum=0.9"
    assert run.about["method"]["momentum"] == 0.9
    text = _run(*words, "--space", "momentum=0|0.5", code=2)
    assert "momentum is searched for: leave it out" in text


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("fedavg,FedAvg", "FedAvg is listed twice"),
        ("fedavg:momentum=0.9,fedavg:momentum=0.9", "FedAvg momentum=0.9 is listed twice"),
        ("fedavg:momentm=0.9", "there is no setting of FedAvg 'momentm': did you mean 'momentum'"),
        ("fedavg:momentum", "write fedavg:momentum=0.9, or my.py:MyMethod"),
        ("fedavg:warm_start=true,scaffold", "warm start is not supported by FedAvg"),
        ("fedavg:lr=a", "give a number"),
    ],
)
def test_methods_with_settings_that_do_not_fit(methods: str, message: str) -> None:
    text = _run("compare", "--methods", methods, "--seeds", "1", *SMALL, code=2)
    assert message in " ".join(text.split())


# -- own methods and models ------------------------------------------------------------------------

OWN = '''
from __future__ import annotations
from dataclasses import dataclass
from torch import nn
import fairlead as fl
from beside import WIDTH

@dataclass(frozen=True)
class Mine(fl.FedAvg):
    """FedAvg with a setting more."""
    extra: float = 1.0

class Bare(fl.Algorithm):
    """No settings."""

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 10))

module, number = net(), 3
'''


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """A user's file, which imports another one beside it."""
    (tmp_path / "beside.py").write_text("WIDTH = 7\n")
    (tmp_path / "My.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("beside", "own_My"):
        sys.modules.pop(name, None)


def test_methods_and_models_of_a_file(own: Path, monkeypatch) -> None:
    words = ["--method", "My.py:Mine:extra=0.5", "--model", "My.py:net", *SMALL]
    text = _run("run", *words, "--checkpoint-every", "1", "--out", "r")
    assert "Mine extra=0.5 on digits" in text
    run = fl.runs.read(own / "r")
    assert run.about["method"]["extra"] == 0.5
    assert run.about["task"]["parameters"] == 64 * 7 + 7 + 7 * 10 + 10
    (own / "elsewhere").mkdir()
    monkeypatch.chdir(own / "elsewhere")  # it is resumed from anywhere
    _run("resume", str(own / "r"), "--rounds", "3")
    assert fl.runs.read(own / "r").history.last("round") == 3


def test_own_methods_are_compared(own: Path) -> None:
    words = ["--methods", "fedavg,My.py:Mine,My.py:Mine:momentum=0.9", "--model", "My.py:module"]
    _run("compare", *words, "--seeds", "1", *SMALL, "--out", "c")
    runs = {run.label: run.history for run in fl.runs.find(own / "c")}
    assert list(runs) == ["FedAvg", "Mine", "Mine momentum=0.9"]
    assert runs["Mine"].last("loss") == runs["FedAvg"].last("loss")  # it is FedAvg
    assert runs["Mine"].last("loss") != runs["Mine momentum=0.9"].last("loss")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--method My.py:Min", "there is no name in"),
        ("--method My.py:net", "is not a method: give a subclass of fl.Algorithm"),
        ("--method My.py:Bare", "has no setting lr"),
        ("--model My.py:number", "is not a model"),
        ("--model My.py:Mine", "is not a model"),
        ("--method none.py:Mine", "there is no file"),
        ("--method broken.py:Mine", "cannot be imported: NameError"),
        ("--task theorem2 --model My.py:net", "has its own model: leave out --model"),
    ],
)
def test_files_that_do_not_fit(own: Path, words: str, message: str) -> None:
    (own / "broken.py").write_text("undefined\n")
    text = _run("run", *words.split(), "--rounds", "1", code=2)
    assert message in " ".join(text.split())
    assert text.count("error:") == 1


# -- init ------------------------------------------------------------------------------------------


def test_init_writes_a_file_that_run_takes(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "fairlead run --config settings.toml" in _run("init")
    assert "settings.toml exists" in _run("init", code=2)
    _run("init", "--overwrite")
    _run("run", "--config", "settings.toml", "--out", "r", *SMALL)
    assert fl.runs.read("r").label == "Scaffold"
    assert "cannot write to" in _run("init", "no/such/folder.toml", code=2)


def test_init_explains_every_setting(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    _run("init", "s.toml")
    lines = (tmp_path / "s.toml").read_text().splitlines()
    assert max(len(line) for line in lines) <= 80
    assert tomllib.loads("\n".join(lines)) == {"task": "digits", "method": "scaffold", "rounds": 60}
    every = [re.sub(r"^#(?=\w+ = )", "", line) for line in lines]
    values = tomllib.loads("\n".join(every))
    assert set(values) == set(DEFAULTS)
    for key, default in DEFAULTS.items():
        example = default is None
        assert example or values[key] == default
        assert values[key] != "…", key
        line = next(line for line in every if line.startswith(f"{key} = "))
        assert line.endswith("# an example") == example
    (tmp_path / "all.toml").write_text("\n".join(every))
    text = _run("run", "--config", str(tmp_path / "all.toml"), "--task", "nonsense", code=2)
    assert "there is no task 'nonsense'" in text  # every value has the right kind


# -- output ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_no_number_is_broken_in_a_narrow_table(columns: int) -> None:
    row = {
        "method": "scaffold-catalyst-s", "lr": "0.0003", "rounds to x distance ≤ 1e-06": "1234.5 ± 12.5",
        "best x distance": "1.999e-16 ± 2.3e-17", "final x distance": "1.999e-10 ± 2.3e-11",
        "exchanges": "123456", "Mbit": "1.024e+05",
    }  # fmt: skip
    console = Console(width=columns, no_color=True, file=io.StringIO())
    console.print(table([row, {**row, "method": "FedAvg momentum=0.9"}], "title", width=columns))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= columns
    words = text.split()
    for cell in row.values():
        for word in cell.split():
            assert word in words, word


def test_commands_do_not_break_numbers_at_80_columns(tmp_path) -> None:
    words = ["compare", "--task", "random-quadratics", "--methods", "fedavg,scaffold,mirror-prox"]
    text = _run(*words, "--steps", "5", "--seeds", "2", "--lr", "0.5", "--rounds", "3", "--target",
                "distance=1e-6", "--out", str(tmp_path))  # fmt: skip
    rows = (tmp_path / "table.csv").read_text().splitlines()
    shown = text.split()
    for row in rows[1:]:
        for cell in row.split(",")[:5]:
            assert all(word in shown for word in cell.split()), cell
    listed = _run("runs", "list", str(tmp_path))
    assert max(map(len, listed.splitlines())) <= 80
    for run in fl.runs.find(tmp_path):
        assert f"{run.history.last('distance'):,.5g}" in listed.split()


def test_errors_fit_the_terminal() -> None:
    text = _run("run", "--cohort", "always:12", "--clients", "3", code=2)
    assert text.startswith("error: ")
    assert max(map(len, text.splitlines())) <= 80


def test_one_of_a_thing_is_in_the_singular(tmp_path) -> None:
    words = [
        "--methods",
        "fedavg",
        "--seeds",
        "1",
        "--lr",
        "0.1",
        "--rounds",
        "1",
        "--clients",
        "1",
    ]
    text = " ".join(_run("compare", *words).split())
    assert "digits: 1 client, similarity split, cohort all, 1 round, 1 seed" in text
    run = fl.train(
        fl.problems.theorem2(), fl.FedAvg(lr=0.1), rounds=1, batch_size=1, engine=fl.Distributed()
    )
    assert "1 rank" in run.engine
    assert "1 ranks" not in run.engine


def test_doctor_says_what_is_there_and_what_is_missing(monkeypatch) -> None:
    have = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "wandb" else have(name))
    text = _run("doctor")
    assert f"fairlead {fl.__version__}" in text
    assert "torch" in text
    assert re.search(r"cpu: \d+ cores?, \d+ GiB", text)
    assert "cuda" in text
    assert f"pooch {have('pooch')}" in text
    assert "missing: wandb, for --track wandb: pip install wandb" in text


def test_settings_of_methods_have_flags() -> None:
    """`name:setting=value` and flags set the same fields."""
    fields = {f.name for kind in fl.METHODS.values() for f in dataclasses.fields(kind)}
    assert set(METHOD_SETTINGS) <= fields
