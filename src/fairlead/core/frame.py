"""Bytes with a header and a checksum, as messages and deployed frames travel."""

from __future__ import annotations

import struct
import zlib

from fairlead.errors import FairleadError

START = struct.Struct("<4sHII")  # magic, version, bytes of the header, checksum of what follows


def framed(magic: bytes, version: int, header: bytes, body: bytes) -> bytes:
    """A header and a body as one."""
    rest = header + body
    return START.pack(magic, version, len(header), zlib.crc32(rest)) + rest


def unframed(data: bytes, magic: bytes, version: int, what: str) -> tuple[int, bytes]:
    """The length of the header, and header and body; anything else is refused in one sentence. what: its name.

    >>> length, rest = unframed(framed(b"flmg", 1, b"{}", b"abc"), b"flmg", 1, "message")
    >>> rest[:length], rest[length:]
    (b'{}', b'abc')
    """
    if len(data) < START.size or data[:4] != magic:
        raise FairleadError(f"this is not a {what} of fairlead: its first bytes are wrong")
    _, found, length, checksum = START.unpack_from(data)
    if found != version:
        raise FairleadError(
            f"the {what} has version {found}, this is {version}: use one version everywhere"
        )
    rest = data[START.size :]
    if zlib.crc32(rest) != checksum:
        raise FairleadError(f"the {what} is damaged: its checksum does not match")
    return length, rest
