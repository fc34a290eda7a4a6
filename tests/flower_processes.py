"""Flower's own processes on this machine: a SuperLink and SuperNodes of a project made by `fairlead deploy init`, with TLS
and node keys, started by the project's scripts."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import fairlead as fl
from fairlead.deploy.init import write_project


def server_command() -> list[str]:
    """What starts a server; the compose file has the same."""
    return ["scripts/server.sh"]


def client_command(client: int, server: str) -> list[str]:
    """What starts a client; the compose file has the same."""
    return ["scripts/client.sh", str(client), server]


class Processes:
    """A SuperLink and SuperNodes, and the project that they run."""

    def __init__(self, folder: Path, clients: int = 4) -> None:
        self.folder, self.project, self.clients = folder, folder / "project", clients
        write_project(self.project, clients)
        bin = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        source = str(Path(fl.__file__).parents[1])
        paths = [source, *os.environ.get("PYTHONPATH", "").split(":")]
        self.environment = {
            **os.environ, "PATH": bin, "FLWR_HOME": str(folder / "flower"), "HOME": str(folder),
            "PYTHONPATH": ":".join(filter(None, paths)), "OMP_NUM_THREADS": "1",
            "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        }  # fmt: skip
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        self.run("scripts/certificates.sh", "127.0.0.1")
        (folder / "flower").mkdir(exist_ok=True)
        (folder / "flower" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.project}/certificates/ca.crt"\n'
        )

    def write(self, **modules: str) -> None:
        """Exchange modules of the project; `small_federation` can be imported there."""
        tests = self.folder / "tests"
        tests.mkdir(exist_ok=True)
        shutil.copy(Path(__file__).parent / "small_federation.py", tests / "small_federation.py")
        for name, text in modules.items():
            first = f"import sys\nsys.path.insert(0, {str(tests)!r})\n"
            path = self.project / "federation" / f"{name}.py"
            path.write_text(first + textwrap.dedent(text))

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command to its end."""
        done = subprocess.run(
            command, cwd=self.project, env=self.environment, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
        return done.stdout

    def start(self, name: str, command: list[str], **environment: str) -> None:
        """Start a process that stays."""
        with (self.folder / f"{name}.log").open("ab") as file:
            self.started[name] = subprocess.Popen(
                command, cwd=self.project, env={**self.environment, **environment},
                stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    def link(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        self.start("link", server_command(), PORT=str(self.port))
        self.wait(lambda: "startup complete" in self.log("link"), "link")

    def register(self) -> None:
        """Make a key for every client, and register it."""
        for client in range(self.clients):
            self.run("scripts/key.sh", str(client))
            self.run("flwr", "supernode", "register", f"keys/client-{client}.pub", "here")

    def node(self, client: int, name: str = "", **environment: str) -> str:
        """Start a SuperNode. environment: see scripts/client.sh."""
        name = name or f"node {client}"
        known = {"PORT": str(free_port()), "STATE": str(self.folder / "state"), **environment}
        self.start(name, client_command(client, f"127.0.0.1:{self.port}"), **known)
        return name

    def nodes(self) -> None:
        """Start a SuperNode for every client, and wait until all are connected."""
        for name in [self.node(client) for client in range(self.clients)]:
            self.wait(lambda name=name: "SuperNode ID" in self.log(name), name)

    def submit(self, **config: object) -> int:
        """Start a run of the project; returns its number."""
        text = " ".join(
            f'{k.replace("_", "-")}="{v}"' if isinstance(v, str | Path) else f"{k}={v}"
            for k, v in config.items()
        )
        said = self.run("flwr", "run", ".", "here", "-c", text)
        return int(said.rpartition("started run ")[2].split()[0])

    def log(self, name: str) -> str:
        """What a process has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, for_: Callable[[], bool], name: str, limit: float = 900) -> None:
        """Wait for an event, as long as a process lives."""
        end = time.monotonic() + limit
        while not for_():
            assert self.started[name].poll() is None, self.log(name)[-3000:]
            assert time.monotonic() < end, self.log(name)[-3000:]
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        """Kill a process with all that it has started, without a chance to say goodbye."""
        process = self.started.pop(name)
        _kill([process.pid, *descendants(process.pid)])
        process.wait(20)

    def stop(self) -> None:
        """End every process that was started here, with all that they have started."""
        running = [p for p in reversed(list(self.started.values())) if p.poll() is None]
        others = [pid for process in running for pid in descendants(process.pid)]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                _kill([process.pid])
        _kill(others)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> dict[int, str]:
    """The processes that a process has started, and theirs, with their command lines."""
    found: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, ValueError):
            continue
        if parent == pid:
            found |= {int(path.name): command, **descendants(int(path.name))}
    return found


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def processes(folder: Path, clients: int = 4) -> Iterator[Processes]:
    """Processes that are ended in any case."""
    made = Processes(folder, clients)
    try:
        yield made
    finally:
        made.stop()
