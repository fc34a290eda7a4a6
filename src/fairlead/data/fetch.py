"""Downloads that are whole or not there: a file gets its name only after its checksum was compared."""

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
from fairlead.run.progress import Progress

_STAGE = ".part-"
_REASONS = {
    "ChunkedEncodingError": "the connection broke off",
    "ConnectionError": "no connection",
    "ConnectTimeout": "no answer in time",
    "ReadTimeout": "no answer in time",
    "ProxyError": "no connection through the proxy",
    "SSLError": "no safe connection",
}


def cache() -> Path:
    """Where downloads are kept: data in $FAIRLEAD_CACHE, or in the user's cache folder."""
    home = os.environ.get("FAIRLEAD_CACHE") or _pooch().os_cache("fairlead")
    return Path(home).expanduser() / "data"


def matches(path: Path, checksum: str | None) -> bool:
    """Whether a file has a checksum such as "sha256:…" or "md5:…"; every file has None."""
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
    """A file of the folder, downloaded if it is not there with this checksum.

    urls: where it is, or several mirrors, tried in turn; the last part of the first is its name.
    verify: reads the file and raises a FairleadError if it cannot; called where checksum is None.
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
            f"{target.parent} cannot be written ({error.strerror or error}): set FAIRLEAD_CACHE to a folder that can"
        ) from error
    raise FairleadError(
        f"{name} could not be downloaded ({'; '.join(failures)}): get it by hand and put it into "
        f"{target.parent}"
    )


def _pooch() -> Any:
    try:
        import pooch
    except ImportError as error:
        raise FairleadError("downloads need pooch: pip install fairlead[all]") from error
    return pooch


def _download(pooch: Any, url: str, part: Path, progress: bool | None) -> str | None:
    """Write the file, or say in words why not."""
    bar = _Megabytes(progress, part.name)
    plain = {"Accept-Encoding": "identity"}  # else some servers send .gz files unpacked
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
    """What is wrong with a file, in words."""
    if not matches(path, checksum):
        return f"another file than the published one ({checksum})"
    try:
        if verify is not None:
            verify(path)
    except FairleadError as error:
        return str(error).replace(str(path), path.name).removesuffix(": get the file again")
    return None


def _tidy(folder: Path) -> None:
    """Make the folder, and remove what downloads that were killed a day ago left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for stage in folder.glob(f"{_STAGE}*"):
        with suppress(FileNotFoundError):  # another download has just ended
            if time.time() - stage.stat().st_mtime > 86400:
                shutil.rmtree(stage, ignore_errors=True)


class _Megabytes:
    """A progress bar as pooch drives it."""

    chunk = 1 << 16

    def __init__(self, progress: bool | None, name: str) -> None:
        self.progress, self.name = progress, name
        self.total = self.done = 0
        self._bar: Progress | None = None

    def update(self, size: int) -> None:
        """So many bytes more; the last chunk may be short."""
        self.done = min(self.done + size, self.total or self.done + size)
        if self._bar is None:
            total = max(1, self.total >> 20)
            self._bar = Progress.of(self.progress, total, f"{self.name}, MB")
            self._bar.__enter__()
        self._bar.update(self.done >> 20, {})

    def reset(self) -> None:
        """Start from zero, as pooch does before it fills the bar."""
        self.done = 0

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None
