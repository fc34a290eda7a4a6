"""Safetensors files that are written piece by piece."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fairlead.core.tensorfile import Pieces, digest, write

TENSORS = {
    "a": torch.tensor([True, False, True]),
    "b": torch.arange(7, dtype=torch.float64) / 3,
    "c": torch.randn(5, 3, generator=torch.Generator().manual_seed(0)),
    "d": torch.zeros(0, 4),
    "e": torch.tensor(3, dtype=torch.int16),
    "f": torch.randn(3).bfloat16(),
    "g": torch.arange(12).reshape(3, 4).T,
}


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_files_read_as_safetensors_whatever_the_pieces(tmp_path: Path, rows: int) -> None:
    cut = {
        name: t if t.dim() == 0 else Pieces(tuple(t.shape), t.dtype, lambda t=t: t.split(rows))
        for name, t in TENSORS.items()
    }
    meta = {"round": 3, "names": ["x", "y"]}
    with (tmp_path / "t.safetensors").open("wb") as file:
        found = write(file, cut, "mine", meta)
    assert found == digest(TENSORS, meta)
    read = load_file(tmp_path / "t.safetensors")
    assert set(read) == set(TENSORS)
    for name, t in TENSORS.items():
        assert read[name].dtype == t.dtype
        assert torch.equal(read[name], t), name
    with safe_open(tmp_path / "t.safetensors", "pt") as file:
        about = file.metadata()
    assert about["sha256"] == found
    assert json.loads(about["mine"]) == meta


def test_digests_tell_values_names_shapes_and_settings_apart() -> None:
    x = torch.arange(4.0)
    found = [
        digest({"x": x}, {"a": 1}),
        digest({"y": x}, {"a": 1}),
        digest({"x": x}, {"a": 2}),
        digest({"x": x.reshape(2, 2)}, {"a": 1}),
        digest({"x": x + 1}, {"a": 1}),
        digest({"x": x.view(torch.int32)}, {"a": 1}),
    ]
    assert len(set(found)) == len(found)
    assert Pieces.of(x).whole().tolist() == x.tolist()
