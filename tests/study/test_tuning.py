"""Tuning: what is found, what trials are worth, giving up, going on, sharing, files, the command."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from conftest import toy
from programs import LIMIT
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import app
from fairlead.cli.tuning import read_space
from fairlead.study.tuning import GRID, Tuning, search, studies, tune
from fairlead.study.tuning.objective import Aim, Outcome
from fairlead.study.tuning.space import Space, searched

GOAL = {"distance": 0.1}
LIST = [1.0, 0.3, 0.1, 0.03]
PNG = b"\x89PNG\r\n\x1a\n"


@functools.cache
def _task() -> fl.Task:
    return fl.problems.random_quadratics(clients=4, dim=3, mu=0.5, delta=0.3, gradient=5.0)


def _small(**more: Any) -> dict[str, Any]:
    """Settings of most tunings here."""
    return {"rounds": 25, "steps": 4, "target": GOAL, "lr": LIST, "progress": False, **more}


def _by_hand(method: fl.Algorithm, lrs: list[float], seeds: int) -> dict[float, float | None]:
    """Mean rounds to the target of each step size, from single runs."""
    found = {}
    for lr in lrs:
        runs = [
            fl.train(_task(), method.with_lr(lr), rounds=25, steps=4, cohort=2, seed=s, target=GOAL)
            for s in range(seeds)
        ]
        reached = [run.rounds_to("distance", 0.1) for run in runs]
        found[lr] = None if None in reached else sum(r or 0 for r in reached) / seeds
    return found


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """The (step size, seed) of every single run."""
    calls: list[tuple[float, int]] = []
    inner = search.train

    def noted(task: Any, method: Any, **settings: Any) -> Any:
        calls.append((method.lr, settings["seed"]))
        return inner(task, method, **settings)

    monkeypatch.setattr(search, "train", noted)
    return calls


# -- what is found ----------------------------------------------------------------------------------


def test_a_grid_finds_what_single_runs_find() -> None:
    method = fl.Scaffold(lr=1.0)
    alone = _by_hand(method, LIST, 2)
    best = min((lr for lr in LIST if alone[lr] is not None), key=lambda lr: alone[lr] or 0)
    assert alone[0.03] is None
    for together in (True, False):
        given = _small(seeds=2, cohort=2, prune=False, together=together)
        tuning = tune(_task(), method, **given)
        assert {row.lr: row.rounds for row in tuning.sensitivity("Scaffold")} == alone
        assert tuning.best("Scaffold") == fl.Scaffold(lr=best)


def test_tpe_is_reproducible_and_learns() -> None:
    settings: dict[str, Any] = {
        "rounds": 4, "lr": (1e-4, 10.0, "log"), "trials": 22, "metric": "distance", "prune": False,
        "progress": False,
    }  # fmt: skip
    one, two = (tune(toy(3.0), fl.FedSGD(lr=1.0), **settings).entries["FedSGD"] for _ in range(2))
    assert [t.settings for t in one.trials] == [t.settings for t in two.trials]
    assert len({t.settings["lr"] for t in one.trials}) == 22
    finals = [t.mean("final") or math.inf for t in one.trials]
    assert min(finals[10:]) < min(finals[:10])
    other = tune(toy(3.0), fl.FedSGD(lr=1.0), sampler_seed=1, **{**settings, "trials": 2})
    assert other.entries["FedSGD"].trials[0].settings != one.trials[0].settings


def test_a_killed_tpe_study_draws_what_it_would_have_drawn(tmp_path: Path, monkeypatch) -> None:
    settings: dict[str, Any] = {
        "rounds": 3, "lr": (1e-4, 10.0, "log"), "trials": 14, "metric": "distance", "prune": False,
        "progress": False,
    }  # fmt: skip
    whole = tune(toy(3.0), fl.FedSGD(lr=1.0), **settings)
    real, calls = search.train, []

    def broken(*args: Any, **more: Any) -> fl.Run:
        calls.append(1)
        if len(calls) in (3, 13):
            raise RuntimeError("killed")
        return real(*args, **more)

    monkeypatch.setattr(search, "train", broken)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="killed"):
            tune(toy(3.0), fl.FedSGD(lr=1.0), out=tmp_path, **settings)
    again = tune(toy(3.0), fl.FedSGD(lr=1.0), out=tmp_path, **settings)
    assert again.to_json() == whole.to_json()
    assert again.to_csv() == whole.to_csv()


def test_random_draws_are_seeded_and_go_together() -> None:
    settings: dict[str, Any] = {
        "rounds": 2, "lr": (0.01, 1.0, "log"), "space": {"warm_start": [True, False]},
        "sampler": "random", "trials": 6, "progress": False,
    }  # fmt: skip
    together = tune(_task(), fl.Scaffold(lr=1.0), together=True, **settings)
    single = tune(_task(), fl.Scaffold(lr=1.0), together=False, prune=False, **settings)
    drawn = [[t.settings for t in x.entries["Scaffold"].trials] for x in (together, single)]
    assert drawn[0] == drawn[1]
    assert all(0.01 <= s["lr"] <= 1 for s in drawn[0])
    assert isinstance(together.best("Scaffold").warm_start, bool)


def test_other_settings_and_schedules() -> None:
    methods = {
        "prox": fl.FedProx(lr=fl.schedules.Exponential(1.0, 0.95)),
        "avg": fl.FedAvg(lr=0.2),
        "catalyst": fl.Catalyst(fl.Scaffold(lr=1.0)),
    }
    space = {
        "mu": [0.01, 10.0],
        "theta": [0.5, 1.0],
        "momentum": [0.0],
    }  # Scaffold refuses momentum
    tuning = tune(_task(), methods, space=space, **_small(lr=[0.3, 0.1]))
    assert [len(e.trials) for e in tuning.entries.values()] == [4, 2, 4]
    assert "momentum" not in tuning.best_trial("catalyst").settings
    best = tuning.best("prox")
    assert isinstance(best.lr, fl.schedules.Exponential)
    assert (best.lr.decay, best.mu) == (0.95, 0.01)
    assert tuning.best("catalyst").method.lr in (0.3, 0.1)
    assert [row["mu"] for row in tuning.table()] == ["0.01", "", ""]
    only = tune(_task(), fl.FedProx(lr=0.3), space={"mu": [0.1, 1.0]}, **_small(lr=None))
    assert [row.lr for row in only.sensitivity("FedProx")] == [0.3]


def test_whole_numbers_stay_whole() -> None:
    space = Space.of(fl.Catalyst(fl.FedAvg(lr=1.0)), {"inner_rounds": (1, 9), "theta": (1, 9)})
    whole = {name: part.whole for name, part in space.parts.items()}
    assert whole == {"inner_rounds": True, "theta": False}
    settings: dict[str, Any] = {"rounds": 2, "trials": 3, "progress": False}
    tuning = tune(
        _task(), fl.Catalyst(fl.FedAvg(lr=0.1)), space={"inner_rounds": (1, 9)}, **settings
    )
    assert isinstance(tuning.best("Catalyst").inner_rounds, int)


def test_bits_prefer_a_compressed_setting_and_rounds_do_not() -> None:
    task = fl.problems.random_quadratics(clients=4, dim=100)
    space = {"compressor": [fl.BFloat16(), None]}
    settings = _small(lr=None, space=space, target={"distance": 1.0}, steps=1)
    found = {by: tune(task, fl.FedAvg(lr=1.0), by=by, **settings) for by in ("bits", "rounds")}
    assert found["rounds"].best("FedAvg").compressor is None  # by its final metric
    assert found["bits"].best("FedAvg").compressor == fl.BFloat16()
    assert "Mbit to target" in found["bits"].table()[0]
    by_bits = {t.settings["compressor"]: t for t in found["bits"].entries["FedAvg"].trials}
    assert set(by_bits) == {"BFloat16()", "null"}
    assert (by_bits["BFloat16()"].mean("bits") or 0) < (by_bits["null"].mean("bits") or 0)


def test_papers_tune_every_method_on_the_same_grid() -> None:
    methods = [fl.FedAvg(lr=1.0), fl.Scaffold(lr=1.0)]
    tuning = tune(_task(), methods, protocol="papers", seeds=2, **_small(lr=None))
    assert tuning.aim.by == "rounds"
    for entry in tuning.entries.values():
        assert [t.settings["lr"] for t in entry.trials] == list(GRID)
        assert [run.seed for run in entry.trials[-1].runs] == [0, 1]


def test_edges_and_missed_targets_are_pointed_out() -> None:
    tuning = tune(_task(), fl.Scaffold(lr=1.0), **_small(lr=[0.03, 0.01]))
    nearest, edge = tuning.notes()
    assert "no trial of Scaffold reached the target with all seeds" in nearest
    assert edge == "note: Scaffold did best with lr 0.03, an edge of the grid: extend it"
    assert tuning.table()[0]["rounds to distance ≤ 0.1"] == "25+"
    inside = tune(_task(), fl.Scaffold(lr=1.0), **_small(lr=[3.0, 0.3, 0.01]))
    assert inside.notes() == []


# -- what trials are worth --------------------------------------------------------------------------


def _run(rounds: int | None, best: float, stopped: str = "rounds") -> Outcome:
    return Outcome(0, stopped, rounds, rounds and 8 * rounds, best, best)


@pytest.mark.parametrize("by", ["rounds", "bits"])
@pytest.mark.parametrize(("metric", "goal", "near", "far"), [
    ("accuracy", 0.9, 0.89, 0.1), ("distance", 1e-6, 2e-6, 1e3), ("loss", 0.0, 1e-9, 5.0),
])  # fmt: skip
def test_misses_come_after_all_that_got_there_and_divergence_last(
    by: str, metric: str, goal: float, near: float, far: float
) -> None:
    aim = Aim(by, metric, goal)
    there = [_run(10**9, goal), _run(10**9, goal)]
    one_missed, both_near = [_run(1, goal), _run(None, near)], [_run(None, near)] * 2
    lost = [_run(1, goal), _run(1, goal, "diverged")]
    order = [[_run(1, goal)] * 2, there, one_missed, both_near, [_run(None, far)] * 2, lost]
    values = [aim.value(runs) for runs in order]
    assert values == sorted(values)
    assert len(set(values)) == len(values)
    assert values[-1] == math.inf


def test_final_and_best_take_the_metrics_direction() -> None:
    up, down = Aim("final", "accuracy"), Aim("best", "loss")
    assert up.larger
    assert not down.larger
    assert up.value([_run(None, 0.5), _run(None, 0.7)]) == pytest.approx(0.6)
    assert up.value([_run(None, 0.5, "diverged")]) == -math.inf
    assert down.value([_run(None, 0.5, "diverged")]) == math.inf


def test_equal_rounds_are_decided_by_the_final_metric() -> None:
    tuning = tune(_task(), fl.Scaffold(lr=1.0), **_small(lr=[0.3, 0.30001, 0.29999]))
    trials = tuning.entries["Scaffold"].trials
    assert len({t.mean("rounds") for t in trials}) == 1
    best = min(trials, key=lambda t: t.mean("final") or math.inf)
    assert tuning.best_trial("Scaffold") is best


# -- giving up --------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False])
def test_divergence_is_the_worst_and_ends_a_trial(
    together: bool, trained: list[tuple[float, int]]
) -> None:
    settings = _small(lr=[1e25, 0.3, 0.01], rounds=20, seeds=2, together=together)
    tuning = tune(_task(), fl.FedAvg(lr=1.0), **settings)
    states = {t.settings["lr"]: t.state for t in tuning.entries["FedAvg"].trials}
    assert states[1e25] == "diverged"
    assert tuning.best("FedAvg").lr != 1e25
    assert trained.count((1e25, 0)) == (not together)
    assert (1e25, 1) not in trained
    lost = tune(_task(), fl.FedAvg(lr=1.0), **_small(lr=[1e25, 1e26]))
    assert "every trial of FedAvg diverged" in lost.notes()[0]
    with pytest.raises(fl.FairleadError, match="smaller step sizes"):
        lost.best("FedAvg")


@pytest.mark.parametrize("by", ["rounds", "bits"])
@pytest.mark.parametrize("order", [LIST, LIST[::-1]])
def test_a_pruned_search_has_the_same_winner(by: str, order: list[float]) -> None:
    settings = _small(lr=order, seeds=2, cohort=2, by=by)
    whole = tune(_task(), fl.Scaffold(lr=1.0), prune=False, **settings)
    pruned = tune(_task(), fl.Scaffold(lr=1.0), prune=True, **settings)
    assert pruned.best("Scaffold") == whole.best("Scaffold")
    best = pruned.best_trial("Scaffold")
    assert best.mean("rounds") == whole.best_trial("Scaffold").mean("rounds")
    states = [t.state for t in pruned.entries["Scaffold"].trials]
    assert "given up" in states or order != LIST


def test_the_median_rule_gives_up_what_is_behind() -> None:
    lrs = [0.3, 0.29, 0.28, 0.27, 0.26, 1e-5, 0.25]
    settings: dict[str, Any] = {"rounds": 40, "lr": lrs, "metric": "distance", "progress": False}
    tuning = tune(_task(), fl.Scaffold(lr=1.0), prune=True, seeds=2, **settings)
    states = {t.settings["lr"]: t.state for t in tuning.entries["Scaffold"].trials}
    assert states[1e-5] == "given up"
    assert list(states.values())[:5] == ["complete"] * 5
    assert len(tuning.entries["Scaffold"].trials[5].runs) == 1


# -- going on, and sharing --------------------------------------------------------------------------

SCRIPT = """
import os, signal, time
from pathlib import Path
import fairlead as fl
from fairlead.study.tuning import search, tune

here, inner, calls = Path({folder!r}), search.train, 0

def noted(task, method, **settings):
    global calls
    calls += 1
    if calls == {dies}:
        os.kill(os.getpid(), signal.SIGKILL)
    with (here / "log").open("a") as file:
        file.write(f"{{os.getpid()}} {{method.lr}} {{settings['seed']}}\\n")
    while len({{line.split()[0] for line in (here / "log").read_text().splitlines()}}) < {partners}:
        time.sleep(0.01)  # until everyone is at a trial
    return inner(task, method, **settings)

search.train = noted
task = fl.problems.random_quadratics(clients=4, dim=3, mu=0.5, delta=0.3, gradient=5.0)
fl.train(task, fl.Scaffold(lr=1.0), rounds=2)  # what is loaded at the first training, once for all
others = [os.fork() for _ in range({partners} - 1)]
signal.alarm({limit})  # nobody waits for ever
found = tune(task, fl.Scaffold(lr=1.0), out=here, **{settings})
(here / f"said {{os.getpid()}}").write_text(f"{{found.best('Scaffold').lr}} {{len(found.entries['Scaffold'].trials)}}")
for other in filter(None, others):
    assert os.waitpid(other, 0)[1] == 0
"""
SHARED = _small(seeds=2, cohort=2, prune=False, together=False)


def _tuned(folder: Path, dies: int = 0, partners: int = 1) -> int:
    """The exit status of a process that tunes, with forks of it as partners."""
    code = SCRIPT.format(
        folder=str(folder), dies=dies, partners=partners, settings=SHARED, limit=int(LIMIT)
    )
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # there are no threads at the forks
    return subprocess.run([sys.executable, "-c", code], env=env, timeout=LIMIT).returncode


def _log(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "log").read_text().splitlines()]


def test_a_killed_tuning_goes_on(tmp_path: Path, trained: list[tuple[float, int]]) -> None:
    assert _tuned(tmp_path, dies=6) == -9  # in the second seed of the third trial
    result = tune(_task(), fl.Scaffold(lr=1.0), out=tmp_path, **SHARED)
    assert trained == [(lr, seed) for lr in LIST[2:] for seed in (0, 1)]
    whole = tune(_task(), fl.Scaffold(lr=1.0), **SHARED)
    assert result.to_json() == whole.to_json()
    assert result.best("Scaffold") == whole.best("Scaffold")
    done = len(trained)
    again = tune(_task(), fl.Scaffold(lr=1.0), out=tmp_path, **SHARED)
    assert len(trained) == done
    assert again.to_json() == result.to_json()


@pytest.mark.slow
def test_two_processes_share_the_trials(tmp_path: Path) -> None:
    assert _tuned(tmp_path, partners=2) == 0
    said = [path.read_text() for path in tmp_path.glob("said *")]
    assert len(said) == 2
    assert said[0] == said[1]
    assert said[0].split()[1] == str(len(LIST))
    log = _log(tmp_path)
    assert sorted((float(lr), int(seed)) for _, lr, seed in log) == sorted(
        (lr, seed) for lr in LIST for seed in (0, 1)
    )
    assert len({pid for pid, _, _ in log}) == 2


def test_trials_of_a_machine_that_went_silent_are_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "GRACE", 0.3)
    monkeypatch.setattr(studies, "POLL", 0.05)
    settings = _small(lr=[0.3, 0.1], out=tmp_path)
    tune(_task(), fl.Scaffold(lr=1.0), **settings)
    with studies.opened(tmp_path / "study.sqlite") as storage:
        study = optuna.load_study(study_name="Scaffold", storage=storage)
        left = study.ask()
        left.set_user_attr("worker", "elsewhere:1:0")
        left.set_user_attr("settings", {"lr": 0.5})
    result = tune(_task(), fl.Scaffold(lr=1.0), **{**settings, "lr": [0.5, 0.3, 0.1]})
    assert [t.settings["lr"] for t in result.entries["Scaffold"].trials] == [0.3, 0.1, 0.5]
    assert [t.number for t in result.entries["Scaffold"].trials] == [0, 1, 2]


def test_an_error_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    settings = _small(lr=[0.3], out=tmp_path, together=False)
    with monkeypatch.context() as patched:
        patched.setattr(search, "train", broken)
        with pytest.raises(KeyboardInterrupt):
            tune(_task(), fl.Scaffold(lr=1.0), **settings)
    assert tune(_task(), fl.Scaffold(lr=1.0), **settings).best("Scaffold").lr == 0.3


def test_any_database_url_and_one_study_a_method(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    methods = {"a": fl.FedAvg(lr=1.0), "b": fl.Scaffold(lr=1.0)}
    tune(_task(), methods, storage=url, **_small(lr=[0.3, 0.1]))
    with studies.opened(url) as storage:
        assert optuna.get_all_study_names(storage) == ["a", "b"]
        study = optuna.load_study(study_name="a", storage=storage)
        assert [t.params for t in study.trials] == [{"lr": 0.3}, {"lr": 0.1}]
    with pytest.raises(
        fl.FairleadError, match="started with a different rounds: use another folder"
    ):
        tune(_task(), methods, storage=url, **_small(lr=[0.3], rounds=26))
    with pytest.raises(fl.FairleadError, match="a different method"):
        tune(_task(), {"a": fl.FedAvg(lr=1.0, momentum=0.5)}, storage=url, **_small())
    with pytest.raises(fl.FairleadError, match="cannot be opened"):
        tune(_task(), methods, storage="nothing", **_small())


# -- sentences --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"space": {"mo": [1.0]}}, "there is no setting of FedAvg 'mo'"),
        ({"lr": []}, "the grid of lr is empty"),
        ({"lr": [0.1, 0.1]}, "each of them once"),
        ({"lr": 0.1}, "give a list of values"),
        ({"lr": (1.0, 0.1, "log")}, "with low < high"),
        ({"lr": (0.0, 1.0, "log")}, "above zero"),
        ({"lr": (0.1, 1.0), "sampler": "grid"}, "needs a list of values for lr"),
        ({"space": {"lr": [0.1]}}, "given twice"),
        ({"space": {"momentum": [0.5, 1.5]}}, "momentum is 1.5"),
        ({"space": {"momentum": ["a", "b"]}}, "FedAvg does not accept 'a' for momentum"),
        ({"by": "round"}, "did you mean 'rounds'"),
        ({"target": None, "by": "bits"}, "there is none: give target="),
        ({"target": None, "protocol": "papers"}, "there is none: give target="),
        ({"protocol": "papers", "by": "bits"}, "leave out space, sampler and by"),
        ({"protocol": "paper"}, "there is no protocol 'paper'"),
        ({"target": {"distanc": 1.0}}, "there is no metric 'distanc'"),
        ({"target": {"loss": 1.0, "distance": 1.0}}, "exactly one target"),
        ({"sampler": "tpee"}, "did you mean 'tpe'"),
        ({"trials": 3}, "leave it out for a grid"),
        ({"lr": (0.1, 1.0), "trials": 0}, "trials is 0: give at least 1"),
        ({"seeds": 0}, "there are no seeds: give at least 1"),
        ({"together": True, "prune": True}, "give together or prune"),
        ({"together": True, "sampler": "tpe"}, "leave out together"),
        ({"resume": "x"}, "sets resume for its runs itself"),
    ],
)
def test_wrong_calls_are_sentences(given: dict[str, Any], message: str) -> None:
    with pytest.raises(fl.FairleadError, match=re.escape(message)):
        tune(_task(), fl.FedAvg(lr=1.0), **_small(**given))


def test_more_wrong_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(fl.FairleadError, match="nothing to tune"):
        tune(_task(), [], **_small())
    (tmp_path / "file").write_text("")
    with pytest.raises(fl.FairleadError, match="cannot write to"):
        tune(_task(), fl.FedAvg(lr=1.0), **_small(out=tmp_path / "file" / "x"))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(fl.FairleadError, match="pip install optuna"):
        tune(_task(), fl.FedAvg(lr=1.0), **_small())


# -- files and the command --------------------------------------------------------------------------


def _shape(tuning: Any) -> None:
    """The form of tuning.json that reports read."""
    known = {"metric", "reported", "better", "on", "target", "objective", "methods", "notes"}
    assert set(tuning) == known
    for method in tuning["methods"].values():
        assert list(method) == ["lr", "rounds", "final", "best"]
        assert method["lr"] == sorted(method["lr"])
        assert len(method["lr"]) == len(method["rounds"]) == len(method["final"])
        assert method["best"] in method["lr"]


def test_files(tmp_path: Path) -> None:
    methods = {"FedAvg": fl.FedAvg(lr=1.0), "my prox": fl.FedProx(lr=1.0)}
    lrs = [0.3, 1e25, 0.01]
    tuning = tune(_task(), methods, space={"mu": [0.1, 1.0]}, **_small(lr=lrs, rounds=9))
    names = tuning.write(tmp_path / "t")
    assert {p.name for p in (tmp_path / "t").iterdir()} == set(names) == {
        "table.md", "trials.csv", "tuning.json", "sensitivity.png", "best-FedAvg.toml",
        "best-my-prox.toml",
    }  # fmt: skip
    written = json.loads((tmp_path / "t" / "tuning.json").read_text())
    _shape(written)
    assert (written["metric"], written["target"], written["objective"]) == (
        "distance", 0.1, "rounds",
    )  # fmt: skip
    assert written["methods"]["FedAvg"]["final"][2] is None
    assert (tmp_path / "t" / "sensitivity.png").read_bytes()[:8] == PNG
    rows = list(csv.DictReader(io.StringIO((tmp_path / "t" / "trials.csv").read_text())))
    assert [row["method"] for row in rows] == ["FedAvg"] * 3 + ["my prox"] * 6
    assert [row["state"] for row in rows[:3]] == ["complete", "diverged", "complete"]
    assert 'method = "fedprox"' in (tmp_path / "t" / "best-my-prox.toml").read_text()
    assert len(tuning.plot().axes) == 2
    assert isinstance(tuning, Tuning)
    assert searched("x", {"none": None}).samples() == ["none"]


def _cli(*words: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, list(words))
    assert result.exit_code == code, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


QUADRATICS = ["--task", "random-quadratics", "--clients", "4", "--rounds", "9", "--steps", "3"]
QUADRATICS += ["--target", "distance=0.6"]


def test_the_command_leaves_settings_that_run_takes(tmp_path: Path) -> None:
    out = tmp_path / "t"
    words = [
        "tune", *QUADRATICS, "--methods", "scaffold,fedprox", "--grid", "1,0.5", "--seeds", "1",
        "--space", "mu=0.1|1,compressor=bfloat16|identity,warm_start=true|false", "--out", str(out),
    ]  # fmt: skip
    text = _cli(*words)
    assert "rounds to distance ≤ 0.6" in (out / "table.md").read_text()
    assert "best-FedProx.toml" in text.replace("\n", "")
    written = json.loads((out / "tuning.json").read_text())
    _shape(written)
    rows = list(csv.DictReader(io.StringIO((out / "trials.csv").read_text())))
    assert len(rows) == 16
    for label in ("Scaffold", "FedProx"):
        _cli("run", "--config", str(out / f"best-{label}.toml"), "--out", str(tmp_path / label))
        run = fl.runs.read(tmp_path / label)
        assert run.lr == written["methods"][label]["best"]
        wins = [row for row in rows if row["method"] == label and row["rounds"]]
        fewest = min(float(row["rounds"]) for row in wins)
        assert run.history.first_reach("distance", 0.6) == fewest
    assert "trials" in _cli(*words)


def test_the_papers_way_and_a_range_on_the_command_line(tmp_path: Path) -> None:
    methods = ["--methods", "fedavg,scaffold", "--seeds", "1"]
    text = _cli("tune", *QUADRATICS, "--papers", *methods, "--grid", "0.5,0.1")
    assert "note: Scaffold did best with lr 0.5, an edge of the grid: extend it" in text
    url = f"sqlite:///{tmp_path}/s.db"
    words = ["--space", "lr=0.01:1:log", "--trials", "2", "--storage", url, "--by", "final"]
    text = _cli("tune", *QUADRATICS, *methods, *words, "--prune")
    assert re.search(r"Scaffold +0\.\d+ .* 2", text)


def test_the_space_as_the_command_line_writes_it() -> None:
    assert read_space("lr=0.1:1:log,option=I|II,compressor=qsgd:2") == {
        "lr": (0.1, 1, "log"),
        "option": ["I", "II"],
        "compressor": {"qsgd:2": fl.QSGD(2)},
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--space", "mo=1|2"], "there is no setting of FedAvg 'mo'"),
        (["--space", "mu"], "write each setting once"),
        (["--space", "server=adam"], "give it as --server"),
        (["--lr", "0.1"], "nothing to search"),
        (["--grid", "0,1"], "give positive step sizes"),
        (["--by", "speed"], "there is no objective 'speed'"),
        (["--figure", "gif", "--out", "nowhere"], "there is no figure format 'gif'"),
        (["--sampler", "gird"], "did you mean 'grid'"),
        (["--methods", "fedavg,fedavg"], "FedAvg is listed twice"),
    ],
)
def test_errors_of_the_command_are_sentences(words: list[str], message: str) -> None:
    text = _cli("tune", *QUADRATICS, "--methods", "fedavg", *words, code=2)
    assert message in text
    assert "Traceback" not in text
