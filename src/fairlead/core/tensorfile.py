"""Safetensors files written piece by piece, for tensors larger than memory.

The format: eight bytes with the header's length, the header as JSON, then the tensors' bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor

NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Pieces:
    """A tensor that is produced a few rows at a time.

    >>> rows = Pieces((4,), torch.int64, lambda: torch.arange(4).split(3))
    >>> rows.whole()
    tensor([0, 1, 2, 3])
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: Callable[[], Iterable[Tensor]]

    @classmethod
    def of(cls, t: Tensor) -> Pieces:
        """An existing tensor, as one piece."""
        return cls(tuple(t.shape), t.dtype, lambda: (t,))

    def whole(self) -> Tensor:
        """The complete tensor."""
        found = list(self.parts())
        return torch.cat(found) if found else torch.empty(self.shape, dtype=self.dtype)

    def bytes(self) -> Iterator[memoryview]:
        """The bytes, piece by piece."""
        for part in self.parts():
            yield raw(part)

    @property
    def nbytes(self) -> int:
        """The total number of bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def raw(t: Tensor) -> memoryview:
    """The bytes of a tensor in host memory, without a copy if it is there and contiguous."""
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


class Digest:
    """The SHA-256 of settings and of tensors in order of their names."""

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self._found = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())

    def begin(self, name: str, t: Tensor | Pieces) -> None:
        """Start the next tensor, whose bytes are passed to `add`."""
        self._found.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())

    def add(self, data: memoryview) -> None:
        self._found.update(data)

    def hex(self) -> str:
        return self._found.hexdigest()


def digest(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> str:
    """The digest of tensors and settings."""
    found = Digest(meta)
    for name in sorted(tensors):
        found.begin(name, tensors[name])
        found.add(raw(tensors[name]))
    return found.hex()


def write(
    file: BinaryIO, tensors: Mapping[str, Tensor | Pieces], key: str, meta: Mapping[str, Any]
) -> str:
    """Write tensors, the settings under `key` and their digest under `sha256`; return the digest."""
    given = {n: t if isinstance(t, Pieces) else Pieces.of(t) for n, t in sorted(tensors.items())}
    about = {key: json.dumps(meta), "sha256": "0" * 64}
    entries: dict[str, dict[str, Any]] = {}
    first = 0
    by_size = sorted(given.items(), key=lambda pair: -pair[1].dtype.itemsize)  # for alignment
    for name, t in by_size:
        span = [first, first + t.nbytes]
        entries[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": span}
        first = span[1]

    def header() -> bytes:
        text = json.dumps({"__metadata__": about, **entries}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    begin = file.write(header())
    found = Digest(meta)
    for name, t in given.items():
        found.begin(name, t)
        file.seek(begin + entries[name]["data_offsets"][0])
        for data in t.bytes():
            found.add(data)
            file.write(data)
    about["sha256"] = found.hex()  # same length as the zeros
    file.seek(0)
    file.write(header())
    return about["sha256"]
