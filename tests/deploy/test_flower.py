"""A federation on Flower: its messages, and real SuperLink and SuperNode processes with TLS and node keys."""

import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from small_federation import Federation

import fairlead as fl
from fairlead.deploy.init import write_project

flower = pytest.importorskip(
    "flwr.app", reason='Flower is not installed: pip install "fairlead[deploy]"'
)
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


# -- real processes ---------------------------------------------------------------------------------

SETTINGS = """
    import sys
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    import fairlead as fl
    from federation_in_tests import Federation

    here = Federation(Path({folder!r}), {method})
    agreement = here.agreement
"""
APPS = """
    import json, os
    import torch
    from fairlead.deploy.flower import client_app, server_app
    from federation.settings import agreement, here

    def done(run):
        with open({result!r} + ".part", "w") as file:
            json.dump(run.state.x.tolist(), file)
        os.replace({result!r} + ".part", {result!r})

    server = server_app(agreement, lambda: here.server().task, then=done)
    client = client_app(agreement, here.local)
"""


class Processes:
    """A SuperLink and SuperNodes on this machine, with a project made by `fairlead deploy init`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.project = folder, folder / "project"
        write_project(self.project, 4)
        bin = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        source = str(Path(fl.__file__).parents[1])
        paths = [source, *os.environ.get("PYTHONPATH", "").split(":")]
        self.environment = {
            **os.environ, "PATH": bin, "FLWR_HOME": str(folder / "flower"), "HOME": str(folder),
            "PYTHONPATH": ":".join(filter(None, paths)), "OMP_NUM_THREADS": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
        }  # fmt: skip
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.port = _free_port()
        self.run("scripts/certificates.sh", "127.0.0.1")

    def write(self, method: str) -> Path:
        """Let the project run a method on the federation of these tests; returns where its result will be."""
        result = self.folder / "x.json"
        tests = self.folder / "tests"
        tests.mkdir()
        shutil.copy(
            Path(__file__).parents[1] / "small_federation.py", tests / "federation_in_tests.py"
        )
        known = {
            "tests": str(tests), "folder": str(self.folder / "unused"), "method": method,
            "result": str(result),
        }  # fmt: skip
        for name, text in (("settings", SETTINGS), ("apps", APPS)):
            filled = textwrap.dedent(text).format(**known)
            (self.project / "federation" / f"{name}.py").write_text(filled)
        (self.folder / "flower").mkdir(exist_ok=True)
        (self.folder / "flower" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.project}/certificates/ca.crt"\n'
        )
        return result

    def run(self, *command: str) -> str:
        """Run a command to its end."""
        done = subprocess.run(
            command, cwd=self.project, env=self.environment, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
        return done.stdout

    def start(self, name: str, *command: str) -> None:
        """Start a process that stays."""
        with (self.folder / f"{name}.log").open("wb") as file:
            self.started[name] = subprocess.Popen(
                command, cwd=self.project, env=self.environment, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip

    def link(self) -> None:
        certificates = self.project / "certificates"
        self.start(
            "link", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port),
            "--enable-supernode-auth", "--disable-runtime-dependency-installation",
            "--ssl-ca-certfile", f"{certificates}/ca.crt", "--ssl-certfile", f"{certificates}/server.pem",
            "--ssl-keyfile", f"{certificates}/server.key",
        )  # fmt: skip
        self.wait(lambda: "startup complete" in self.log("link"), "link")

    def node(self, client: int, key: str | None = None, ca: str = "certificates/ca.crt") -> str:
        name = f"node {client} {key or ''}{ca}".replace("/", "-")
        self.start(
            name, "flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--root-certificates",
            ca, "--port", str(_free_port()), "--auth-supernode-private-key",
            key or f"keys/client-{client}", "--node-config",
            f'client={client} state="{self.folder}/state"',
        )  # fmt: skip
        return name

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, for_: Callable[[], bool], name: str, limit: float = 900) -> None:
        """Wait for an event, as long as the process lives."""
        end = time.monotonic() + limit
        while not for_():
            assert self.started[name].poll() is None, self.log(name)[-3000:]
            assert time.monotonic() < end, self.log(name)[-3000:]
            time.sleep(0.2)

    def stop(self) -> None:
        """End every process that was started here, with its children."""
        for process in reversed(list(self.started.values())):
            if process.poll() is None:
                os.killpg(process.pid, 15)
        for process in self.started.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    made = Processes(folder)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_real_processes_with_tls_and_node_keys(name: str, tmp_path: Path) -> None:
    """Four SuperNodes give the simulation's model; a wrong certificate and an unknown key get in nowhere."""
    rounds = 2
    with processes(tmp_path) as there:
        result = there.write(METHODS[name])
        there.link()
        for client in range(4):
            there.run("scripts/key.sh", str(client))
            there.run("flwr", "supernode", "register", f"keys/client-{client}.pub", "here")
        nodes = [there.node(client) for client in range(4)]
        if name == "SCAFFOLD":
            there.run("scripts/key.sh", "9")  # a key that is not registered
            stranger = there.node(0, key="keys/client-9")
            (there.project / "other").mkdir()
            shutil.copytree(there.project / "scripts", there.project / "other" / "scripts")
            there.run("bash", "-c", "cd other && scripts/certificates.sh")
            deceived = there.node(1, ca="other/certificates/ca.crt")
        for node in nodes:
            there.wait(lambda node=node: "SuperNode ID" in there.log(node), node)
        out = tmp_path / "out"
        there.run("flwr", "run", ".", "here", "-c", f'rounds={rounds} limit=800.0 out="{out}"')
        there.wait(result.exists, "link")
        if name == "SCAFFOLD":
            for refused in (stranger, deceived):
                assert "Sent successfully" not in there.log(refused)
                assert "SuperNode ID" not in there.log(refused)
            activated = there.log("link").count("[Fleet.ActivateNode] Activated")
            assert activated == 4
    here = Federation(tmp_path / "here", eval(METHODS[name], {"fl": fl}))
    x = torch.tensor(json.loads(result.read_text()), dtype=torch.float64)
    torch.testing.assert_close(x, here.simulated(rounds).state.x, rtol=0, atol=1e-10)
