"""A federation on Flower: its messages, and real SuperLink and SuperNode processes with TLS and node keys."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flower_processes import Processes, descendants, processes
from small_federation import SIZES, Federation

import fairlead as fl
from fairlead.deploy.book import Book
from fairlead.deploy.client_folder import ClientFolder
from fairlead.run.callbacks import named
from fairlead.run.saved import listed, read

flower = pytest.importorskip("flwr.app", reason="Flower is not installed: pip install flwr")
pytestmark = pytest.mark.slow  # `make test-deploy` runs them
METHODS = {
    "SCAFFOLD": "fl.Scaffold(lr=0.2)",
    "FedPVR": "fl.FedPVR(lr=0.2, momentum=0.9)",
    "FedGLOMO": "fl.FedGLOMO(lr=0.1, compressor=fl.QSGD(bits=4))",
    "Mime": "fl.Mime(lr=0.1)",
    "Catalyst": "fl.Catalyst(fl.ScaffoldS(lr=0.1), theta=0.5, inner_rounds=2)",
}


class OneProcess:
    """A grid whose nodes are ClientApps in this process; messages are Flower's own, as bytes and back."""

    def __init__(self, app: Any, clients: int, folder: Path) -> None:
        from flwr.app.message import Context

        self.app, self.replies = app, {}
        self.contexts = {
            500 + k: Context(
                1, 500 + k, {"client": k, "state": str(folder)}, flower.RecordDict(), {}
            )
            for k in range(clients)
        }

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: list[Any]) -> list[str]:
        ids = []
        for k, message in enumerate(messages):
            name = f"{len(self.replies)}-{k}"
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            message.content = _through_bytes(message.content)
            reply = self.app(message, self.contexts[node])
            reply.content = _through_bytes(reply.content)
            self.replies[name] = reply
            ids.append(name)
        return ids

    def pull_messages(self, ids: list[str]) -> list[Any]:
        return [self.replies[name] for name in ids]


def _through_bytes(content: Any) -> Any:
    return flower.RecordDict(
        {
            name: type(record).inflate(record.deflate(), children={})
            for name, record in content.items()
        }
    )


@pytest.fixture
def _a_task_of_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that Flower starts."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.mark.usefixtures("_a_task_of_flower")
@pytest.mark.parametrize("name", ["SCAFFOLD", "FedGLOMO"])
def test_messages_of_flower_carry_the_same_run(name: str, tmp_path: Path) -> None:
    """Also when the server starts again: it goes on in the same folder."""
    from flwr.app.message import Context

    from fairlead.deploy.flower import client_app, server_app

    here = Federation(tmp_path, eval(METHODS[name], {"fl": fl}))
    grid: Any = OneProcess(client_app(here.agreement, here.local), 4, tmp_path / "state")
    runs: list[fl.Run] = []
    server = server_app(here.agreement, lambda: here.server().task, then=runs.append, cohort=3)
    for rounds in (2, 4):
        config = {"rounds": rounds, "out": str(tmp_path / "out"), "deadline": 60.0}
        server(grid, Context(1, 1, {}, flower.RecordDict(), config))
    assert [run.rounds for run in runs] == [2, 4]
    x = here.simulated(4, cohort=3).state.x
    torch.testing.assert_close(runs[-1].state.x, x, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("_a_task_of_flower")
def test_measures_of_a_run_that_has_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from flwr.app.message import Context

    from fairlead.deploy.flower import client_app, server_app

    here = Federation(tmp_path, fl.Scaffold(lr=0.2), measures=[fl.measure.Dissimilarity()])
    grid: Any = OneProcess(client_app(here.agreement, here.local), 4, tmp_path / "state")
    server = server_app(here.agreement, lambda: here.server().task)
    config = {"rounds": 2, "out": str(tmp_path / "out"), "deadline": 60.0}
    for more in ({}, {"measure": "dissimilarity"}):
        server(grid, Context(1, 1, {}, flower.RecordDict(), {**config, **more}))
    (found,) = json.loads((tmp_path / "out" / "measures.json").read_text())
    expected = fl.measure.dissimilarity(here.simulated(2))
    assert found["where"] == "round 2"
    assert found["values"]["dissimilarity/A"] == pytest.approx(expected["A"], rel=1e-9)
    assert "gradient" in found["leaves"]
    said = caplog.text
    assert "node 500 is client 0" in said
    assert "round 2: clients 4" in said
    with pytest.raises(fl.FairleadError, match="not agreed to the measure curvature"):
        server(grid, Context(1, 1, {}, flower.RecordDict(), {**config, "measure": "curvature"}))


@pytest.mark.usefixtures("_a_task_of_flower")
def test_mods_for_privacy_would_do_nothing_and_are_refused(tmp_path: Path) -> None:
    from flwr.client import mod as earlier
    from flwr.clientapp import mod as mods

    from fairlead.deploy.flower import FRAME, RECORD, client_app, frame_of
    from fairlead.deploy.wire import Header, Order

    here = Federation(tmp_path, fl.FedAvg(lr=0.2))
    app = client_app(here.agreement, here.local, mods=[mods.message_size_mod])
    there = OneProcess(app, 4, tmp_path / "state")
    context = there.contexts[500]

    def message() -> Any:
        frame = Order(Header("", (1, 1))).pack()
        content = flower.RecordDict({RECORD: flower.ConfigRecord({FRAME: frame})})
        return flower.Message(content, 500, flower.MessageType.QUERY)

    plain = frame_of(app(message(), context))
    assert plain
    local = mods.LocalDpMod(1.0, 1.0, 1.0, 0.1)
    for mod in (earlier.secaggplus_mod, earlier.secagg_mod, earlier.fixedclipping_mod):
        assert frame_of(mod(message(), context, app)) == plain  # neither masked nor clipped
    for mod in (mods.fixedclipping_mod, mods.adaptiveclipping_mod, local):
        assert mod(message(), context, app).has_error()
    for mod in (earlier.secaggplus_mod, earlier.secagg_mod):
        with pytest.raises(fl.FairleadError, match="unmasked: leave the mod out"):
            client_app(here.agreement, here.local, mods=[mod])
    for mod in (
        earlier.fixedclipping_mod,
        mods.fixedclipping_mod,
        mods.adaptiveclipping_mod,
        local,
    ):
        with pytest.raises(fl.FairleadError, match=r"use fl\.DPFedAvg"):
            client_app(here.agreement, here.local, mods=[mod])


# -- real processes ---------------------------------------------------------------------------------

SETTINGS = """
    from pathlib import Path
    import fairlead as fl
    from small_federation import Federation

    here = Federation(Path({folder!r}), {method}, sizes={sizes})
    agreement = here.agreement
"""
APPS = """
    import json, os, random, time
    import torch
    import fairlead.deploy.flower as flower
    from federation.settings import agreement, here

    def done(run):
        found = dict(x=run.state.x.tolist(), lost=run.session.accounts.counters.lost, rounds=run.rounds)
        found["c"] = getattr(run.state, "c", torch.zeros(0)).tolist()
        found["bits"] = [run.history.last("bits_up"), run.history.last("bits_down")]
        with open({result!r} + ".part", "w") as file:
            json.dump(found, file)
        os.replace({result!r} + ".part", {result!r})

    class Faulty(flower.GridTransport):
        '''Replies come late, and again.'''

        def _pulled(self):
            due = [r for at, r in self.later if at <= self.now()]
            self.later = [(at, r) for at, r in self.later if at > self.now()]
            for reply in super()._pulled():
                for _ in range(random.choice([1, 1, 2])):
                    after = random.choice([0.0] * 40 + [2.0] * 6 + [{deadline} + 1])
                    self.later.append((self.now() + after, reply))
            return due

        later = []

    if {faults}:
        flower.GridTransport = Faulty
    server = flower.server_app(agreement, lambda: here.server().task, then=done)
    client = flower.client_app(agreement, here.local)
"""


def write(
    there: Processes, method: str, sizes: tuple[int, ...] = SIZES, **more: Any
) -> tuple[Federation, Path]:
    """Let the project run a method on the federation of these tests; returns it, and where the result will be."""
    result = there.folder / "x.json"
    known = {
        "folder": str(there.folder / "unused"), "method": method, "sizes": sizes, "result": str(result),
        "faults": False, "deadline": 60.0, **more,
    }  # fmt: skip
    there.write(settings=SETTINGS.format(**known), apps=APPS.format(**known))
    found = eval(method, {"fl": fl})
    return Federation(there.folder / "here", found, sizes=sizes), result


@pytest.mark.parametrize("name", METHODS)
def test_real_processes_with_tls_and_node_keys(name: str, tmp_path: Path) -> None:
    """Four SuperNodes give the simulation's model; a wrong certificate and an unknown key get in nowhere."""
    rounds = 2
    with processes(tmp_path) as there:
        here, result = write(there, METHODS[name])
        there.link()
        there.register()
        if name == "SCAFFOLD":
            there.run("scripts/key.sh", "9")  # a key that is not registered
            stranger = there.node(0, "stranger", KEY="keys/client-9")
            (there.project / "other").mkdir()
            shutil.copytree(there.project / "scripts", there.project / "other" / "scripts")
            there.run("bash", "-c", "cd other && scripts/certificates.sh")
            deceived = there.node(1, "deceived", CA="other/certificates/ca.crt")
        there.nodes()
        there.submit(rounds=rounds, limit=800.0, out=tmp_path / "out")
        there.wait(result.exists, "link")
        if name == "SCAFFOLD":
            for refused in (stranger, deceived):
                assert "Sent successfully" not in there.log(refused)
                assert "SuperNode ID" not in there.log(refused)
            activated = there.log("link").count("[Fleet.ActivateNode] Activated")
            assert activated == 4
    found, simulated = json.loads(result.read_text()), here.simulated(rounds)
    x = torch.tensor(found["x"], dtype=torch.float64)
    torch.testing.assert_close(x, simulated.state.x, rtol=0, atol=1e-10)
    assert found["bits"] == [simulated.history.last(f"bits_{way}") for way in ("up", "down")]


def test_chaos_with_real_processes(tmp_path: Path) -> None:
    """Six clients, thirty rounds: SuperNodes and the server app are killed at random and started again, replies come
    late and twice. The run ends, and c is the mean of the c_i that count."""
    rng, rounds, deadline = random.Random(1), int(os.environ.get("CHAOS_ROUNDS", "30")), 60.0
    sizes = (9, 14, 11, 6, 8, 5)
    with processes(tmp_path, len(sizes)) as there:
        _, result = write(there, METHODS["SCAFFOLD"], sizes, faults=True, deadline=deadline)
        there.link()
        there.register()
        there.nodes()
        out, killed = tmp_path / "out", {"client": 0, "server": 0}
        config = {"rounds": rounds, "deadline": deadline, "least": 2, "limit": 900.0, "out": out}
        there.submit(**config)

        def done() -> int:
            return max([0, *(int(p.stem[6:]) for p in out.glob("checkpoints/round-*.safetensors"))])

        while not result.exists():
            until = done() + rng.randint(1, 3)
            there.wait(lambda until=until: result.exists() or done() >= until, "link")
            if result.exists():
                break
            if rng.random() < 0.7:
                client = rng.randrange(len(sizes))
                there.kill(f"node {client}")
                time.sleep(rng.choice([0.0, 3.0]))
                there.node(client)
                killed["client"] += 1
            else:
                apps = descendants(there.started["link"].pid)
                for pid in (pid for pid, command in apps.items() if "flwr-serverapp" in command):
                    os.kill(pid, signal.SIGKILL)
                    killed["server"] += 1
                if not result.exists():
                    there.submit(**config)
    found = json.loads(result.read_text())
    assert found["rounds"] == rounds
    assert min(killed.values()) >= 1
    assert found["lost"] > 0
    book = Book(len(sizes))
    last = listed(out / "checkpoints")[-1]
    for name in named([book]):
        kept = read(last).part(f"callbacks/{name}")
        book.restore(kept, SimpleNamespace(session=SimpleNamespace()))  # pyright: ignore[reportArgumentType]
    c = torch.tensor(found["c"], dtype=torch.float64)
    states = [
        ClientFolder(tmp_path / "state" / f"client-{k}", book.run)
        .state(tag)
        .get("memory/c", torch.zeros_like(c))
        for k, tag in enumerate(book.base)
    ]
    torch.testing.assert_close(torch.stack(states).mean(0), c, rtol=0, atol=1e-12)
    assert float(torch.tensor(found["x"]).abs().max()) < 100
