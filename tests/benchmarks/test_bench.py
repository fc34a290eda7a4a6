"""The benchmark: what it counts, who takes part, and what it says; no time is asserted."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import PATHS
from small_bench import TINY, small_report
from typer.testing import CliRunner

import fairlead as fl
from bench import bare, ours, run, table, write
from bench.machine import FAR, Machine
from bench.peers import PEERS, Peer, contestants, environment, plain
from bench.scaling import CURVES, network
from bench.turns import Contestant, Times, own, take_turns
from bench.workloads import WORKLOADS, Workload, chosen
from fairlead.cli import app

NEEDLESS = ("typer", "rich", "matplotlib", "sklearn", "optuna", "pooch", "pyarrow")


# -- what is counted ---------------------------------------------------------------------------------


def test_flops_of_softmax_are_two_products() -> None:
    count = WORKLOADS["W1"].count
    steps, samples = 20 * 5, 20 * 5 * 240
    assert count.flops == 2 * (2 * 784 * 62) * samples  # forward, and to the weights
    assert count.three_passes == 3 * (2 * 784 * 62) * samples
    assert count.convolutions == 0
    assert count.data == (4 * 784 + 8) * samples
    assert count.weights == 6 * 4 * (784 * 62 + 62) * steps


def test_flops_of_a_network_leave_out_the_gradient_of_its_input() -> None:
    count, samples = WORKLOADS["W2"].count, 25 * 10 * 32
    forward = 2 * (784 * 300 + 300 * 300 + 300 * 10)
    assert count.flops == (3 * forward - 2 * 784 * 300) * samples
    assert count.three_passes == 3 * forward * samples


def test_flops_of_convolutions() -> None:
    count, samples = WORKLOADS["W3"].count, 10 * 5 * 20
    first, second = 2 * 28 * 28 * 25 * 32, 2 * 14 * 14 * 25 * 32 * 64
    assert count.convolutions == (2 * first + 3 * second) * samples
    assert count.products == 3 * 2 * (64 * 49 * 512 + 512 * 62) * samples


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_peers_train_the_same_model_from_the_same_start(name: str) -> None:
    work = WORKLOADS[name]
    assert sum(p.numel() for p in plain.model(work.asked()).parameters()) == work.dim
    small = replace(work, clients=1, population=1, steps=1, batch=2, test=0)
    theirs = plain.flat(plain.model(small.asked()).parameters())
    assert small.task().start(0)[0].tolist() == theirs


def test_tasks_have_the_samples_of_their_steps() -> None:
    work = replace(TINY, population=7)
    task = work.task()
    assert (task.clients, set(task.sizes)) == (7, {15})
    x, _ = plain.data(work.asked())
    torch.testing.assert_close(task.data[0].view(7, 15, 4), x)


def test_workloads_by_name() -> None:
    assert [w.name for w in chosen((), "cpu")] == ["W1", "W2", "W3"]
    assert [w.batch for w in chosen(["w4", "W5"], "cpu")] == [64, 16]
    assert [w.batch for w in chosen(["w4", "W5"], "cuda")] == [256, 256]
    assert chosen(["W6run"], "cpu", rounds=30)[0].rounds == 30
    assert chosen(["W6"], "cpu", rounds=30)[0].rounds == 0
    with pytest.raises(fl.FairleadError, match="no workload 'W9'"):
        chosen(["W9"], "cpu")
    assert Workload.read(json.loads(json.dumps(TINY.asked()))) == TINY


def test_scaling_moves_one_number() -> None:
    spans = {curve.name: (curve.values[0], curve.values[-1]) for curve in CURVES}
    assert spans == {
        "cohort": (1, 1000), "population": (100, 10**6), "parameters": (10**4, 10**7),
        "local steps": (1, 100),
    }  # fmt: skip
    for dim in (1e4, 1e5, 1e6, 1e7):
        assert network(dim).dim == pytest.approx(dim, rel=0.02)


def test_the_floor_is_the_larger_of_arithmetic_and_bytes() -> None:
    work = replace(TINY, clients=10, population=10)
    machine = Machine("cpu", "", 1, rate=1e6, convolution_rate=1e6, copies={FAR: 1e3, 1 << 18: 1e6})
    arithmetic, memory = machine.floor(work)
    assert arithmetic == work.count.flops / 1e6
    assert memory == work.count.data / 1e3 + work.count.weights / 1e6


def test_the_machine_is_told_without_its_name(monkeypatch) -> None:
    monkeypatch.setattr("bench.machine._best", lambda run, device: 0.5)
    about = Machine.measured("cpu").about()
    assert about["rate"] == 2 * 2048**3 / 0.5
    assert platform.node() not in json.dumps(about)
    assert "/" not in about["name"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(fl.FairleadError, match="no CUDA device"):
        Machine.measured("cuda")


# -- the rounds --------------------------------------------------------------------------------------


def expected(work: Workload, rounds: int) -> list[float]:
    """FedAvg on batches in the order of the data."""
    asked = work.asked(device="cpu", method="FedAvg", engine="loop", exact=True)
    runner = ours.begin(asked)
    runner.run(rounds)
    return runner.x()


def test_the_bare_loop_computes_the_same_rounds() -> None:
    runner = bare.begin(TINY.asked(device="cpu", exact=True))
    runner.run(2)
    assert runner.x() == pytest.approx(expected(TINY, 2), abs=1e-6)


def test_whole_runs_sample_clients_and_evaluate() -> None:
    work = replace(TINY, population=9, rounds=4, eval_every=2, test=6)
    for begin in (bare.begin, ours.begin):
        runner = begin(work.asked(device="cpu", method="SCAFFOLD", engine="vmap"))
        (mean,) = runner.run(4)
        assert mean > 0
    assert runner.note() == "vmap, as asked for"


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_peers_compute_the_same_rounds(name: str) -> None:
    """Where they are installed: named in FAIRLEAD_PEERS."""
    if name not in os.environ.get("FAIRLEAD_PEERS", ""):
        pytest.skip(f"{name} is not installed")
    wanted = expected(TINY, 2)
    for way in contestants(PEERS[name], TINY, print):
        with way:
            answer = way.turn(TINY.asked(exact=True), 2, x=True)
        assert answer["version"]
        assert len(answer["seconds_per_round"]) == 2
        assert answer["x"] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.slow
def test_pfl_runs_whole_runs() -> None:
    if "pfl" not in os.environ.get("FAIRLEAD_PEERS", ""):
        pytest.skip("pfl is not installed")
    work = replace(TINY, population=9, rounds=4, eval_every=2, test=6)
    for way in contestants(PEERS["pfl"], work, print):
        with way:
            answer = way.turn(work.asked(), 4)
        assert len(answer["seconds_per_round"]) == 4


# -- turns -------------------------------------------------------------------------------------------

SCRIPT = """
import json, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    with open(sys.argv[1], "a") as file:
        print(sys.argv[2], "begins", asked["rounds"], file=file, flush=True)
        time.sleep(0.01)
        print(sys.argv[2], "ends", file=file, flush=True)
    exec(sys.argv[3])
    seconds = [asked["work"].get("slow", 1.0)] * asked["rounds"]
    print(json.dumps({"seconds_per_round": seconds, "version": "1", "note": "fine"}), flush=True)
"""


def fake(name: str, log: Path, then: str = "", **more: Any) -> Contestant:
    command = [sys.executable, "-c", SCRIPT, str(log), name, then]
    return Contestant(name, "alone", command, more=more)


def test_contestants_take_turns(tmp_path) -> None:
    log = tmp_path / "log"
    everybody = [fake("a", log), fake("b", log, slow=0.25)]
    a, b = take_turns(everybody, {"rounds": 0}, repeats=3, seconds=1.0)
    for contestant in everybody:
        contestant.stop()
    assert (a.median, b.median) == (1.0, 0.25)
    assert (a.version, a.note, a.failed) == ("1", "fine", "")
    warm = ["a begins 2", "b begins 2", "b begins 4"]  # four quarters of a second make a turn
    turns = ["a begins 3", "b begins 4"] * 3
    lines = log.read_text().splitlines()
    assert lines[::2] == warm + turns
    assert all(
        end == f"{begin[0]} ends" for begin, end in zip(lines[::2], lines[1::2], strict=True)
    )


def test_a_whole_run_is_a_turn_and_its_mean_counts(tmp_path) -> None:
    log = tmp_path / "log"
    with fake("a", log) as a:
        take_turns([a], {"rounds": 7}, repeats=1)
    assert log.read_text().splitlines()[::2] == ["a begins 2", "a begins 7"]


def test_one_who_fails_is_out_with_a_sentence(tmp_path) -> None:
    log = tmp_path / "log"
    wrong = "raise RuntimeError('no such thing in /some/place/of/mine here')"
    with fake("a", log) as a, fake("b", log, wrong) as b:
        good, bad = take_turns([a, b], {"rounds": 0}, repeats=2)
    assert good.turns == [1.0, 1.0]
    assert bad.failed == "b (alone) failed: RuntimeError: no such thing in … here"
    assert bad.median == float("inf")
    assert "b begins 3" not in log.read_text()


def test_one_who_cannot_be_started_or_hangs_is_out(tmp_path) -> None:
    missing = Contestant("gone", "alone", [str(tmp_path / "nothing")])
    slow = fake("slow", tmp_path / "log", "time.sleep(60)")
    slow.limit = 1.0
    gone, hanging = take_turns([missing, slow], {"rounds": 0}, repeats=1)
    assert gone.failed == "gone (alone) could not be started: No such file or directory"
    assert hanging.failed == "slow (alone) did not answer in 1 seconds"


def test_one_of_two_processes_that_ends_ends_both(tmp_path) -> None:
    then = "import os; time.sleep(60) if os.environ['WHO'] == '0' else sys.exit('lost')"
    pair = fake("pair", tmp_path / "log", then)
    pair.environments = [{"WHO": "0"}, {"WHO": "1"}]
    (found,) = take_turns([pair], {"rounds": 0}, repeats=1)
    assert found.failed == "pair (alone) failed: lost"


# -- peers -------------------------------------------------------------------------------------------


def test_a_peer_that_cannot_be_installed_is_told_in_one_sentence(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FAIRLEAD_CACHE", str(tmp_path))
    asked, said = [], []

    def pip(command: list[str], **_: Any) -> Any:
        asked.append(command[-1])
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        bad = command[-1].startswith("nothing")
        return subprocess.CompletedProcess(command, int(bad), "", "ERROR: there is no nothing")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(
        fl.FairleadError, match=r"^None could not be installed: there is no nothing$"
    ):
        environment(Peer("None", "none.py", (("nothing==2", "nothing"),)), said.append)
    version = torch.__version__.partition("+")[0]
    assert asked[1:] == [f"torch=={version}", "nothing==2", "nothing"]  # torch comes first
    assert said[0] == "making an environment for None (once)"

    found = environment(Peer("Some", "some.py", (("nothing==2", "something"),)), said.append)
    assert found.parent.parent.parent == tmp_path / "fairlead" / "peers"


def test_forms_of_peers(monkeypatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setenv("FAIRLEAD_PEERS", "pfl=/a,Flower=/b,FedLab=/c")
    forms = {name: contestants(peer, TINY, print) for name, peer in PEERS.items()}
    assert {name: [c.form for c in found] for name, found in forms.items()} == {
        "pfl": ["1 process", "2 processes"],
        "Flower": ["start_simulation", "run_simulation"],
        "FedLab": ["1 process"],
    }
    assert [e["PFL_WORKER_RANK"] for e in forms["pfl"][1].environments] == ["0", "1"]
    with pytest.raises(fl.FairleadError, match="by rounds, not by whole runs"):
        contestants(PEERS["Flower"], replace(TINY, rounds=5), print)


def test_scripts_of_peers_need_no_peer_to_be_read() -> None:
    folder = Path(plain.__file__).parent
    assert {peer.script for peer in PEERS.values()} <= {path.name for path in folder.glob("*.py")}
    for peer in PEERS.values():
        source = (folder / peer.script).read_text()
        assert "import fairlead" not in source
        assert "from fairlead" not in source


# -- what is said ------------------------------------------------------------------------------------


@pytest.fixture
def report() -> run.Report:
    return small_report()


def test_table(report) -> None:
    text = table.markdown(report)
    assert (
        "2 cores, torch 2.13.0, 2 threads; matmul 90 GFLOP/s, copies 10.0 GB/s; medians of 5"
        in text
    )
    assert (
        "| workload | floor | fairlead | over the floor | with SCAFFOLD | bare loop | pfl | Flower |"
        in text
    )
    assert "| W1 softmax | 50 | 100 | 2.00 × | 120 | 200 (2.00 ×) | 300 (3.00 ×) | – |" in text
    assert "pfl 1.0 by 2 processes; Flower could not be installed: no wheel." in text
    assert "4 GFLOP (6 by three passes) and 0.2 GB per round, the floor is of arithmetic" in text
    assert "| cohort 10 | 1 | 2 | – | 4 | 2.00 × |" in text
    assert text.count("SCAFFOLD failed") == 1
    assert "busy" not in text
    report["machine"]["load"] = 1.7
    assert "busy with other work (load 1.7)" in table.markdown(report)


def test_files(report, tmp_path) -> None:
    written = write(report, tmp_path / "new")
    assert written == ["bench.json", "bench.md", "bench.png", "scaling.png"]
    for name in written:
        assert (tmp_path / "new" / name).stat().st_size > 100
    assert json.loads((tmp_path / "new" / "bench.json").read_text()) == report
    (tmp_path / "file").touch()
    with pytest.raises(fl.FairleadError, match="cannot write to"):
        write(report, tmp_path / "file")


def test_the_fastest_form_counts(report) -> None:
    row = report["workloads"][0]
    found = run.best(row, "pfl")
    assert found is not None
    assert found["form"] == "2 processes"
    assert run.best(row, "FedLab") is None


def test_a_run_reports_even_those_who_fail(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(
        Machine, "measured", lambda device: Machine(device, "m", 1, 1e9, 1e9, {FAR: 1e9})
    )
    monkeypatch.setattr(run, "own", lambda group, *_, **how: fake(group, tmp_path / "log"))

    def missing(peer: Peer, *_: Any) -> list[Contestant]:
        if peer.name == "pfl":
            raise fl.FairleadError("pfl could not be installed: why")
        return [fake(peer.name, tmp_path / "log", "sys.exit('what happened')")]

    monkeypatch.setattr(run, "contestants", missing)
    so_far = []
    report = run.bench(["W1"], peers=True, repeats=1, each=so_far.append)
    assert so_far == [report]
    row = report["workloads"][0]
    failed = {c["group"]: c["failed"] for c in row["contestants"] if c["failed"]}
    assert failed == {
        "pfl": "pfl could not be installed: why",
        "Flower": "Flower (alone) failed: what happened",
        "FedLab": "FedLab (alone) failed: what happened",
    }
    assert "| – | – | – |" in table.markdown(report)
    json.dumps(report, allow_nan=False)
    monkeypatch.setattr(run, "scaling", lambda *_: [{"curve": "cohort"}])
    alone = run.bench(curves=True)
    assert (alone["workloads"], alone["scaling"]) == ([], [{"curve": "cohort"}])
    with pytest.raises(fl.FairleadError, match="repeats is 0"):
        run.bench(repeats=0)
    with pytest.raises(fl.FairleadError, match="no engine 'quick'"):
        run.bench(engine="quick")


def test_own_contestants_answer() -> None:
    with own("bare loop", "cpu") as loop, own("fairlead", "cpu", "SCAFFOLD", "loop") as ours:
        answers = [c.turn(TINY.asked(), 2) for c in (loop, ours)]
    assert [a["version"] for a in answers] == [fl.__version__] * 2
    assert answers[1]["note"] == "loop, as asked for"
    distributed = own("fairlead", "cpu", engine="distributed")
    assert len(distributed.environments) == (os.cpu_count() or 1)


def test_command(report, monkeypatch, tmp_path) -> None:
    given: dict[str, Any] = {}

    def bench(names: Any, **more: Any) -> run.Report:
        given.update(more, names=names)
        return report

    monkeypatch.setattr("bench.bench", bench)
    done = CliRunner().invoke(app, ["bench", "W1", "--repeats", "3", "--out", str(tmp_path / "o")])
    assert done.exit_code == 0
    assert "| W1 softmax | 50 | 100 |" in done.output
    assert (given["names"], given["repeats"], given["peers"]) == (["W1"], 3, False)
    assert (tmp_path / "o" / "bench.md").read_text() == table.markdown(report)


def test_command_without_the_source_checkout(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(fl, "__file__", str(tmp_path / "lib" / "fairlead" / "__init__.py"))
    done = CliRunner().invoke(app, ["bench", "W1", "--out", str(tmp_path / "o")])
    assert done.exit_code == 2
    said = " ".join(done.output.split())
    assert said.startswith("error: the benchmarks come with fairlead's source checkout")
    assert not (tmp_path / "o").exists()


def test_it_runs_without_typer_rich_and_matplotlib(report, tmp_path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(report))
    code = f"""
import json, sys
sys.modules |= dict.fromkeys({NEEDLESS!r})  # importing one of these fails now
from bench import write
from bench.__main__ import main
print(write(json.load(open("report.json")), "."))
sys.argv = ["bench", "W9"]
main()
"""
    env = {**os.environ, "PYTHONPATH": PATHS}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.strip() == "['bench.json', 'bench.md']"
    assert done.stderr.startswith("error: there is no workload 'W9'")
    assert done.returncode == 1


def test_times_of_one_who_failed_do_not_count() -> None:
    assert Times("a", "b", [1.0, 2.0, 4.0]).median == 2.0
    assert Times("a", "b", [1.0], failed="a (b) failed: x").median == float("inf")
