"""`fairlead new method` writes a method and a test that run as they are."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.cli import app


def _new(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["new", "method", *words])
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a new method."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    code, said = _new("fed-new")
    assert code == 0, said
    assert said.startswith(
        "written: fed_new.py and test_fed_new.py What is left to do: 1. fed_new.py"
    )
    assert "--methods fedavg,fed_new.py:FedNew" in said
    yield tmp_path
    sys.modules.pop("fed_new", None)


@pytest.mark.parametrize(
    "test", ["test_two_rounds_by_hand", "test_without_its_term_it_is_fedavg"]
)  # fmt: skip
def test_its_own_tests_pass(written: Path, test: str) -> None:
    runpy.run_path(str(written / "test_fed_new.py"))[test]()


@pytest.mark.slow
def test_it_has_the_properties_of_every_method(written: Path) -> None:
    found = runpy.run_path(str(written / "test_fed_new.py"))
    found["test_it_has_the_properties_of_every_method"]()


def test_it_runs_on_the_command_line(written: Path) -> None:
    words = [
        "run",
        "--task",
        "theorem2",
        "--method",
        "fed_new.py:FedNew",
        "--lr",
        "0.1",
        "--rounds",
        "3",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output


def test_files_that_exist_and_odd_names_are_refused(written: Path) -> None:
    before = (written / "fed_new.py").read_text()
    code, said = _new("FedNew")
    assert code == 2
    assert "fed_new.py exists: give another name or another --out" in said
    assert (written / "fed_new.py").read_text() == before
    code, said = _new("2nd")
    assert code == 2
    assert "'2nd' is no name of a method" in said
    code, said = _new("Other", "--out", "fed_new.py/sub")
    assert code == 2
    assert "cannot write to" in said
