"""The project that `fairlead deploy init` writes runs as it is."""

import importlib
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from flower_processes import client_command, server_command
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import app
from fairlead.deploy import InProcess, LocalClient, Patience, Server
from fairlead.deploy.init import write_project


def test_the_project_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(
        app, ["deploy", "init", str(tmp_path / "My Project"), "--clients", "2"]
    )
    assert done.exit_code == 0, done.output
    project = tmp_path / "My Project"
    about = tomllib.loads((project / "pyproject.toml").read_text())
    assert about["project"]["name"] == "my-project"
    assert about["tool"]["flwr"]["app"]["components"]["serverapp"] == "federation.apps:server"
    monkeypatch.syspath_prepend(str(project))
    settings = importlib.import_module("federation.settings")
    client_data = importlib.import_module("federation.client_data")
    server_data = importlib.import_module("federation.server_data")
    agreed = settings.agreement
    assert agreed.clients == 2
    nodes = {
        k: LocalClient(client_data.client_task(k), agreed, k, tmp_path / "state").answer
        for k in range(2)
    }
    run = Server(server_data.server_task(), agreed, InProcess(nodes), Patience(10)).run(20)
    losses = run.history["test_loss"]
    assert losses[-1] < 0.8 * losses[0]


def test_scripts_are_executable_and_parse(tmp_path: Path) -> None:
    scripts = [p for p in write_project(tmp_path / "new", 3) if p.suffix == ".sh"]
    assert len(scripts) == 4
    for path in scripts:
        assert path.stat().st_mode & stat.S_IXUSR
        subprocess.run(["bash", "-n", str(path)], check=True)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(fl.FairleadError, match="is not empty"):
        write_project(tmp_path, 3)
    with pytest.raises(fl.FairleadError, match="at least 1"):
        write_project(tmp_path / "new", 0)


def test_the_compose_file_starts_what_the_tests_start(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    write_project(tmp_path / "new", 3)
    services = yaml.safe_load((tmp_path / "new" / "compose.yaml").read_text())["services"]
    assert set(services) == {"server", "client-0", "client-1", "client-2"}
    assert services["server"]["command"] == server_command()
    for client in range(3):
        about = services[f"client-{client}"]
        assert about["command"] == client_command(client, "server:8000")
        mounted = " ".join(about["volumes"])
        assert f"keys/client-{client}:" in mounted
        assert not any(f"keys/client-{other}:" in mounted for other in range(3) if other != client)
        assert "server.key" not in mounted
        assert f"state/client-{client}:" in mounted
    assert "ca.key" not in str(services)
    ignored = (tmp_path / "new" / ".dockerignore").read_text().split()
    assert {"keys/", "certificates/"} <= set(ignored)  # nothing secret gets into the image
