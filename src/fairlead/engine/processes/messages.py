"""Short messages between a process and its forks, and sums of what they carry."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import torch
from torch import Tensor

HEAD = struct.Struct("<cQ")


def send(to: socket.socket, kind: bytes, data: bytes) -> None:
    to.sendall(HEAD.pack(kind, len(data)) + data)


def receive(
    source: socket.socket, goes_on: Callable[[], bool] = lambda: False
) -> tuple[bytes, bytes]:
    """One message; never more than one is in transit. goes_on: whether to wait longer when time is over."""
    found = bytearray()
    while len(found) < HEAD.size or len(found) < HEAD.size + HEAD.unpack_from(found)[1]:
        try:
            found += (some := source.recv(1 << 16))
            if not some:
                raise EOFError
        except TimeoutError:
            if not goes_on():
                raise
    return HEAD.unpack_from(found)[0], bytes(found[HEAD.size :])


def bytes_of(t: Tensor) -> bytes:
    return t.view(torch.uint8).numpy().tobytes()


def tensor_of(data: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype)


def sum_of(dtype: torch.dtype) -> Callable[[list[bytes]], bytes]:
    """A function that adds vectors of this type."""

    def join(found: list[bytes]) -> bytes:
        total = tensor_of(found[0], dtype)
        for data in found[1:]:
            total += tensor_of(data, dtype)
        return bytes_of(total)

    return join
