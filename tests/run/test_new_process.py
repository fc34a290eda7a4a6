"""Runs of large models that are stopped and go on in a new process end in the same bytes, and every method runs
at the size of the benchmark's models in every engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance import METHODS
from programs import LIMIT, PATHS

import fairlead as fl
from fairlead import testing
from fairlead.run.saved import listed, read

WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "one thread": {"engine": fl.Simulate(threads=1)},
    "two workers": {"workers": 2},
}
PROGRAM = """
import json, os, sys
import fairlead as fl
from fairlead import testing
from test_new_process import METHODS, WAYS, work
folder, names, way = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
task = testing.large_task("cpu", __import__("torch").float32)
for name in names:
    for part, rounds in (("half", 2), ("whole", 4)):
        kept = f"{folder}/{name}/{part}"
        fl.train(task, METHODS[name], checkpoints=kept, **WAYS[way], **work(rounds))
os.kill(os.getpid(), 9)
"""


def work(rounds: int) -> dict[str, Any]:
    return {**testing.LARGE, "rounds": rounds}


def _go_on(names: list[str], way: str, folder: Path) -> None:
    """The first rounds in a process that is killed, the others here."""
    env = {"PYTHONPATH": f"{Path(__file__).parent}:{PATHS}", "PATH": "/usr/bin:/bin"}
    env |= {"FAIRLEAD_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), json.dumps(names), way], env=env, timeout=LIMIT,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    task = testing.large_task("cpu", torch.float32)
    for name in names:
        half, whole, rest = (folder / name / part for part in ("half", "whole", "rest"))
        fl.train(task, METHODS[name], resume=half, checkpoints=rest, **WAYS[way], **work(4))
        found, expected = (read(listed(kept)[-1]) for kept in (rest, whole))
        assert found.round == expected.round == 4
        assert found.meta["engine"] == expected.meta["engine"], name
        assert found.tensors.keys() == expected.tensors.keys()
        for key, value in expected.tensors.items():
            if key != "history":  # it has the seconds
                assert torch.equal(found.tensors[key], value), (name, key)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forks")
@pytest.mark.parametrize("way", WAYS)
def test_some_methods_go_on_in_a_new_process(way: str, tmp_path: Path) -> None:
    _go_on(
        ["scaffold", "fedpvr", "fedavg-m", "fedavg-topk-ef", "catalyst-scaffold-s"], way, tmp_path
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are forks")
@pytest.mark.parametrize("way", WAYS)
def test_every_method_goes_on_in_a_new_process(way: str, tmp_path: Path) -> None:
    _go_on(list(METHODS), way, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_at_the_size_of_the_benchmark(name: str) -> None:
    """784-300-300-10: 328,810 parameters."""
    x = torch.randn(60, 784, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = np.arange(60).reshape(3, 20)
    task = fl.Task(
        fl.models.mlp(784, 300, 300, 10), "cross_entropy", (x, torch.arange(60) % 10), parts,
        dtype=torch.float64,
    )  # fmt: skip
    assert task.dim > 300_000
    settings: Any = {"rounds": 2, "cohort": 2, "steps": 3, "batch_size": 10, "progress": False}
    reference = fl.train(task, METHODS[name], engine="debug", **settings)
    for how in (
        {"engine": "vmap"}, {"engine": "loop"}, {"engine": fl.Simulate("vmap", memory=1)},
        {"engine": "loop", "workers": 2}, {},
    ):  # fmt: skip
        run = fl.train(task, METHODS[name], **how, **settings)
        assert list(testing.differences(run, reference)) == [], how


def test_fedpvr_with_momentum_and_workers_at_large_d() -> None:
    """It crashed in an earlier form of deferred sums."""
    x, y = torch.randn(40, 784), torch.arange(40) % 10
    task = fl.Task(
        fl.models.mlp(784, 300, 300, 10), "cross_entropy", (x, y), np.arange(40).reshape(2, 20)
    )
    method = fl.FedPVR(lr=0.1, layers=-1, momentum=0.9)
    settings: Any = {"rounds": 2, "steps": 3, "batch_size": 10}
    one = fl.train(task, method, engine="debug", **settings)
    two = fl.train(task, method, engine="loop", workers=2, **settings)
    torch.testing.assert_close(two.x, one.x, rtol=1e-4, atol=1e-5)
