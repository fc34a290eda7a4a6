"""Atomic downloads: a file gets its name only after its checksum is verified."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairlead.errors import FairleadError
from fairlead.progress import Progress

_STAGE = ".part-"
_REASONS = {
    "ChunkedEncodingError": "the connection broke off",
    "ConnectionError": "no connection",
    "ConnectTimeout": "the server timed out",
    "ReadTimeout": "the server timed out",
    "ProxyError": "no connection through the proxy",
    "SSLError": "no secure connection",
}


def cache() -> Path:
    """The folder for downloads: `data` in $FAIRLEAD_CACHE or in the user's cache folder."""
    home = os.environ.get("FAIRLEAD_CACHE") or _pooch().os_cache("fairlead")
    return Path(home).expanduser() / "data"


def matches(path: Path, checksum: str | None) -> bool:
    """Whether a file has this checksum, such as "sha256:…" or "md5:…"; None matches any file."""
    if checksum is None:
        return True
    kind, _, expected = checksum.partition(":")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, kind).hexdigest() == expected.lower()
    except OSError as error:
        raise FairleadError(f"{path} cannot be read: {error.strerror or error}") from error


def fetch(
    urls: str | Sequence[str],
    checksum: str | None,
    folder: str | Path,
    progress: bool | None = None,
    verify: Callable[[Path], object] | None = None,
) -> Path:
    """The path of a file in the folder, downloaded unless it is there with this checksum.

    urls: one URL, or several mirrors to try in order; the first one's last part is the file name.
    verify: reads the file and raises FairleadError on failure; called if checksum is None.
    """
    urls = [urls] if isinstance(urls, str) else list(urls)
    name, check = urls[0].rsplit("/", 1)[-1], verify if checksum is None else None
    target = Path(folder) / name
    if target.is_file() and _fault(target, checksum, check) is None:
        return target
    pooch, failures = _pooch(), []
    try:
        _tidy(target.parent)
        for url in urls:
            with TemporaryDirectory(dir=target.parent, prefix=_STAGE) as stage:
                part = Path(stage) / name
                fault = _download(pooch, url, part, progress) or _fault(part, checksum, check)
                if fault is None:
                    part.replace(target)
                    return target
                failures.append(f"{url}: {fault}")
    except OSError as error:
        raise FairleadError(
            f"{target.parent} cannot be written ({error.strerror or error}): set FAIRLEAD_CACHE to a "
            "writable folder"
        ) from error
    raise FairleadError(
        f"{name} could not be downloaded ({'; '.join(failures)}): download it by hand to "
        f"{target.parent}"
    )


def _pooch() -> Any:
    try:
        import pooch
    except ImportError as error:
        raise FairleadError("downloads need pooch: pip install pooch") from error
    return pooch


def _download(pooch: Any, url: str, part: Path, progress: bool | None) -> str | None:
    """Write the file, or return the reason for the failure."""
    bar = _Megabytes(progress, part.name)
    plain = {"Accept-Encoding": "identity"}  # otherwise some servers send .gz files unpacked
    load = pooch.HTTPDownloader(progressbar=bar, chunk_size=bar.chunk, headers=plain)
    try:
        load(url, str(part), None)
    except OSError as error:
        answer = getattr(error, "response", None)
        if answer is not None:
            return f"{answer.status_code} {answer.reason}"
        return _REASONS.get(type(error).__name__) or error.strerror or type(error).__name__
    finally:
        bar.close()
    return None


def _fault(path: Path, checksum: str | None, verify: Callable[[Path], object] | None) -> str | None:
    """What is wrong with a file, if anything."""
    if not matches(path, checksum):
        return f"not the published file ({checksum})"
    try:
        if verify is not None:
            verify(path)
    except FairleadError as error:
        return str(error).replace(str(path), path.name).removesuffix(": download it again")
    return None


def _tidy(folder: Path) -> None:
    """Create the folder, and remove what downloads killed over a day ago left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for stage in folder.glob(f"{_STAGE}*"):
        with suppress(FileNotFoundError):  # another download has just ended
            if time.time() - stage.stat().st_mtime > 86400:
                shutil.rmtree(stage, ignore_errors=True)


class _Megabytes:
    """A progress bar with the interface that pooch expects."""

    chunk = 1 << 16

    def __init__(self, progress: bool | None, name: str) -> None:
        self.progress, self.name = progress, name
        self.total = self.done = 0
        self._bar: Progress | None = None

    def update(self, size: int) -> None:
        """Count `size` more bytes; the last chunk may be short."""
        self.done = min(self.done + size, self.total or self.done + size)
        if self._bar is None:
            total = max(1, self.total >> 20)
            self._bar = Progress.of(self.progress, total, f"{self.name}, MB")
            self._bar.__enter__()
        self._bar.update(self.done >> 20, {})

    def reset(self) -> None:
        """Start from zero, as pooch does before filling the bar."""
        self.done = 0

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None
