"""Several processes give what one gives, and go on when one of them dies."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ranks
import torch
from safetensors.torch import load_file, save_file

import fairlead as fl

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launch(count: int, *words: str, **more: str) -> list[subprocess.Popen]:
    """Start a program once a rank, as torchrun does."""
    env = {
        **os.environ, "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error", **more,
    }  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, *words], env={**env, "RANK": str(r), "LOCAL_RANK": str(r)},
            cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for r in range(count)
    ]  # fmt: skip


def finish(started: list[subprocess.Popen]) -> list[str]:
    outputs = [p.communicate(timeout=500)[0] for p in started]
    assert [p.returncode for p in started] == [0] * len(started), "\n".join(outputs)
    return outputs


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case in one process."""
    folder = tmp_path_factory.mktemp("single")
    for name, (task, method, mode, settings) in ranks.cases().items():
        run = fl.train(task, method, engine=mode, **settings)
        ranks.written(run, name, folder)
        if run.session.store is not None:
            rows = run.session.store.export()
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


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_method_on_several_ranks(count: int, single: Path, tmp_path: Path) -> None:
    finish(launch(count, "ranks.py", str(tmp_path), "all", "{}"))
    _agree(single, tmp_path, count)
    _rows(single, tmp_path, count)
