"""The command line, as a user types it."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import app

SMALL = ["--rounds", "3", "--clients", "4"]


def _run(*words: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, list(words))
    assert result.exit_code == code, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_list_names_everything_with_a_line_and_a_paper() -> None:
    text = _run("list")
    for name in ("scaffold", "fedprox", "digits", "theorem2", "dirichlet", "shards", "cosine"):
        assert name in text
    assert "Karimireddy et al. 2020" in text


def test_run_writes_what_it_says(tmp_path) -> None:
    text = _run("run", "--method", "scaffold", "--lr", "0.5", "--out", str(tmp_path / "r"), *SMALL)
    assert "Scaffold on digits" in text
    assert "engine: vmap" in text
    history = fl.History.from_jsonl(tmp_path / "r" / "history.jsonl")
    assert history["round"].tolist() == [0, 1, 2, 3]
    assert json.loads((tmp_path / "r" / "config.json").read_text())["lr"] == 0.5
    assert (tmp_path / "r" / "run.png").stat().st_size > 5000
    assert (tmp_path / "r" / "history.csv").read_text().count("\n") == 5


def test_compare_writes_table_figure_and_histories(tmp_path) -> None:
    out = tmp_path / "c"
    text = _run(
        "compare", "--methods", "fedavg,scaffold", "--grid", "1,0.3", "--seeds", "2", "--target",
        "accuracy=0.3", "--out", str(out), *SMALL,
    )  # fmt: skip
    assert "Scaffold" in text
    assert (out / "table.md").read_text().startswith("| method | lr |")
    assert {p.name for p in out.iterdir()} == {
        "config.json", "table.md", "table.csv", "compare.png",
        "FedAvg-0.jsonl", "FedAvg-1.jsonl", "Scaffold-0.jsonl", "Scaffold-1.jsonl",
    }  # fmt: skip


def test_settings_come_from_toml_and_flags_win(tmp_path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(
        'method = "fedprox"\nmu = 0.5\nrounds = 9\nlr = 0.2\ntask = "theorem2"\n'
        'batch-size = 1\nschedule = "exponential:0.9"\ndtype = "float64"\n'
    )
    _run("run", "--config", str(file), "--rounds", "2", "--out", str(tmp_path / "o"))
    config = json.loads((tmp_path / "o" / "config.json").read_text())
    assert (config["method"], config["rounds"], config["mu"]) == ("fedprox", 2, 0.5)
    task = fl.problems.theorem2()
    method = fl.FedProx(lr=fl.schedules.Exponential(0.2, 0.9), mu=0.5)
    run = fl.train(task, method, rounds=2, batch_size=1)
    history = fl.History.from_jsonl(tmp_path / "o" / "history.jsonl")
    assert history.last("distance") == pytest.approx(run.history.last("distance"), rel=1e-12)


@pytest.mark.parametrize(
    "task", ["theorem2", "random-quadratics", "synthetic-logistic", "two-gaussians"]
)
def test_every_task_runs(task: str) -> None:
    assert task in _run("run", "--task", task, "--dtype", "float64", "--rounds", "1").replace(
        "logistic-regression", "synthetic-logistic"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--method", "scafold"], "did you mean 'scaffold'"),
        (["run", "--task", "digit"], "did you mean 'digits'"),
        (["run", "--split", "dirichlett"], "did you mean 'dirichlet'"),
        (["run", "--schedule", "exponental:0.9"], "did you mean 'exponential'"),
        (["run", "--schedule", "exponential:x"], "cannot be read"),
        (["run", "--server", "adan"], "did you mean 'adam'"),
        (["run", "--cohort", "11"], "there are 10 clients"),
        (["run", "--cohort", "many"], "no number"),
        (["run", "--target", "accuracy"], "write accuracy=0.9"),
        (["run", "--lr", "-1"], "lr is -1.0"),
        (["run", "--dtype", "float16"], "there is no dtype 'float16'"),
        (["run", "--task", "theorem2", "--clients", "3"], "theorem2 has 2 clients"),
        (["run", "--config", "missing.toml"], "cannot be read"),
        (["run", "--lr", "1e30", "--rounds", "9"], "diverged in round"),
        (["compare", "--methods", "fedavg,mimo"], "there is no method 'mimo'"),
        (["compare", "--grid", "a,b"], "no list of numbers"),
    ],
)
def test_errors_are_sentences_with_exit_code_2(words: list[str], message: str) -> None:
    text = _run(*words, code=2)
    assert message in text
    assert text.count("error:") == 1
    assert "Traceback" not in text


def test_unknown_settings_in_toml_are_refused(tmp_path) -> None:
    (tmp_path / "s.toml").write_text("rouns = 3\n")
    assert "did you mean 'rounds'" in _run("run", "--config", str(tmp_path / "s.toml"), code=2)


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    text = _run("run", "--out", str(tmp_path / "file" / "x"), *SMALL, code=2)
    assert "cannot write to" in text


def test_methods_with_settings_of_their_own(tmp_path) -> None:
    text = _run(
        "run", "--method", "fedpaq-scm", "--compressor", "qsgd:2:elias", "--lr", "0.1", *SMALL
    )
    assert "fedpaq-scm on digits" in text
    text = _run(
        "run", "--method", "fedpvr", "--model", "mlp", "--layers", "-1", "--momentum", "0.9", *SMALL
    )
    assert "FedPVR on digits" in text
    out = tmp_path / "c"
    _run(
        "compare",
        "--methods",
        "fedavg,fedpaq",
        "--lr",
        "0.5",
        "--x",
        "bits",
        "--out",
        str(out),
        *SMALL,
    )
    up = {
        m: fl.History.from_jsonl(out / f"{m}-0.jsonl").last("bits_up") for m in ("FedAvg", "FedPAQ")
    }
    assert up["FedPAQ"] < up["FedAvg"] / 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--method", "fedavg", "--warm-start"], "FedAvg takes no warm start"),
        (["run", "--method", "fedavg", "--compressor", "qsg:2"], "did you mean 'qsgd'"),
        (
            ["run", "--method", "fedglomo", "--compressor", "topk:0.1"],
            "needs an unbiased compressor",
        ),
        (["run", "--method", "scaffnew", "--compressor", "qsgd:2"], "shifts sum to zero only if"),
        (["run", "--method", "fedglomo", "--server", "adam"], "part of the method"),
        (["run", "--method", "scaffold", "--momentum", "0.9"], "would not be the mean gradient"),
        (["compare", "--grid", ""], "give positive step sizes"),
        (["compare", "--seeds", "0"], "seeds is 0"),
        (["run", "--schedule", "cosine:0"], "cannot be read"),
        (["run", "--compressor", "topk:nan", "--method", "fedavg"], "k is nan"),
        (["run", "--method", "mime", "--set", "b=0.3"], "no setting of Mime 'b'"),
        (["compare", "--x", "bit"], "there is no axis 'bit'"),
        (["cite", "scaffol"], "did you mean 'scaffold'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(words: list[str], message: str) -> None:
    assert message in _run(*words, code=2)


@pytest.mark.parametrize(
    "line", ["compressor = 4", "methods = 3", 'task = ["a"]', "out = 3", 'rounds = "ten"']
)
def test_wrong_kinds_in_toml_are_refused(line: str, tmp_path) -> None:
    (tmp_path / "s.toml").write_text(line + "\n")
    assert "give a" in _run("compare", "--config", str(tmp_path / "s.toml"), code=2)


def test_settings_without_a_flag() -> None:
    _run("run", "--method", "mime-mvr", "--set", "a=0.3", "--lr", "0.1", *SMALL)
    _run("run", "--method", "fedadam", "--set", "beta1=0.5,tau=0.01", "--lr", "0.1", *SMALL)


def test_cite_prints_bibtex() -> None:
    assert "@inproceedings{das2022faster" in _run("cite", "fedglomo")


@pytest.mark.parametrize("name", [*fl.METHODS, *fl.PRESETS])
def test_every_method_runs_by_name(name: str) -> None:
    assert "digits" in _run(
        "run", "--method", name, "--lr", "0.1", "--rounds", "2", "--clients", "3"
    )
