"""The command line, as a user types it."""

from __future__ import annotations

import json
import re
import sqlite3
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import app, commands, common
from fairlead.engine import resources
from fairlead.study.reproduce import runner
from fairlead.study.reproduce.experiments import saddle_figures

SMALL = ["--rounds", "3", "--clients", "4"]


def _run(*words: str, code: int = 0) -> str:
    common.out.width = 200  # it may have been made before
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
    history = fl.runs.read(tmp_path / "r").history
    assert history["round"].tolist() == [0, 1, 2, 3]
    assert fl.runs.read(tmp_path / "r").about["settings"]["lr"] == 0.5
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
        "config.json", "table.md", "table.csv", "compare.png", "split.png",
        "tuning.json", "FedAvg-0", "FedAvg-1", "Scaffold-0", "Scaffold-1",
        "comparison.json", "trials", "lock",
    }  # fmt: skip


def test_targets_have_a_sign_and_validation_data_a_share(tmp_path) -> None:
    out = tmp_path / "c"
    words = ["compare", "--methods", "fedavg", "--grid", "1,0.3", "--seeds", "1", *SMALL]
    text = _run(*words, "--target", "accuracy>=0.3", "--out", str(out))
    assert "note: tuned on the test set" in " ".join(text.split())
    table = (out / "table.md").read_text()
    assert "rounds to accuracy ≥ 0.3" in table
    assert "Tuned on the test set." in table
    text = _run(*words, "--target", "accuracy > 0.3", "--valid", "0.05", "--out", str(out / "v"))
    assert "settings were chosen by valid_accuracy" in " ".join(text.split())
    run = fl.runs.read(out / "v" / "FedAvg-0")
    assert run.about["task"]["valid"] == 72
    assert run.about["better"]["valid_accuracy"] == "higher"
    text = _run("run", "--target", "test_loss<100", *SMALL, "--out", str(tmp_path / "r"))
    assert fl.runs.read(tmp_path / "r").status == "target"
    text = _run("tune", *words[1:], "--valid", "0.05", "--target", "accuracy=0.3")
    assert re.search(r"test\s+accuracy|test acc", text)


def test_a_comparison_given_again_does_nothing_and_other_settings_are_refused(tmp_path) -> None:
    words = ["compare", "--grid", "1,0.3", "--seeds", "1", "--methods", "fedavg", "--out"]
    words += [str(tmp_path), *SMALL]
    _run(*words)
    names = ("table.md", "table.csv", "tuning.json", "compare.png", "config.json")
    before = {name: (tmp_path / name).read_bytes() for name in names}
    when = (tmp_path / "FedAvg-0" / "history.sqlite").stat().st_mtime_ns
    (tmp_path / "compare.png").unlink()
    _run(*words)
    assert {name: (tmp_path / name).read_bytes() for name in names} == before
    assert (tmp_path / "FedAvg-0" / "history.sqlite").stat().st_mtime_ns == when
    refused = " ".join(_run(*words, "--batch-size", "0.5", code=2).split())
    assert "holds a comparison with other settings: settings was batch_size = 0.2" in refused
    assert {name: (tmp_path / name).read_bytes() for name in names} == before
    for folder in (tmp_path, tmp_path / "FedAvg-0"):
        refused = " ".join(_run("resume", str(folder), code=2).split())
        assert "belongs to a comparison: give its compare command again" in refused
    _run(*words, "--batch-size", "0.5", "--overwrite")
    assert '"batch_size": "0.5"' in (tmp_path / "config.json").read_text()


def test_a_comparison_replaces_an_earlier_one_and_nothing_else(tmp_path) -> None:
    _run("run", "--out", str(tmp_path / "mine" / "run"), *SMALL)
    words = ["compare", "--grid", "1", "--seeds", "1", "--out", str(tmp_path), *SMALL]
    for method in ("fedavg", "fedprox"):
        _run(*words, "--methods", method, "--overwrite")
    found = {str(run.folder.relative_to(tmp_path)) for run in fl.runs.find(tmp_path)}
    assert found == {"mine/run", "FedProx-0"}


def test_a_run_that_measures_nothing_in_a_folder_with_brackets(tmp_path) -> None:
    out = tmp_path / "a[" / "b] [bold]"
    task = ["--task", "two-gaussians", "--no-objective", "--batch-size", "5"]
    text = _run("run", *task, "--rounds", "2", "--steps", "1", "--out", str(out))
    assert "b] [bold]/run.json" in "".join(text.split("\n"))


def test_settings_come_from_toml_and_flags_win(tmp_path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(
        'method = "fedprox"\nmu = 0.5\nrounds = 9\nlr = 0.2\ntask = "theorem2"\n'
        'batch-size = 1\nschedule = "exponential:0.9"\ndtype = "float64"\n'
    )
    _run("run", "--config", str(file), "--rounds", "2", "--out", str(tmp_path / "o"))
    config = fl.runs.read(tmp_path / "o").about["settings"]
    assert (config["method"], config["rounds"], config["mu"]) == ("fedprox", 2, 0.5)
    task = fl.problems.theorem2()
    method = fl.FedProx(lr=fl.schedules.Exponential(0.2, 0.9), mu=0.5)
    run = fl.train(task, method, rounds=2, batch_size=1)
    history = fl.runs.read(tmp_path / "o").history
    assert history.last("distance") == pytest.approx(run.history.last("distance"), rel=1e-12)


@pytest.mark.parametrize(
    "task", ["theorem2", "random-quadratics", "synthetic-logistic", "two-gaussians"]
)
def test_every_task_runs(task: str) -> None:
    assert task in _run("run", "--task", task, "--dtype", "float64", "--rounds", "1").replace(
        "logistic-regression", "synthetic-logistic"
    )


def _asked(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Any, Any, dict[str, Any]]:
    """The task, the method and the settings that a command trains with, without training."""
    found: list[Any] = []

    def train(task: Any, method: Any, **settings: Any) -> None:
        found.extend([task, method, settings])
        raise fl.FairleadError("enough")

    monkeypatch.setattr(commands, "train", train)
    assert "enough" in _run("run", *words, code=2)
    return found[0], found[1], found[2]


@pytest.mark.parametrize(
    ("words", "method"),
    [
        ("--method mime --first-batch 256", fl.Mime(lr=0.1, batch=256)),
        ("--method mime-lite --set batch=6", fl.MimeLite(lr=0.1, batch=6)),
        ("--method fedlomo --first-batch 256", fl.FedLOMO(lr=0.1, first_batch=256)),
        ("--method fedpvr --layers from:1", fl.FedPVR(lr=0.1, layers="from:1")),
        ("--method fedpvr --layers -1", fl.FedPVR(lr=0.1, layers=-1)),
        (
            "--method fedpvr --option I --warm-start --layers from:0",
            fl.FedPVR(lr=0.1, layers="from:0", option="I", warm_start=True),
        ),
        (
            "--method fedavg-m --no-momentum-reset",
            fl.FedAvg(lr=0.1, momentum=0.9, momentum_reset=False),
        ),
        ("--method mime --beta 0.5", fl.Mime(lr=0.1, beta=0.5)),
        (
            "--method fedglomo --beta 0.2:exponential:0.98",
            fl.FedGLOMO(lr=0.1, beta=fl.schedules.Exponential(0.2, 0.98)),
        ),
        (
            "--method fedcomgate --compressor qsgd:4 --set own=exact",
            fl.FedCOMGATE(lr=0.1, compressor=fl.QSGD(4), own="exact"),
        ),
        (
            "--method fedprox --local adam:beta2=0.99,clip=1,keep=true",
            fl.FedProx(lr=0.1, local=fl.local.Adam(beta2=0.99, clip=1, keep=True)),
        ),
        ("--method feddyn --local rmsprop", fl.FedDyn(lr=0.1, local=fl.local.RMSprop())),
        (
            "--method fedavg --aggregate trimmed-mean:share=0.2",
            fl.FedAvg(lr=0.1, aggregate=fl.aggregate.TrimmedMean(0.2)),
        ),
        ("--method dp-fedavg --set norm=2,noise=0.5", fl.DPFedAvg(lr=0.1, norm=2, noise=0.5)),
        ("--method fedexp --set eps=0.1", fl.FedExP(lr=0.1, eps=0.1)),
    ],
)
def test_settings_of_methods(monkeypatch, words: str, method: fl.Algorithm) -> None:
    assert _asked(monkeypatch, *words.split(), *SMALL)[1] == method


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--method fedavg --local adam:lr=0.1", "give it as --lr"),
        ("--method fedavg --local adma", "did you mean 'adam'"),
        ("--method fedavg --local adam:beta3=1", "Adam does not accept these settings"),
        ("--method scaffold --local adam", "would not be the mean gradient"),
        ("--method fedavg --aggregate medain", "did you mean 'median'"),
        ("--method dp-fedavg --aggregate median", "its privacy is that of the clipped mean"),
    ],
)
def test_wrong_optimizers_and_aggregations_are_explained(words: str, message: str) -> None:
    assert message in " ".join(_run("run", *words.split(), *SMALL, code=2).split())


def test_the_servers_momentum(monkeypatch) -> None:
    for word, momentum in (("momentum", 0.9), ("momentum:0.7", 0.7), ("momentum:0", 0.0)):
        words = ["--method", "fedpaq-scm", "--server", word, "--server-lr", "0.5", *SMALL]
        _, method, _ = _asked(monkeypatch, *words)
        optimizer = method.server([torch.zeros(2, requires_grad=True)])
        assert (optimizer.defaults["momentum"], optimizer.defaults["lr"]) == (momentum, 0.5)
        assert method.momentum == 0.9


@pytest.mark.parametrize(
    ("word", "cohort"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("all-first:3", fl.AllFirst(3)),
        ("all-first:0.5", fl.AllFirst(0.5)),
        ("always:3+1", fl.Always((3,), more=1)),
        ("always:0,2", fl.Always((0, 2))),
    ],
)
def test_cohorts(monkeypatch, word: str, cohort: Any) -> None:
    assert _asked(monkeypatch, "--cohort", word, *SMALL)[2]["cohort"] == cohort


def test_batches_precision_and_compilation(monkeypatch) -> None:
    _, _, plain = _asked(monkeypatch, *SMALL)
    assert (plain["drop_last"], plain["replacement"], plain["engine"]) == (False, False, "auto")
    words = ["--drop-last", "--replacement", "--precision", "bfloat16", "--compile", "false"]
    _, _, given = _asked(monkeypatch, *words, *SMALL)
    assert (given["drop_last"], given["replacement"]) == (True, True)
    assert given["engine"] == fl.Simulate(precision="bfloat16", compile=False)
    for word, value in (("true", True), ("tuned", "tuned")):
        _, _, given = _asked(monkeypatch, "--compile", word, *SMALL)
        assert given["engine"] == fl.Simulate(compile=value)
    monkeypatch.setattr(commands, "launched", lambda: True)  # as torchrun does
    words = ["--engine", "vmap", "--precision", "tf32", "--compile", "tuned", "--timeout", "9"]
    _, _, given = _asked(monkeypatch, *words, *SMALL)
    assert given["engine"] == fl.Distributed("vmap", precision="tf32", compile="tuned", timeout=9)


def test_papers_settings_run_and_resume(tmp_path) -> None:
    """What a run was started with is in its folder, so that it is resumed with the same."""
    out = str(tmp_path / "r")
    words = ["--method", "fedglomo", "--beta", "0.3:exponential:0.9", "--first-batch", "6"]
    words += ["--cohort", "always:3+1", "--drop-last", "--replacement", "--batch-size", "5"]
    words += ["--precision", "float32", "--compile", "false", "--model", "mlp:7x5"]
    _run("run", *words, *SMALL, "--checkpoint-every", "1", "--out", out)
    _run("resume", out, "--rounds", "5")
    whole = str(tmp_path / "w")
    _run("run", *words, "--rounds", "5", "--clients", "4", "--out", whole)
    one, two = fl.runs.read(out).history, fl.runs.read(whole).history
    assert one["loss"].tolist() == two["loss"].tolist()
    assert one["clients"].tolist()[1:] == [2] * 5


def test_settings_of_tasks(monkeypatch) -> None:
    toy = ["--task", "two-gaussians", "--clients", "20", "--task-set", "std=0.25,start=1"]
    task, _, _ = _asked(monkeypatch, *toy, "--cohort", "always:19+1", "--rounds", "1")
    assert (task.clients, task.start(0)[0].item()) == (20, 1.0)
    expected = fl.problems.two_gaussians(clients=20, std=0.25, start=1.0)
    assert torch.equal(task.data[0], expected.data[0].to(task.dtype))
    game = ["--task", "quadratic-game", "--task-set", "pairwise=true,zeta=3,delta=0"]
    task, _, _ = _asked(monkeypatch, *game, "--rounds", "1")
    g = task.data[0] @ task.optimum + task.data[1]
    assert torch.cdist(g, g).max().item() == pytest.approx(3.0)
    task, _, _ = _asked(monkeypatch, "--model", "mlp:12x7", *SMALL)
    assert task.dim == 64 * 12 + 12 + 12 * 7 + 7 + 7 * 10 + 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--server", "momentum:1"], "write momentum:0.7"),
        (["run", "--server", "adam:0.7"], "write momentum:0.7"),
        (["run", "--cohort", "always:a+1"], "write for example always:19+1"),
        (["run", "--cohort", "never:1"], "there is no kind of cohort 'never'"),
        (["run", "--cohort", "always:12"], "distinct ids in 0 … 9"),
        (["run", "--cohort", "all-first:11"], "there are 10 clients"),
        (["run", "--model", "mlp:0x5"], "as mlp:600x600"),
        (["run", "--precision", "float16"], "there is no precision 'float16'"),
        (["run", "--compile", "maybe"], "there is no way to compile 'maybe'"),
        (["run", "--method", "fedglomo", "--beta", "a"], "beta is 'a'"),
        (["run", "--method", "mime", "--beta", "0.2:cosine"], "beta is Cosine"),
        (["run", "--method", "fedavg", "--no-momentum-reset"], "needs momentum"),
        (["run", "--method", "scaffold", "--no-momentum-reset"], "not supported by Scaffold"),
        (["run", "--method", "scaffold", "--first-batch", "5"], "not supported by Scaffold"),
        (["run", "--method", "mime", "--set", "first_batch=5"], "there is no setting of Mime"),
        (["run", "--method", "fedpvr", "--layers", "from:9"], "has 2 parameter tensors"),
        (["run", "--method", "scafold"], "did you mean 'scaffold'"),
        (["run", "--task", "digit"], "did you mean 'digits'"),
        (["run", "--split", "dirichlett"], "did you mean 'dirichlet'"),
        (["run", "--schedule", "exponental:0.9"], "did you mean 'exponential'"),
        (["run", "--schedule", "exponential:x"], "cannot parse the schedule"),
        (["run", "--server", "adan"], "did you mean 'adam'"),
        (["run", "--cohort", "11"], "there are 10 clients"),
        (["run", "--cohort", "many"], "'many' is not a number"),
        (["run", "--target", "accuracy<0.9"], 'higher accuracy is better: write "accuracy>0.9"'),
        (["run", "--target", "loss>0.1"], 'lower loss is better: write "loss<0.1"'),
        (["run", "--task", "theorem2", "--valid", "0.1"], "theorem2 has no data to hold out"),
        (["run", "--valid", "1.5"], "valid is 1.5: must be in (0, 1)"),
        (["run", "--target", "accuracy"], "write accuracy=0.9, or in quotes"),
        (["run", "--lr", "-1"], "lr is -1.0"),
        (["run", "--dtype", "float16"], "there is no dtype 'float16'"),
        (["run", "--task", "theorem2", "--clients", "3"], "theorem2 has 2 clients"),
        (["run", "--config", "missing.toml"], "cannot read the settings in missing.toml"),
        (["run", "--lr", "1e30", "--rounds", "9"], "diverged in round"),
        (["compare", "--methods", "fedavg,mimo"], "there is no method 'mimo'"),
        (["compare", "--grid", "a,b"], "is not a list of numbers"),
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
    up = {m: fl.runs.read(out / f"{m}-0").history.last("bits_up") for m in ("FedAvg", "FedPAQ")}
    assert up["FedPAQ"] < up["FedAvg"] / 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--method", "fedavg", "--warm-start"], "warm start is not supported by FedAvg"),
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
        (["run", "--schedule", "cosine:0"], "cannot parse the schedule"),
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
    assert "it must be a" in _run("compare", "--config", str(tmp_path / "s.toml"), code=2)


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


def test_saddle_points_are_compared_against_rounds_and_bits(tmp_path) -> None:
    out = tmp_path / "s"
    text = _run(
        "compare", "--task", "saddle", "--task-set", "s=2,scaling=printed", "--rounds", "4", "--steps",
        "random:0.5", "--set", "theta=2,decrease=0.3", "--out", str(out),
    )  # fmt: skip
    for name in ("MirrorDescent", "MirrorProx", "fedavg-s", "ScaffoldS", "scaffold-catalyst-s"):
        assert name in text
    assert (out / "compare.png").stat().st_size > 5000
    history = fl.runs.read(out / "MirrorProx-0").history
    assert history.last("communications") == history.last("exchanges") == 8
    task = fl.problems.saddle_regression(s=2, scaling="printed")
    row = next(r for r in (out / "table.csv").read_text().splitlines() if "catalyst" in r)
    method = fl.Catalyst(fl.ScaffoldS(lr=float(row.split(",")[1])), theta=2, decrease=0.3)
    run = fl.train(task, method, rounds=4, steps=fl.Geometric(0.5))
    found = fl.runs.read(out / "scaffold-catalyst-s-0").history
    assert found.last("distance") == pytest.approx(run.history.last("distance"), rel=1e-12)


@pytest.mark.parametrize(
    "task", ["saddle", "quadratic-game", "bilinear-game", "robust-regression", "auc", "agnostic"]
)
def test_every_saddle_task_runs(task: str) -> None:
    text = _run("run", "--task", task, "--method", "mirror-prox", "--rounds", "2", "--lr", "0.001")
    assert "MirrorProx on" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["run", "--task", "saddle", "--task-set", "sigma=2"],
            "no setting of the task saddle 'sigma'",
        ),
        (["run", "--task", "saddle", "--task-set", "s"], "write name=value"),
        (
            ["run", "--task", "saddle", "--task-set", "scaling=other"],
            "it must be 'printed' or 'regression'",
        ),
        (["run", "--task", "agnostic", "--method", "fedavg"], "leave the simplex"),
        (["run", "--task", "auc", "--task-set", "source=a9b"], "did you mean 'a9a'"),
        (["run", "--steps", "often"], "give a number, or random:0.05"),
        (["run", "--schedule", "cosine/rounds"], "did you mean 'round'"),
        (["reproduce", "saddle-fig3"], "did you mean 'saddle-fig"),
        (
            ["run", "--method", "catalyst", "--momentum", "0.9"],
            "momentum is not supported by Catalyst",
        ),
        (["run", "--task", "saddle", "--task-set", "s=abc"], "does not accept these settings"),
        (["run", "--task", "saddle", "--task-set", "s=-1"], "s is -1"),
        (["run", "--task", "saddle", "--task-set", "dim=2.5"], "does not accept these settings"),
        (["run", "--method", "mime", "--set", "lr=0.3"], "give it as --lr"),
        (["run", "--method", "catalyst", "--set", "theta=abc"], "theta must be at least 0"),
        (["run", "--method", "catalyst", "--set", "method=3"], "there is no method '3'"),
        (["run", "--method", "catalyst", "--set", "method=mime,optimizer=nonsense"], "nonsense"),
        (["run", "--steps", "2.5"], "give a number, or random"),
        (["run", "--task", "agnostic", "--lr", "1e30"], "diverged in round"),
    ],
)
def test_saddle_settings_that_do_not_fit_are_refused(words: list[str], message: str) -> None:
    assert message in " ".join(_run(*words, code=2).split())


def test_a_figure_is_reproduced_with_table_claims_and_picture(tmp_path, monkeypatch) -> None:
    """A few rounds and one step size instead of 500 and three: what is written, not what comes out."""
    monkeypatch.setattr(saddle_figures, "ROUNDS", 2)
    monkeypatch.setattr(saddle_figures, "GRID", (0.1,))
    text = _run("reproduce", "saddle-fig1", "--quick", "--out", str(tmp_path))
    assert "SCAFFOLD-Catalyst-S" in text
    assert "does not hold" in text  # nobody arrives in two rounds
    place = tmp_path / "saddle-fig1" / "quick"
    cases = list(runner.stored(place / "cases.jsonl").values())
    found = {r.labels["method"]: r for r in cases if r.labels["s"] == 5}
    assert found["mirror-prox"].curve["communications"] == [0, 2]
    task = fl.problems.saddle_regression(s=5.0)
    run = fl.train(task, fl.ScaffoldS(lr=0.02), rounds=2, steps=20)
    expected = run.history["x_distance"]
    assert found["SCAFFOLD-S"].curve["x_distance"] == pytest.approx(expected, rel=1e-6)
    assert (place / "figure.png").stat().st_size > 5000
    assert "| SCAFFOLD-S |" in (place / "table.md").read_text()
    listed = _run("reproduce", "list")
    assert "saddle-fig2" in listed
    assert "[dim]" not in listed


def test_a_task_s_defaults_are_only_defaults(tmp_path) -> None:
    """A run goes to its last round, with a step size of the task's; epochs replace default steps."""
    digits = _run(
        "run", "--rounds", "20", "--lr", "1", "--clients", "3", "--out", str(tmp_path / "d")
    )
    assert "digits" in digits
    assert fl.runs.read(tmp_path / "d").history.last("round") == 20
    _run("run", "--task", "saddle", "--rounds", "2")
    _run("run", "--task", "auc", "--rounds", "2", "--epochs", "1", "--weighting", "size")
    _run(
        "run", "--task", "auc", "--rounds", "2", "--task-set", "l2=0.01,clients=4", "--clients", "5"
    )


def test_a_folder_that_cannot_be_written_is_said_before_the_experiment(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    text = _run("reproduce", "saddle-fig1", "--out", str(tmp_path / "file" / "x"), code=2)
    assert "cannot write to" in text


def test_data_sets_are_listed_checked_and_refused(tmp_path) -> None:
    text = _run("data", "list")
    for name in ("mnist", "emnist-byclass", "femnist", "cifar100", "shakespeare", "w8a"):
        assert name in text
    assert "1,438 + 359 samples" in _run("data", "check", "digits")
    assert "embedded" in _run("data", "get", "digits")
    assert "did you mean 'cifar10'" in _run("data", "get", "cifar11", code=2)
    assert "was not found" in _run("data", "check", "femnist", "--data", str(tmp_path), code=2)


@pytest.mark.parametrize(
    ("model", "split"),
    [("softmax", "by-id"), ("cnn", "quantity"), ("cnn-bn", "dirichlet-balanced")],
)
def test_images_from_a_folder(model: str, split: str, tmp_path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "femnist.npz", x_train=rng.integers(0, 256, (60, 28, 28), dtype=np.uint8),
        y_train=rng.integers(0, 62, 60), writer_train=np.repeat([0, 1, 2], 20),
        x_test=rng.integers(0, 256, (9, 28, 28), dtype=np.uint8), y_test=rng.integers(0, 62, 9),
        writer_test=np.repeat([0, 1, 2], 3), writer_ids=np.array(["a", "b", "c"]),
    )  # fmt: skip
    text = _run(
        "run", "--task", "femnist", "--data", str(tmp_path), "--model", model, "--split", split,
        *([] if split == "by-id" else ["--clients", "3"]), "--cohort", "2", "--rounds", "2",
        "--lr", "0.01", "--task-set", "flip=true,crop=2", "--engine",
        "loop" if model == "cnn" else "auto", "--out", str(tmp_path / "o"),
    )  # fmt: skip
    assert "3 clients hold 60 samples" in text
    assert (tmp_path / "o" / "split.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "digits", "--split", "by-id"], "do not have clients"),
        (["--task", "dialects", "--model", "softmax"], "there is no model 'softmax'"),
        (["--task", "dialects", "--clients", "0"], "clients is 0"),
        (["--split", "shards", "--split-value", "inf"], "needs an integer"),
        (["--split", "shards", "--split-value", "2.9"], "needs an integer"),
        (["--split", "iid", "--split-value", "5"], "the iid split has no value"),
        (["--task", "femnist", "--clients", "7"], "leave out clients"),
        (["--task", "cifar10", "--data", "."], "was not found"),
    ],
)
def test_data_settings_that_do_not_fit_are_refused(
    words: list[str], message: str, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("fairlead.data.fetch.fetch", _no_network)
    monkeypatch.chdir(tmp_path)
    assert message in " ".join(_run("run", "--rounds", "1", *words, code=2).split())


def _no_network(*given: object, **more: object) -> None:
    raise fl.FairleadError("could not be downloaded")


def test_text_by_name() -> None:
    words = ["--rounds", "1", "--steps", "1", "--clients", "3", "--engine", "loop"]
    text = _run("run", "--task", "dialects", *words)
    assert "3 clients hold" in text


def test_a_run_is_resumed_from_its_folder(tmp_path) -> None:
    words = [
        "run",
        "--task",
        "theorem2",
        "--method",
        "scaffold",
        "--steps",
        "random:0.5",
        "--dropout",
        "0.2",
    ]
    _run(*words, "--rounds", "9", "--out", str(tmp_path / "whole"))
    _run(*words, "--rounds", "5", "--out", str(tmp_path / "part"), "--checkpoint-every", "2")
    text = _run("resume", str(tmp_path / "part"), "--rounds", "9")
    assert "Scaffold on theorem2" in text
    one, two = (fl.runs.read(tmp_path / n).history.rows for n in ("whole", "part"))
    assert [r["distance"] for r in one] == [r["distance"] for r in two]
    assert "is not a run folder" in " ".join(_run("resume", str(tmp_path), code=2).split())
    fewer = _run("resume", str(tmp_path / "part"), "--rounds", "4", code=2)
    assert "set rounds higher" in " ".join(fewer.split())


def test_resuming_a_finished_run_changes_nothing_and_one_without_its_end_is_completed(
    tmp_path,
) -> None:
    folder = tmp_path / "r"
    _run("run", "--lr", "0.5", "--out", str(folder), *SMALL)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert "nothing is left to do" in " ".join(_run("resume", str(folder)).split())
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    db = sqlite3.connect(folder / "history.sqlite")  # as if killed after its last checkpoint
    db.execute("UPDATE parts SET ended = NULL, why = NULL")
    db.execute("DELETE FROM rows WHERE round = 3")
    db.commit()
    db.close()
    for name in ("history.csv", "run.png", "split.png"):
        (folder / name).unlink()
    assert fl.runs.read(folder).status == "broken off"
    assert "Scaffold on digits" in _run("resume", str(folder))
    assert fl.runs.read(folder).status == "rounds"
    for name in ("history.csv", "run.png", "split.png"):
        assert (folder / name).read_bytes() == before[folder / name]


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path) -> None:
    words = ["--lr", "0.5", *SMALL]
    _run("run", "--out", str(tmp_path / "whole"), *words)
    folder = tmp_path / "killed"
    _run("run", "--out", str(folder), *words)
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    db = sqlite3.connect(folder / "history.sqlite")
    db.execute("UPDATE parts SET ended = NULL, why = NULL")
    db.execute("DELETE FROM rows WHERE round > 1")
    db.commit()
    db.close()
    _run("resume", str(folder))
    one, two = (fl.runs.read(tmp_path / name) for name in ("whole", "killed"))
    assert two.status == "rounds"
    assert fl.runs.first_difference(one.history, two.history) is None


def test_processes_that_torchrun_restarts_after_the_end_do_nothing(tmp_path, monkeypatch) -> None:
    words = ["run", "--lr", "0.5", "--out", str(tmp_path / "r"), *SMALL]
    _run(*words)
    assert "already holds a run" in " ".join(_run(*words, code=2).split())
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert "nothing is left to do" in " ".join(_run(*words).split())


@pytest.mark.parametrize("command", ["run", "compare"])
def test_commands_tell_what_a_run_takes_before_they_train_if_it_matters(
    command: str, monkeypatch
) -> None:
    words = ["--lr", "0.5", "--rounds", "2", "--clients", "4", "--memories", "disk"]
    words += ["--seeds", "1"] if command == "compare" else []
    assert "memory:" not in _run(command, *words)
    monkeypatch.setattr(resources, "total_memory", lambda device: 9_000_000)
    text = " ".join(_run(command, *words).split())
    first = (
        "memory: 1.0 MB on cpu (data 0.5, server 0.0, clients at work 0.6), client memories up to "
    )
    assert text.startswith(first + "10.4 kB on disk")
    words[words.index("disk")] = "disc"
    assert "no place for memories 'disc': did you mean 'disk'?" in _run(command, *words, code=2)


def test_measuring_a_run_and_a_task(tmp_path) -> None:
    folder = str(tmp_path / "r")
    words = [
        "--measures",
        "dissimilarity,client_drift",
        "--every",
        "3",
        "--average",
        "0.1",
        "--valid",
        "0.2",
    ]
    text = _run("run", "--lr", "0.5", "--out", folder, *words, *SMALL)
    assert "dissimilarity/zeta max" in text
    assert "average loss" in text
    stored = fl.runs.read(folder).history
    (found,) = json.loads(_run("measure", folder, "--measures", "dissimilarity", "--json"))
    assert found["values"]["dissimilarity"] == pytest.approx(stored.last("dissimilarity"))
    assert "what leaves a client" in " ".join(
        _run("measure", folder, "--measures", "control_lag,local").split()
    )
    assert "coverage" in _run("measure", folder, "--measures", "aps", "--kappa", "0.2")
    task = ["--task", "saddle", "--measures", "curvature", "--products", "4"]
    assert "saddle_curvature" in _run("measure", *task)
    listened = ["--clients", "4", "--method", "fedpaq", "--lr", "0.1", "--measures", "compression"]
    assert "q_max" in _run("measure", *listened)
    assert "did you mean 'alpha'" in _run("measure", folder, "--measures", "alpa", code=2)
    assert "the run has its own task" in _run("measure", folder, "--task", "digits", code=2)
    fl.train(fl.problems.theorem2(), fl.FedAvg(lr=0.1), rounds=1, steps=1, out=tmp_path / "python")
    assert "was not started by fairlead run" in " ".join(
        _run("measure", str(tmp_path / "python"), code=2).split()
    )
