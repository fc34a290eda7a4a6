"""Other libraries, installed from PyPI into environments of their own, as contestants.

An environment lies in the user's cache folder (FAIRLEAD_CACHE or XDG_CACHE_HOME) and is made once.
FAIRLEAD_PEERS="pfl=/some/environment,Flower=/another" takes environments that are there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.errors import FairleadError

if TYPE_CHECKING:
    from bench.turns import Contestant, Say
    from bench.workloads import Workload

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Peer:
    """A library to compare with.

    installs: arguments of pip, one install after the other, after torch; where one has alternatives,
        the first that works.
    """

    name: str
    script: str
    installs: tuple[tuple[str, ...], ...]


PEERS = {
    "pfl": Peer("pfl", "pfl_rounds.py", (("pfl==0.6.0",),)),
    "Flower": Peer(
        "Flower", "flower_rounds.py", (("flwr[simulation]==1.42.0", "flwr[simulation]"),)
    ),
    # with its dependencies FedLab would bring a torchvision, and with that another torch
    "FedLab": Peer(
        "FedLab", "fedlab_rounds.py",
        (("--no-deps fedlab==1.3.0",), ("numpy pandas scikit-learn pynvml tqdm munch pillow",)),
    ),
}  # fmt: skip


def contestants(peer: Peer, work: Workload, say: Say) -> list[Contestant]:
    """The ways to run a peer; the fastest one counts."""
    from bench.turns import Contestant, free_ports

    if work.rounds and peer.name != "pfl":
        raise FairleadError(f"{peer.name} is compared by rounds, not by whole runs")
    command = [str(environment(peer, say)), str(HERE / peer.script)]
    cores = min(os.cpu_count() or 1, work.clients)
    alone: dict[str, str] = {"PYTHONPATH": ""}

    def form(name: str, environments: Sequence[dict[str, str]], **more: Any) -> Contestant:
        return Contestant(peer.name, name, command, environments, more)

    if peer.name == "Flower":
        return [
            form("start_simulation", [alone], messages=False),
            form("run_simulation", [alone], messages=True),
        ]
    found = [form("1 process", [alone])]
    if peer.name == "pfl" and cores > 1:
        addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(cores))
        shared = {**alone, "OMP_NUM_THREADS": "1", "PFL_WORKER_ADDRESSES": addresses}
        ranks = [{**shared, "PFL_WORKER_RANK": str(k)} for k in range(cores)]
        found.append(form(f"{cores} processes", ranks))
    return found


def environment(peer: Peer, say: Say) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there."""
    given = dict(
        pair.split("=", 1) for pair in os.environ.get("FAIRLEAD_PEERS", "").split(",") if pair
    )
    if peer.name in given:
        return Path(given[peer.name]) / "bin" / "python"
    import torch

    version = torch.__version__.partition("+")[0]
    home = os.environ.get("FAIRLEAD_CACHE") or os.environ.get("XDG_CACHE_HOME", "~/.cache")
    here = f"torch{version}-python{sys.version_info.major}.{sys.version_info.minor}"
    folder = Path(home).expanduser() / "fairlead" / "peers" / f"{peer.name.lower()}-{here}"
    python, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists():
        return python
    if folder.exists():
        shutil.rmtree(folder)  # left by an installation that was stopped
    say(f"making an environment for {peer.name} (once)")
    _do(peer, [sys.executable, "-m", "venv", str(folder)])
    for alternatives in ((f"torch=={version}",), *peer.installs):
        for number, packages in enumerate(alternatives, 1):
            say(f"installing {packages} for {peer.name} (once)")
            try:
                _do(peer, [str(python), "-m", "pip", "install", "--quiet", *packages.split()])
                break
            except FairleadError:
                if number == len(alternatives):
                    raise
    try:
        ready.touch()
    except OSError as error:
        raise FairleadError(f"{peer.name} could not be installed: {error.strerror}") from error
    return python


def _do(peer: Peer, command: list[str]) -> None:
    more = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": ""}
    try:
        done = subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True)
    except OSError as error:
        raise FairleadError(f"{peer.name} could not be installed: {error.strerror}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = (lines or ["pip failed"])[-1].removeprefix("ERROR: ")[:200]
        raise FairleadError(f"{peer.name} could not be installed: {why}")
