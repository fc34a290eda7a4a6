"""Several processes give what one gives, and go on when one of them dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import campaign
import numpy as np
import pytest
import ranks
import torch
from programs import LIMIT, PATHS, TESTS, ended, wait_until
from safetensors.torch import load_file, save_file

import fairlead as fl
from fairlead.engine.processes import ranks as torch_ranks
from fairlead.engine.processes.shares import balanced


@contextmanager
def held_port() -> Iterator[str]:
    """A port for a program to listen on, which meanwhile is given to nobody else, however late it does."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield str(held.getsockname()[1])


@contextmanager
def launched(count: int, *words: str, **more: str) -> Iterator[list[subprocess.Popen]]:
    """A program that is started once a rank, as torchrun does."""
    with held_port() as port:
        env = {
            **os.environ, "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error", "PYTHONPATH": PATHS, **more,
        }  # fmt: skip
        started = [
            subprocess.Popen(
                [sys.executable, *words], env={**env, "RANK": str(r), "LOCAL_RANK": str(r)},
                cwd=TESTS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for r in range(count)
        ]  # fmt: skip
        with ended(started):
            yield started


def launch(count: int, *words: str) -> None:
    """Run a program once a rank, to its good end."""
    with launched(count, *words) as started:

        def failed() -> list[subprocess.Popen]:
            return [p for p in started if p.poll()]

        wait_until(lambda: bool(failed()) or all(p.poll() == 0 for p in started), "all ranks ended")
        assert not failed(), "\n".join(p.communicate()[0] for p in failed())


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case in one process."""
    folder = tmp_path_factory.mktemp("single")
    for name, (task, method, mode, settings) in ranks.cases().items():
        run = fl.train(task, method, engine=mode, **settings)
        ranks.written(run, name, folder)
        if run.session.states.store is not None:
            rows = run.session.states.store.export()
            save_file({k: t.contiguous() for k, t in rows.items()}, folder / f"{name}.rows")
    return folder


def _agree(one: Path, many: Path, count: int) -> None:
    for file in sorted(one.glob("*.safetensors")):
        expected = load_file(file)
        for rank in range(count):
            found = load_file(many / str(rank) / file.name)
            for key, value in expected.items():
                torch.testing.assert_close(
                    found[key], value, rtol=0, atol=1e-10, msg=f"{file.stem} {key}"
                )
        first = load_file(many / "0" / file.name)
        for rank in range(1, count):
            for key, value in load_file(many / str(rank) / file.name).items():
                assert torch.equal(value, first[key]), (file.stem, key)  # the same bytes everywhere
    for file in sorted(one.glob("*.json")):
        expected = json.loads(file.read_text())
        for rank in range(count):
            found = json.loads((many / str(rank) / file.name).read_text())
            counts, nominal = found["counts"], expected["counts"].pop("nominal", None)
            if nominal is not None:
                assert counts.pop("nominal") == pytest.approx(nominal)
            else:
                counts.pop("nominal")
            assert counts == expected["counts"], file.stem
            assert found["each"] == expected["each"], file.stem
            assert len(found["rows"]) == len(expected["rows"])
            for a, b in zip(found["rows"], expected["rows"], strict=True):
                assert a.keys() == b.keys()
                np.testing.assert_allclose(
                    list(a.values()), list(b.values()), atol=1e-9, err_msg=file.stem
                )


def _rows(one: Path, many: Path, count: int) -> None:
    """Every client's memory lies with exactly one rank, and is what it is in one process."""
    for file in sorted(one.glob("*.rows")):
        parts = [load_file(many / str(rank) / file.name) for rank in range(count)]
        ids = torch.cat([p["ids"] for p in parts])
        order = ids.argsort()
        expected = load_file(file)
        assert torch.equal(ids[order], expected["ids"]), file.stem
        for key, value in expected.items():
            if key != "ids":
                found = torch.cat([p[key] for p in parts if key in p])[order]
                torch.testing.assert_close(
                    found, value, rtol=0, atol=1e-10, msg=f"{file.stem} {key}"
                )


@pytest.mark.parametrize(
    "count", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 3, 4))]
)
def test_every_method_on_several_ranks(count: int, single: Path, tmp_path: Path) -> None:
    launch(count, "ranks.py", str(tmp_path), "all", "{}")
    _agree(single, tmp_path, count)
    _rows(single, tmp_path, count)


@pytest.mark.gpu
@pytest.mark.parametrize(("count", "backend"), [(1, "nccl"), (2, "gloo")])
def test_ranks_on_a_gpu(count: int, backend: str, single: Path, tmp_path: Path) -> None:
    options = json.dumps({"device": "cuda", "backend": backend})
    launch(count, "ranks.py", str(tmp_path), "all", options)
    part = tmp_path / "expected"
    part.mkdir()
    for name in ranks.LOOP:
        for file in single.glob(f"{name}.*"):
            (part / file.name).write_bytes(file.read_bytes())
    _agree(part, tmp_path, count)
    _rows(part, tmp_path, count)


@pytest.mark.parametrize("cost", [[5.0, 4, 3, 3, 3], [1.0] * 7, [9.0, 1, 1, 1], [2.0]])
def test_shares_are_fair_and_leave_clients_where_they_are(cost: list[float]) -> None:
    costs = np.array(cost)
    for count in (1, 2, 3, 8):
        owner = np.arange(len(costs)) % count
        share = balanced(costs, owner, count)
        load = np.bincount(share, costs, minlength=count)
        assert load.max() <= max(costs.sum() / count, costs.max()) + costs.max()  # of greedy shares
        again = balanced(costs, share, count)
        assert np.bincount(again, costs, minlength=count).max() <= load.max()
    fair = np.array([0, 1, 0, 1])
    assert balanced(np.ones(4), fair, 2).tolist() == fair.tolist()  # nobody moves without need


FURTHER = """
import sys, ranks
from fairlead.engine.processes.ranks import _leave
from pathlib import Path
top, names = Path(sys.argv[1]), sys.argv[2]
rank = ranks.main(top / "shard", names, data="shard")
assert ranks.main(top / "half", "fedavg", sums="bfloat16") == rank
_leave()
threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
(top / f"threads {rank}").write_text(chr(10).join(threads))
"""
SHARDED = ("scaffold", "fedglomo-qsgd", "statistics", "one client", "replayed")


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks write with other settings, and which threads they have at their end."""
    folder = tmp_path_factory.mktemp("further")
    for name in ("shard", "half"):
        (folder / name).mkdir()
    script = folder / "further.py"
    script.write_text(FURTHER)
    launch(2, str(script), str(folder), ",".join(SHARDED))
    return folder


def test_data_can_lie_with_their_clients(single: Path, further: Path, tmp_path: Path) -> None:
    for name in SHARDED:
        for file in single.glob(f"{name}.*"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    _agree(tmp_path, further / "shard", 2)
    _rows(tmp_path, further / "shard", 2)


def test_sums_in_half_the_bytes(single: Path, further: Path) -> None:
    exact = load_file(single / "fedavg.safetensors")["state/x"]
    files = [further / "half" / str(rank) / "fedavg.safetensors" for rank in (0, 1)]
    found = [load_file(file)["state/x"] for file in files]
    assert torch.equal(*found)
    assert 0 < float((found[0] - exact).abs().max()) < 0.05


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="lists threads as Linux does")
def test_no_thread_of_the_group_outlives_python(further: Path) -> None:
    """One that did ended now and then in an abort, since it let go of a tensor too late."""
    for rank in (0, 1):
        names = (further / f"threads {rank}").read_text().splitlines()
        assert names
        assert not [name for name in names if "gloo" in name], names


RESUME = """
import sys, torch, fairlead as fl
from conformance import METHODS
from conftest import uneven
from ranks import RAGGED, written
from pathlib import Path
top, rounds = Path(sys.argv[1]), int(sys.argv[2])
settings = {**RAGGED, "rounds": rounds}
for name in sys.argv[3:]:
    folder = top / name
    run = fl.train(uneven(), METHODS[name], engine=fl.Distributed("vmap"), out=folder, resume="auto",
                   checkpoints=fl.Checkpoints(folder / "checkpoints", every=2), **settings)
    if run.session.group.first:
        written(run, name, top)
"""


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    names = ("scaffold", "fedavg-topk-ef", "fedglomo-qsgd")
    script = tmp_path / "resume.py"
    script.write_text(RESUME)
    for count, rounds in ((2, 3), (3, 5), (1, 6), (2, 8)):
        launch(count, str(script), str(tmp_path), str(rounds), *names)
    settings = {**ranks.RAGGED, "rounds": 8}
    for name in names:
        whole = fl.train(ranks.uneven(), ranks.METHODS[name], engine="vmap", **settings)
        found = load_file(tmp_path / f"{name}.safetensors")
        for key, value in whole.state.tensors().items():
            torch.testing.assert_close(found[f"state/{key}"], value, rtol=0, atol=1e-10)
        counts = json.loads((tmp_path / f"{name}.json").read_text())["counts"]
        assert (counts["gradients"], counts["up"]) == (whole.counters.gradients, whole.ledger.up)
        stored = fl.runs.read(tmp_path / name)
        assert stored.history["round"].tolist() == list(range(9))
        np.testing.assert_allclose(stored.history["loss"], whole.history["loss"], atol=1e-10)
        assert [part["after"] for part in stored.parts] == [-1, 3, 5, 6]


def program(words: list[str]) -> str:
    """What a program prints until its good end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def torchrun(count: int, *words: str) -> str:
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    with held_port() as port:
        return program([*start, "--master-port", port, *words])


DIES = """
import os, signal, sys, dataclasses, fairlead as fl
from conftest import uneven
from pathlib import Path

@dataclasses.dataclass(frozen=True)
class Dying(fl.Scaffold):
    def local_steps(self, client, x, c):
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if first and sys.argv[2] == "die" and os.environ["RANK"] == "1" and client.work.round == 5:
            os.kill(os.getpid(), signal.SIGKILL)  # in the middle of a round
        return super().local_steps(client, x, c)

folder = Path(sys.argv[1])
run = fl.train(uneven(), Dying(lr=0.2), rounds=9, cohort=4, batch_size=4, epochs=1, resume="auto",
               engine=fl.Distributed("loop", timeout=600), out=folder,
               checkpoints=fl.Checkpoints(folder / "checkpoints", every=2))
if run.session.group.first:
    run.save(folder / "model.safetensors")
"""


@pytest.mark.slow
def test_a_rank_that_is_killed_is_started_again(tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text(DIES)
    for what in ("die", "live"):
        torchrun(3, "--max-restarts", "2", str(script), str(tmp_path / what), what)
    parts = fl.runs.read(tmp_path / "die").parts
    assert len(parts) == 2
    assert parts[1]["after"] == 4
    one, two = ((tmp_path / w / "model.safetensors").read_bytes() for w in ("die", "live"))
    assert one == two
    torchrun(3, str(script), str(tmp_path / "die"), "live")  # a job that is queued again
    assert fl.runs.read(tmp_path / "die").parts == parts
    assert (tmp_path / "die" / "model.safetensors").read_bytes() == two


@pytest.mark.slow
def test_ranks_that_end_after_the_run_are_started_again_for_nothing(tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    torchrun(2, "--max-restarts", "2", str(script), str(tmp_path / "run"))
    stored = fl.runs.read(tmp_path / "run")
    assert stored.status == "rounds"
    assert (tmp_path / "run" / "run.png").is_file()


ENDS = """
import os, sys
from fairlead.__main__ import app
first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
try:
    app(["run", "--task", "theorem2", "--rounds", "4", "--steps", "2", "--engine", "loop", "--out", sys.argv[1]])
except SystemExit as ending:
    sys.exit(3 if first and os.environ["RANK"] == "1" else ending.code)
"""


def test_a_rank_that_is_lost_ends_the_others_with_a_sentence(tmp_path: Path) -> None:
    words = ["-m", "fairlead", "run", "--task", "theorem2", "--rounds", "100000", "--steps", "2",
             "--engine", "loop", "--timeout", "600", "--out", str(tmp_path / "run")]  # fmt: skip

    def under_way() -> bool:
        return (
            bool(fl.runs.find(tmp_path)) and len(fl.runs.read(tmp_path / "run").history.rows) >= 5
        )

    with launched(3, *words, PYTHONWARNINGS="default") as started:
        wait_until(under_way, "five rows are written", started[0])
        started[1].kill()
        outputs = [p.communicate(timeout=LIMIT)[0] for p in started]
    assert [p.returncode for p in started] == [2, -signal.SIGKILL, 2]
    assert "rank 0 of 3 lost the others" in " ".join(outputs[0].split())
    assert "error" not in outputs[2]
    assert fl.runs.read(tmp_path / "run").status.startswith("failed: rank 0 of 3 lost")


def test_ranks_end_with_their_launcher(tmp_path: Path) -> None:
    words = ["run", "--task", "theorem2", "--rounds", "1000000", "--steps", "2", "--engine", "loop",
             "--out", "run"]  # fmt: skip

    def under_way() -> bool:
        return (
            bool(fl.runs.find(tmp_path)) and len(fl.runs.read(tmp_path / "run").history.rows) >= 2
        )

    launcher = campaign.Command([*campaign.torchrun(2), *words], tmp_path)
    with ended([launcher]):
        try:
            wait_until(under_way, "two rows are written", launcher)
            assert len(campaign.members(launcher)) == 3
            launcher.kill()
            wait_until(lambda: not campaign.members(launcher), "the ranks have ended")
        finally:
            campaign.end_all(launcher)
    assert fl.runs.read(tmp_path / "run").status == "interrupted"


def test_ranks_whose_launcher_is_gone_say_so(monkeypatch) -> None:
    monkeypatch.setattr(torch_ranks, "LAUNCHER", timedelta(seconds=1))
    monkeypatch.setattr(
        torch_ranks, "end_with_parent", lambda kind: None
    )  # of the tests' own process
    with held_port() as port:
        for name, value in {
            "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        with pytest.raises(fl.FairleadError, match="did not find each other"):
            torch_ranks.TorchRanks(torch.device("cpu"), None, 600.0)


def test_the_command_under_torchrun(tmp_path: Path) -> None:
    words = ["run", "--task", "digits", "--rounds", "4", "--engine", "vmap", "--lr", "0.5"]
    said = torchrun(2, "-m", "fairlead", *words, "--out", str(tmp_path / "two"))
    assert said.count("Scaffold on digits") == 1
    assert "2 ranks" in said
    program([sys.executable, "-m", "fairlead", *words, "--out", str(tmp_path / "one")])
    one, two = (fl.runs.read(tmp_path / name).history for name in ("one", "two"))
    np.testing.assert_allclose(one["loss"], two["loss"], rtol=1e-5)
    assert one["bits"].tolist() == two["bits"].tolist()
