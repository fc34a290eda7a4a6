"""Reading compressed files and archives in memory. Nothing is extracted to disk, and damaged files
are rejected: every gzip, bzip2 and zip checksum is verified."""

from __future__ import annotations

import bz2
import gzip
import io
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fairlead.errors import FairleadError

LIMIT, RATIO, SMALL = 8 << 30, 100, 64 << 20
"""No supported data set unpacks to more bytes, or to more than a hundred times its own size unless that is little;
a corrupt length or a bomb does."""

_PACKED: dict[str, tuple[str, bytes, Any]] = {
    ".gz": ("gzip", b"\x1f\x8b", gzip.open),
    ".bz2": ("bzip2", b"BZh", bz2.open),
}


def damaged(name: Path | str, what: str) -> FairleadError:
    """The error for an unusable file."""
    return FairleadError(f"{name} {what}: download it again")


def contents(path: Path) -> bytes:
    """The bytes of a file, decompressed if its name ends in .gz or .bz2."""
    try:
        with path.open("rb") as file:
            return unpack(file, path)
    except OSError as error:
        raise FairleadError(f"{path} cannot be read: {error.strerror or error}") from error


def unpack(file: IO[bytes], name: Path | str) -> bytes:
    """The contents of a stream, decompressed according to its name.

    >>> unpack(io.BytesIO(gzip.compress(b"ahoy")), "word.gz")
    b'ahoy'
    """
    suffix = PurePosixPath(name).suffix
    most = _most(file.seek(0, io.SEEK_END))
    file.seek(0)
    if suffix not in _PACKED:
        return _all_of(file, name, LIMIT)
    kind, magic, opener = _PACKED[suffix]
    if file.read(len(magic)) != magic:
        raise damaged(name, f"is not a {kind} file")
    file.seek(0)
    try:
        with opener(file) as stream:
            return _all_of(stream, name, most)
    except EOFError as error:
        raise damaged(name, "is truncated") from error
    except (OSError, zlib.error) as error:
        raise damaged(name, f"is a damaged {kind} file ({error})") from error


def members(path: Path, names: Sequence[str]) -> list[bytes]:
    """Files by base name from a tar or zip archive, or from a folder it was unpacked to."""
    if path.is_dir():
        return [contents(_in_folder(path, name)) for name in names]
    found: dict[str, bytes] = {}
    read = _from_zip if path.suffix == ".zip" else _from_tar
    try:
        for name, data in read(path, set(names)):
            if name in found:
                raise damaged(path, f"holds {name} twice")
            found[name] = data
    except FairleadError:
        raise
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise damaged(path, f"is truncated or damaged ({error})") from error
    except (ValueError, OverflowError, RuntimeError, struct.error) as error:  # impossible lengths
        raise damaged(path, f"is damaged ({error})") from error
    missing = [name for name in names if name not in found]
    if missing:
        raise damaged(path, f"is truncated or a different file: it has no {missing[0]}")
    return [unpack(io.BytesIO(found[name]), f"{path}, {name}") for name in names]


def _most(packed: int) -> int:
    """The most bytes that so many packed ones may unpack to."""
    return min(LIMIT, max(SMALL, RATIO * packed))


def _all_of(file: IO[bytes], name: Path | str, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := file.read(1 << 24):
        parts.append(part)
        size += len(part)
        if size > most:
            raise damaged(name, f"unpacks to more than {most >> 20} MiB, which no data set does")
    return b"".join(parts)


def _in_folder(folder: Path, name: str) -> Path:
    for choice in (name, name.removesuffix(".gz")):
        if (folder / choice).is_file():
            return folder / choice
    raise FairleadError(
        f"{folder} has no {name}: unpack the archive again, or put the archive there"
    )


def _from_tar(path: Path, wanted: set[str]) -> Iterable[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(contents(path)), mode="r:") as tar:
        for info in tar:
            name = _inside(path, info.name)
            if not (info.isreg() or info.isdir()):
                raise damaged(path, f"holds {info.name}, which is a link or a device")
            file = tar.extractfile(info) if name in wanted else None
            if file is not None:
                yield name, file.read()


def _from_zip(path: Path, wanted: set[str]) -> Iterable[tuple[str, bytes]]:
    for info, read in zip_members(path):
        name = _inside(path, info.filename)
        if stat.S_ISLNK(info.external_attr >> 16):
            raise damaged(path, f"holds {info.filename}, which is a link")
        if name in wanted:
            yield name, read()


def zip_members(path: Path) -> Iterator[tuple[zipfile.ZipInfo, Callable[[], bytes]]]:
    """Every member, with a function that reads all of it and so verifies its checksum."""
    with zipfile.ZipFile(path) as file:
        found = file.infolist()
        if _recorded_members(path) not in (len(found) & 0xFFFF, 0xFFFF):
            raise damaged(path, "has a damaged list of members")
        for info in found:
            most = _most(info.compress_size)
            if info.file_size > most:
                raise damaged(path, f"holds {info.filename} of more than {most >> 20} MiB")
            yield info, partial(file.read, info)


def _recorded_members(path: Path) -> int:
    """The member count in a zip's last record: zipfile does not check it."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (1 << 16) - 22))
        tail = file.read()
    return struct.unpack_from("<H", tail, tail.rindex(b"PK\5\6") + 10)[0]


def _inside(path: Path, member: str) -> str:
    """The base name of a member; its path must stay inside the archive."""
    name = PurePosixPath(member)
    if name.is_absolute() or ".." in name.parts:
        raise damaged(path, f"holds {member}, which points outside the archive")
    return name.name
