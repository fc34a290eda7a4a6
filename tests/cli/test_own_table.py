"""A table of one's own on the command line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import app, common
from fairlead.task.own_table import csv


@pytest.fixture
def people(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = ["town,age,colour,code,sick"]
    for _ in range(120):
        age, colour = int(rng.integers(18, 90)), rng.choice(["red", "blue", "green"])
        town, code = rng.choice(["lyon", "bern", "oslo", "rome"]), int(rng.choice([3, 5, 9]))
        lines.append(f"{town},{age},{colour},{code},{'yes' if age > 50 else 'no'}")
    (tmp_path / "people.csv").write_text("\n".join(lines))
    return tmp_path / "people.csv"


def _run(*words: str, code: int = 0) -> str:
    common.out.width = 200
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, list(words))
    assert result.exit_code == code, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_a_csv_file_is_run_and_compared(people: Path) -> None:
    table = f"file={people},target=sick,client=town"
    text = _run("run", "--task", "csv", "--task-set", table, "--rounds", "20", "--lr", "1")
    assert "Scaffold on people" in text
    assert "4 clients" in text
    accuracy = re.search(r"accuracy\s+([\d.]+)", text)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.8
    text = _run(
        "compare", "--task", "csv", "--task-set", table, "--methods", "fedavg,scaffold",
        "--grid", "1,0.3", "--seeds", "1", "--rounds", "3", "--valid", "0.2",
    )  # fmt: skip
    assert "FedAvg" in text


def test_clients_come_from_the_column_or_from_a_split(people: Path) -> None:
    own = csv(str(people), "sick", "town")
    assert own.clients == 4
    assert own.data[0].shape == (120, 5)  # age, three colours, code
    assert csv(str(people), "sick").clients == 10
    assert csv(str(people), "sick", "town", split="dirichlet", clients=3).clients == 3
    few = csv(str(people), "sick", features="age+colour", model="mlp:8x8")
    assert few.data[0].shape == (120, 4)
    assert few.dim == 4 * 8 + 8 + 8 * 8 + 8 + 8 * 2 + 2


def test_targets_are_classes_or_numbers(people: Path) -> None:
    codes = csv(str(people), "code", "town", model="mlp")
    assert codes.label_names == ["3", "5", "9"]
    numbers = csv(str(people), "age", "town", loss="squared")
    assert numbers.dim == 7  # three colours, code, no, yes, and the constant
    assert numbers.test is not None
    assert len(numbers.test[0]) == pytest.approx(24, abs=3)
    signs = csv(str(people), "sick", "town", loss="logistic")
    assert set(signs.data[1].tolist()) == {-1.0, 1.0}


def test_parquet_is_read_too(people: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import csv as arrow
    from pyarrow import parquet

    parquet.write_table(arrow.read_csv(people), people.with_suffix(".parquet"))
    one, two = (csv(str(people.with_suffix(end)), "sick", "town") for end in (".csv", ".parquet"))
    assert one.fingerprint() == two.fingerprint()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs a file and a target: --task-set file="),
        ({"target": "ill", "client": "town"}, "there is no column 'ill'"),
        ({"target": "sick", "split": "by-id"}, "do not have clients of their own"),
        ({"target": "sick", "client": "town", "clients": 3}, "leave out clients"),
        ({"target": "age", "loss": "squared", "split": "dirichlet"}, "use --split iid"),
        ({"target": "sick", "client": "town", "model": "resnet8"}, "no model 'resnet8'"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict, message: str, people: Path) -> None:
    with pytest.raises(fl.FairleadError, match=message):
        csv(**({"file": str(people), **settings} if settings else {}))
