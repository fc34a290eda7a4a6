"""Processes that fairlead starts itself give what one gives, and leave nothing behind."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks
import torch
from conftest import uneven
from programs import LIMIT, PATHS, ended, wait_until
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import app
from fairlead.engine.processes import local, workers
from fairlead.engine.processes import local as crew
from fairlead.engine.processes.local import SLOT, SMALL, LocalProcesses

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forks")

WORK = {"rounds": 4, "cohort": 4, "batch_size": 4, "steps": 3}
LARGE = {**WORK, "rounds": 2, "batch_size": 40}


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The processes that a test started; none is left."""
    started: list[int] = []
    fork = os.fork

    def noted() -> int:
        started.append(fork())
        return started[-1]

    monkeypatch.setattr(os, "fork", noted)
    yield started
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def wide() -> fl.Task:
    """A network whose operators use threads where there are any."""
    x = torch.randn(160, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 26 * 26, 4)
    )  # fmt: skip
    return _task(net, x)


def large() -> fl.Task:
    """A problem that is not small, but fast."""
    x = torch.randn(160, 2000, generator=torch.Generator().manual_seed(0))
    return _task(torch.nn.Linear(2000, 4), x)


def _task(net: torch.nn.Module, x: torch.Tensor) -> fl.Task:
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.linspace(-0.02, 0.02, p.numel()).reshape(p.shape))
    parts = np.arange(160).reshape(4, 40)
    return fl.Task(net, "cross_entropy", (x, torch.arange(160) % 4), parts, dtype=torch.float64)


def same(run: fl.Run, other: fl.Run, atol: float = 1e-10) -> None:
    """Two runs that did the same."""
    for name, value in other.state.tensors().items():
        torch.testing.assert_close(run.state.tensors()[name], value, rtol=0, atol=atol)
    torch.testing.assert_close(run.session.buffers, other.session.buffers, rtol=0, atol=atol)
    assert (run.rounds, run.stopped, run.counters) == (other.rounds, other.stopped, other.counters)
    for a, b in zip(run.ledger.exchanges, other.ledger.exchanges, strict=True):
        assert (a.round, a.down, a.up.tolist()) == (b.round, b.down, b.up.tolist())
    for row, expected in zip(run.history.rows, other.history.rows, strict=True):
        assert row.keys() == expected.keys()
        kept = [name for name in row if name != "seconds"]
        np.testing.assert_allclose(
            [row[n] for n in kept], [expected[n] for n in kept], atol=max(atol, 1e-12)
        )
    if other.session.states.store is not None:  # also the clients' memories have come home
        rows, expected = run.session.states.store.export(), other.session.states.store.export()
        for name, value in expected.items():
            torch.testing.assert_close(rows[name], value, rtol=0, atol=atol)


def same_bytes(run: fl.Run, other: fl.Run) -> None:
    for name, value in other.state.tensors().items():
        assert torch.equal(run.state.tensors()[name], value), name
    assert fl.runs.first_difference(run.history, other.history) is None


NAMES = ("scaffold", "fedglomo-qsgd", "fedavg-topk-ef", "game", "statistics", "one client")


@pytest.fixture(scope="module")
def single() -> dict[str, tuple[tuple, fl.Run]]:
    """Cases with what one process makes of them."""
    cases = {name: case for name, case in ranks.cases().items() if name in NAMES}
    return {
        name: (case, fl.train(case[0], case[1], engine=case[2], **case[3]))
        for name, case in cases.items()
    }


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_several_processes_give_what_one_gives(name: str, count: int, single: dict) -> None:
    (task, method, mode, settings), one = single[name]
    run = fl.train(task, method, engine=mode, workers=count, **settings)
    same(run, one)
    assert f"{count} processes, as asked for" in run.engine


@pytest.mark.parametrize("extra", [0, 1])
def test_processes_that_take_turns_keep_to_a_core_of_their_own(extra: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    count = len(cores) + extra
    with LocalProcesses(count) as processes:
        processes.take(1)
        mine = os.sched_getaffinity(0)
        masks = np.zeros((count, max(cores) + 1))
        masks[processes.rank, list(mine)] = 1
        masks = processes.total(masks)
    own = np.eye(max(cores) + 1)[cores]
    assert masks.tolist() == (own if not extra else np.tile(own.sum(0), (count, 1))).tolist()
    assert sorted(os.sched_getaffinity(0)) == cores


def test_more_workers_than_clients(single: dict) -> None:
    (task, method, mode, settings), one = single["statistics"]
    same(fl.train(task, method, engine=mode, workers=6, **settings), one)


def test_settings_of_ranks_are_those_of_workers_too(single: dict) -> None:
    (task, method, mode, settings), one = single["scaffold"]
    shards = fl.Distributed(mode, data="shard")
    same(fl.train(task, method, engine=shards, workers=2, **settings), one)
    half = fl.Distributed(mode, sums="bfloat16")
    rough = fl.train(task, method, engine=half, workers=2, **settings)
    assert 0 < float((rough.x - one.x).abs().max()) < 0.1


@dataclasses.dataclass(frozen=True)
class Noted(fl.Scaffold):
    """Writes down the server's state in every process."""

    folder: str = ""

    def round(self, state: Any, clients: Any) -> Any:
        state = super().round(state, clients)
        data = b"".join(t.numpy().tobytes() for t in state.tensors().values())
        with (Path(self.folder) / str(os.getpid())).open("a") as file:
            file.write(hashlib.sha256(data).hexdigest() + "\n")
        return state


def test_all_processes_have_the_same_bytes(tmp_path: Path) -> None:
    fl.train(uneven(), Noted(lr=0.2, folder=str(tmp_path)), workers=3, engine="loop", **WORK)
    lines = [path.read_text().splitlines() for path in tmp_path.iterdir()]
    assert len(lines) == 3
    assert all(len(some) == 4 and some == lines[0] for some in lines)


# -- what processes do together -------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, SMALL // 8, SLOT // 8 + 3, 3 * SLOT // 8 + 1])
def test_sums_are_those_in_the_order_of_ranks(size: int) -> None:
    given = [
        torch.randn(size, generator=torch.Generator().manual_seed(k)).double() for k in range(3)
    ]
    with LocalProcesses(3) as crew:
        total = crew.sum_(given[crew.rank].clone())
        again = crew.sum_(given[crew.rank].clone())
        seen = crew.gather(hashlib.sha256(total.numpy().tobytes()).digest())
    expected = given[0] + given[1] + given[2]
    assert torch.equal(total, expected)
    assert torch.equal(again, expected)
    assert len(set(seen)) == 1


def test_numbers_and_rows_travel() -> None:
    with LocalProcesses(3) as crew:
        r = crew.rank
        most, total = crew.most([r, -r]), crew.total(np.array([1.0, r]))
        told = crew.tell({"a": [1, "b"]} if crew.first else None)
        half = crew.sum_(torch.full((SMALL,), r + 1.0).bfloat16())
        wide = torch.arange(SLOT, dtype=torch.float64) + r  # longer than what fits at a time
        room = {
            o: torch.empty(SLOT if o == 1 else 5, dtype=torch.float64) for o in range(3) if o != r
        }
        give = {o: wide if r == 1 else wide[:5] for o in range(3) if o != r}
        crew.swap(give, room)
        crew.swap({2: wide} if r == 0 else {}, {})  # nobody takes it
    assert (most, total.tolist(), told) == ([2, 0], [3.0, 3.0], {"a": [1, "b"]})
    assert half.dtype == torch.bfloat16
    assert bool((half == 6).all())
    assert torch.equal(room[1], torch.arange(SLOT) + 1.0)
    assert torch.equal(room[2], torch.arange(5) + 2.0)


def test_processes_that_go_different_ways_are_told_apart() -> None:
    def part(crew: LocalProcesses) -> None:
        with crew:
            _ = crew.wait() if crew.first else crew.most([1])

    with pytest.raises(fl.FairleadError, match="process 1 of the run's 2 is out of step"):
        part(LocalProcesses(2))


# -- a parent with threads, and several runs ------------------------------------------------------


@pytest.mark.usefixtures("two_threads")
def test_after_operators_with_threads() -> None:
    task = wide()
    one = fl.train(task, fl.FedAvg(lr=0.1), **WORK)
    a = torch.randn(1500, 1500)
    assert bool(torch.isfinite(a @ a).all())  # torch's threads are there now
    torch.nn.functional.conv2d(torch.randn(64, 3, 64, 64), torch.randn(16, 3, 3, 3))
    for mode in ("vmap", "loop"):
        same(fl.train(task, fl.FedAvg(lr=0.1), engine=mode, workers=2, **WORK), one)
    assert torch.get_num_threads() == 2
    assert bool(torch.isfinite(a @ a).all())  # and still are


def test_one_after_another_with_other_numbers() -> None:
    one = fl.train(uneven(), fl.Scaffold(lr=0.2), **WORK)
    for count in (2, 1, 3, None, 2):
        same(fl.train(uneven(), fl.Scaffold(lr=0.2), workers=count, **WORK), one)
    assert not torch.distributed.is_initialized()


def test_a_run_inside_a_worker_and_beside_it_has_one_process() -> None:
    found: list[str] = []

    class Beside(fl.Callback):
        def row(self, row: Any) -> None:
            inner = fl.train(uneven(), fl.FedAvg(lr=0.1), workers="auto", **WORK)
            found.append(inner.engine)

    fl.train(uneven(), fl.FedAvg(lr=0.1), workers=2, callbacks=[Beside()], **WORK)
    assert set(found) == {"vmap: a small problem"}


# -- going on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["scaffold", "fedavg-topk-ef"])
def test_going_on_ends_in_the_same_bytes(name: str, tmp_path: Path) -> None:
    method, settings = ranks.METHODS[name], {**ranks.RAGGED, "rounds": 7}

    def train(rounds: int, **more: Any) -> fl.Run:
        return fl.train(uneven(), method, engine="vmap", **{**settings, "rounds": rounds, **more})

    whole = train(7, workers=2)
    half = train(4, workers=2, out=tmp_path / "a")
    same_bytes(train(7, workers=2, resume=half), whole)
    from_file = train(7, workers="auto", out=tmp_path / "a", resume=tmp_path / "a")
    same_bytes(from_file, whole)
    assert "2 processes, as it was begun" in from_file.engine
    assert fl.runs.read(tmp_path / "a").history["round"].tolist() == list(range(8))
    same(train(7, workers=3, resume=half), whole)
    same(train(7, resume=half), whole)
    one = train(4, out=tmp_path / "b")
    same(train(7, workers=2, resume=one), whole)
    alone = train(7, workers="auto", out=tmp_path / "b", resume="auto")
    assert "processes" not in alone.engine
    same_bytes(alone, train(7))


def test_a_run_that_ended_needs_no_workers(forks: list[int], tmp_path: Path) -> None:
    whole = fl.train(uneven(), fl.Scaffold(lr=0.1), workers=2, out=tmp_path, **WORK)
    assert len(forks) == 1
    again = fl.train(uneven(), fl.Scaffold(lr=0.1), workers=2, out=tmp_path, resume="auto", **WORK)
    assert len(forks) == 1
    same_bytes(again, whole)


# -- errors and deaths ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Failing(fl.Scaffold):
    """Goes wrong in round 2, in all processes or only in workers."""

    how: str = "error"
    parent: int = 0
    only_workers: bool = True

    def local_steps(self, client: Any, x: Any, c: Any) -> Any:
        if client.work.round == 2 and not (self.only_workers and os.getpid() == self.parent):
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if self.how == "sentence":
                raise fl.FairleadError("the client is tired")
            raise KeyError("spam")
        return super().local_steps(client, x, c)


def test_an_error_in_a_worker_is_told_once(capfd: pytest.CaptureFixture) -> None:
    method = Failing(lr=0.1, parent=os.getpid())
    with pytest.raises(
        fl.FairleadError, match="process 1 of the run's 2 failed: KeyError: 'spam'"
    ) as e:
        fl.train(uneven(), method, workers=2, engine="loop", **WORK)
    assert "in local" in "".join(e.value.__notes__)
    with pytest.raises(
        fl.FairleadError, match="process 1 of the run's 3 failed: the client is tired"
    ):
        fl.train(
            uneven(), dataclasses.replace(method, how="sentence"), workers=3, engine="loop", **WORK
        )
    with pytest.raises(KeyError, match="spam"):  # everywhere: the calling process's own
        fl.train(uneven(), Failing(lr=0.1, only_workers=False), workers=2, engine="loop", **WORK)
    assert capfd.readouterr() == ("", "")


def test_a_stopped_worker_is_not_waited_for_without_end(monkeypatch) -> None:
    monkeypatch.setattr(local, "PATIENCE", 0.2)
    method = Failing(lr=0.1, how="stop", parent=os.getpid())
    with pytest.raises(fl.FairleadError, match="process 1 of the run's 2 was stopped by a signal"):
        fl.train(uneven(), method, workers=2, engine="loop", **WORK)


def test_settings_are_refused_before_there_are_workers(forks: list[int], tmp_path: Path) -> None:
    with pytest.raises(fl.FairleadError, match="rounds is 0"):
        fl.train(uneven(), fl.FedAvg(lr=0.1), rounds=0, workers=2)
    for wrong in (0, -1, True, 2.0, "two"):
        with pytest.raises(fl.FairleadError, match="must be a number of processes"):
            fl.train(uneven(), fl.FedAvg(lr=0.1), workers=wrong, **WORK)
    assert not forks
    fl.train(uneven(), fl.FedAvg(lr=0.1), workers=2, out=tmp_path, **WORK)
    with pytest.raises(fl.FairleadError, match="already holds a run"):  # what only one of them sees
        fl.train(uneven(), fl.FedAvg(lr=0.1), workers=2, out=tmp_path, **WORK)


def test_a_killed_worker_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    method = Failing(lr=0.2, how="kill", parent=os.getpid())
    kept = {"out": tmp_path, "checkpoints": fl.Checkpoints(tmp_path / "checkpoints", every=1)}
    with pytest.raises(fl.FairleadError, match="process 1 of the run's 2 was killed by SIGKILL"):
        fl.train(uneven(), method, workers=2, engine="loop", **kept, **WORK)
    stored = fl.runs.read(tmp_path)
    assert stored.status.startswith("failed: process 1 of the run's 2 was killed")
    again = fl.train(uneven(), method, engine="loop", workers=1, resume=tmp_path, **kept, **WORK)
    same(again, fl.train(uneven(), method, engine="loop", **WORK))
    assert [part["after"] for part in fl.runs.read(tmp_path).parts] == [-1, 2]


SCRIPT = """
import atexit, os, sys, fairlead as fl
from conftest import uneven
folder = sys.argv[1]
atexit.register(lambda: print("bye", os.getpid()))
print("hello", os.getpid())  # waits in a buffer when the processes are started

class Loud(fl.FedAvg):
    def round(self, state, clients):
        print("round", file=sys.stdout)
        return super().round(state, clients)

class Told(fl.Callback):
    def row(self, row):
        open(folder + "/row", "w").write(str(int(row["round"])))

run = fl.train(uneven(), Loud(lr=0.1), rounds=int(sys.argv[2]), steps=2, batch_size=4, workers=3, engine="loop",
               out=folder + "/run" if len(sys.argv) > 3 else None, callbacks=[Told()])
print(run.stopped, file=sys.stderr)
"""


def start(tmp_path: Path, *words: str) -> subprocess.Popen:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), *words], env=env, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def under_way(process: subprocess.Popen, tmp_path: Path) -> list[int]:
    """The workers of a run that is in its rounds."""
    row = tmp_path / "row"
    wait_until(
        lambda: row.exists() and int(row.read_text() or 0) >= 2, "the run is in round 2", process
    )
    return children(process.pid)


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_what_is_printed_is_printed_once(tmp_path: Path) -> None:
    process = start(tmp_path, "3")
    with ended([process]):
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (0, "rounds\n")
    assert out.splitlines() == [f"hello {process.pid}", *["round"] * 3, f"bye {process.pid}"]


@pytest.mark.slow
def test_signals_leave_no_worker_behind(tmp_path: Path) -> None:
    ways = {"killed": signal.SIGKILL, "kept": signal.SIGINT, "ended": signal.SIGTERM,
            "not kept": signal.SIGINT}  # fmt: skip
    started = {}
    for name in ways:
        (tmp_path / name).mkdir()
        more = ["keep"] if name in ("kept", "ended") else []
        started[name] = start(tmp_path / name, "1000000", *more)
    with ended(started.values()):
        found = {name: under_way(process, tmp_path / name) for name, process in started.items()}
        assert all(len(workers) == 2 for workers in found.values())
        for name, process in started.items():
            if name == "killed":
                process.kill()
            else:
                os.killpg(process.pid, ways[name])  # as a terminal and a scheduler do
        errors = {name: process.communicate(timeout=LIMIT)[1] for name, process in started.items()}
    for pids in found.values():
        wait_until(lambda pids=pids: gone(pids), "the workers are gone")
    assert errors.pop("not kept").count("Traceback") == 1
    assert errors == {"killed": "", "kept": "interrupted\n", "ended": "interrupted\n"}
    ends = [process.returncode for process in started.values()]
    assert ends == [-signal.SIGKILL, 0, 0, -signal.SIGINT]
    for name in ("kept", "ended"):
        assert fl.runs.read(tmp_path / name / "run").status == "interrupted"


# -- where there are none -------------------------------------------------------------------------


def test_only_the_main_thread_has_workers() -> None:
    found: dict[Any, Any] = {}

    def ask(count: Any) -> None:
        try:
            found[count] = fl.train(uneven(), fl.FedAvg(lr=0.1), workers=count, **WORK).engine
        except fl.FairleadError as error:
            found[count] = str(error)

    for count in (2, "auto"):
        thread = threading.Thread(target=ask, args=(count,))
        thread.start()
        thread.join()
    why = "only the main thread of a process can start workers"
    assert found == {
        2: f"workers is 2, but there can be only one process: {why}",
        "auto": "vmap: a small problem",
    }  # fmt: skip


def test_processes_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(fl.FairleadError, match="already one of several"):
        fl.train(uneven(), fl.FedAvg(lr=0.1), workers=2, **WORK)
    run = fl.train(uneven(), fl.FedAvg(lr=0.1), workers="auto", **WORK)
    assert run.engine == "vmap: a small problem"


def test_a_machine_that_cannot_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    with pytest.raises(fl.FairleadError, match=r"workers could not be started: .*unavailable"):
        fl.train(uneven(), fl.FedAvg(lr=0.1), workers=2, **WORK)
    several = workers.Workforce(2, optional=True)
    monkeypatch.setattr(workers, "_by_work", lambda work, before: several)
    run = fl.train(uneven(), fl.FedAvg(lr=0.1), workers="auto", **WORK)
    assert "one process: workers could not be started" in run.engine


def test_workers_without_autograd_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **more: Any) -> Any:
        raise RuntimeError("Unable to handle autograd's threading in combination with fork")

    monkeypatch.setattr(torch.autograd, "grad", broken)
    with pytest.raises(fl.FairleadError, match="sees a GPU and has computed gradients"):
        fl.train(uneven(), fl.FedAvg(lr=0.1), workers=2, **WORK)


def test_workers_that_get_stuck_are_started_again(
    monkeypatch: pytest.MonkeyPatch, forks: list[int]
) -> None:
    rest = crew.rest

    def begin() -> None:  # called before workers are started: only the first ones have little time
        monkeypatch.setattr(crew, "START", LIMIT if forks else 0.2)
        rest()

    def stuck() -> None:  # as where a thread held a lock at the fork
        if len(forks) == 1:
            time.sleep(1000)

    monkeypatch.setattr(crew, "rest", begin)
    monkeypatch.setattr(crew, "check_operators", stuck)
    run = fl.train(uneven(), fl.FedAvg(lr=0.1), workers=2, **WORK)
    same(run, fl.train(uneven(), fl.FedAvg(lr=0.1), **WORK))
    assert len(forks) == 2
    monkeypatch.setattr(crew, "check_operators", lambda: time.sleep(1000))
    monkeypatch.setattr(crew, "rest", rest)
    monkeypatch.setattr(crew, "START", 0.2)
    with pytest.raises(
        fl.FairleadError, match="workers could not be started: a worker did not answer"
    ):
        fl.train(uneven(), fl.FedAvg(lr=0.1), workers=2, **WORK)
    assert len(forks) == 5


# -- one per core, where that is enough work ---------------------------------------------------------


@pytest.mark.usefixtures("two_threads")
def test_auto_depends_on_the_work_and_the_cores_alone(
    monkeypatch: pytest.MonkeyPatch, forks: list[int]
) -> None:
    def sizes(workers: Any, **more: Any) -> int:
        run = fl.train(large(), fl.FedAvg(lr=0.1), workers=workers, **{**LARGE, **more})
        return run.session.group.size

    assert sizes("auto") == sizes(None) == 1  # a small problem
    work = large().dim * LARGE["cohort"] * LARGE["steps"] * LARGE["batch_size"]
    monkeypatch.setattr(workers, "ENOUGH", work)
    assert sizes("auto") == sizes(None) == sizes("auto", rounds=1) == 2
    assert sizes("auto", cohort=3) == 1  # less work
    assert sizes("auto", cohort=1, steps=100) == 1  # one client is all there is
    assert sizes("auto", engine="debug") == sizes("auto", engine=fl.Simulate(threads=2)) == 1
    torch.set_num_threads(1)
    assert sizes("auto") == 1
    assert len(forks) == 3


# -- comparisons and the command line ---------------------------------------------------------------


def test_comparisons_with_workers() -> None:
    methods = {"FedAvg": fl.FedAvg(lr=0.1), "SCAFFOLD": fl.Scaffold(lr=0.1)}
    one = fl.compare(uneven(), methods, **WORK)
    two = fl.compare(uneven(), methods, workers=2, **WORK)
    for label in methods:
        same(two.entries[label].runs[0], one.entries[label].runs[0])
        assert two.entries[label].runs[0].session.group.size == 2
    auto = fl.compare(uneven(), methods, workers="auto", **WORK)
    assert auto.table()[0].keys() == one.table()[0].keys()
    with pytest.raises(fl.FairleadError, match="workers is only for single runs"):
        fl.compare(uneven(), methods, workers=2, together=True, **WORK)


def test_the_command(tmp_path: Path) -> None:
    words = ["run", "--task", "theorem2", "--rounds", "3", "--steps", "2"]
    tell = CliRunner()
    for count in ("1", "2"):
        done = tell.invoke(app, [*words, "--workers", count, "--out", str(tmp_path / count)])
        assert done.exit_code == 0, done.output
    assert "2 processes, as asked for" in " ".join(done.output.split())
    assert done.output.count("Scaffold on ") == 1
    one, two = (fl.runs.read(tmp_path / count).history for count in ("1", "2"))
    np.testing.assert_allclose(one["loss"], two["loss"], atol=1e-10)
    assert one["bits"].tolist() == two["bits"].tolist()
    done = tell.invoke(app, ["resume", str(tmp_path / "2"), "--rounds", "5"])
    assert done.exit_code == 0, done.output
    assert "2 processes" in done.output
    wrong = tell.invoke(app, [*words, "--workers", "many"])
    assert wrong.exit_code == 2
    assert "workers is 'many': give" in " ".join(wrong.output.split())
