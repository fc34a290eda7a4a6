"""Finding the files of a data set on this machine, and converting them to tensors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fairlead.data import fetch, formats
from fairlead.data.formats import Array, Arrays
from fairlead.data.registry import File, Source
from fairlead.errors import FairleadError


@dataclass(frozen=True)
class Location:
    """A data set's files: one npz, or the official ones in order."""

    paths: tuple[Path, ...]
    npz: bool = False

    def official(self, source: Source) -> list[tuple[Path, File]]:
        """The files with a published checksum."""
        pairs = zip(self.paths, () if self.npz else source.files, strict=False)
        return [(p, f) for p, f in pairs if f.checksum and p.name == f.name]

    def wrong(self, source: Source) -> tuple[Path, File] | None:
        """The first file that does not have its published checksum."""
        pairs = self.official(source)
        return next(((p, f) for p, f in pairs if not fetch.matches(p, f.checksum)), None)


def data_folder(data: str | Path | None) -> Path | None:
    """The user's folder: the given one, or $FAIRLEAD_DATA."""
    given = data or os.environ.get("FAIRLEAD_DATA")
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise FairleadError(f"{folder} is not a folder: give the one that holds the data sets")
    return folder


def cache_folder() -> Path | None:
    """The cache, or None if pooch is not installed, so that nothing can be cached."""
    try:
        return fetch.cache()
    except FairleadError:
        return None


def stems(name: str) -> list[str]:
    """A name spelled with - and with _.

    >>> stems("fashion-mnist")
    ['fashion-mnist', 'fashion_mnist']
    """
    return list(dict.fromkeys((name, name.replace("-", "_"), name.replace("_", "-"))))


def find(source: Source, folder: Path | None) -> Location | None:
    """The data set in a folder or its subfolders, npz first."""
    if folder is None:
        return None
    inside = [folder / sub for sub in dict.fromkeys((*source.folders, *stems(source.name)))]
    for base in (folder, *inside):
        for stem in stems(source.name):
            if (base / f"{stem}.npz").is_file():
                return Location((base / f"{stem}.npz",), npz=True)
    for base in (*inside, folder):
        own = base != folder or not source.shared_names
        paths = [_path(file, base, own) for file in source.files]
        found = tuple(path for path in paths if path is not None)
        if found and len(found) == len(paths):
            return Location(found)
    return None


def _path(file: File, base: Path, own: bool) -> Path | None:
    """A file by name, compressed or not; outside the set's own folder also by checksum."""
    path = base / file.name
    if not own:
        known = file.checksum is not None and path.is_file() and fetch.matches(path, file.checksum)
        return path if known else None
    if path.is_file() or (path.is_dir() and not file.urls):
        return path
    others = (file.unpacked, f"{file.name}.bz2", f"{file.name}.gz")
    return next((base / name for name in others if name and (base / name).exists()), None)


def missing(source: Source) -> FairleadError:
    """The error for a missing data set: how to get it."""
    where = (cache_folder() or Path("$FAIRLEAD_DATA")) / source.folders[0]
    how = f"{source.by_hand} to {where}"
    if all(file.urls for file in source.files):
        how = f"fairlead data get {source.name} downloads it"
    return FairleadError(f"{source.name} was not found: {how}, {_alternative(source)}")


def _alternative(source: Source) -> str:
    return (
        f"or set FAIRLEAD_DATA to a folder that holds {stems(source.name)[-1]}.npz or the official "
        f"files in {source.folders[0]}/"
    )


def download(source: Source, progress: bool | None) -> Location:
    """Download the official files to the cache."""
    if not all(file.urls for file in source.files):
        raise missing(source)
    try:
        folder = fetch.cache() / source.folders[0]
        return Location(
            tuple(fetch.fetch(f.urls, f.checksum, folder, progress, f.verify) for f in source.files)
        )
    except FairleadError as error:
        raise FairleadError(
            f"{source.name} was not found: {error}, {_alternative(source)}"
        ) from error


def read(source: Source, location: Location) -> Arrays:
    """The arrays of a data set, with shapes and labels checked."""
    name = location.paths[0]
    if location.npz or source.read is None:
        found = formats.from_npz(name)
    else:
        found = source.read(location.paths)
    extra = (None, None) if found.extra is None else (found.extra.x, found.extra.y)
    for x, y in ((found.x, found.y), (found.x_test, found.y_test), extra):
        if x is not None and y is not None:
            _check(source, x, y, name)
    return found


def _check(source: Source, x: Array, y: Array, name: Path) -> None:
    if len(x) == 0 or y.ndim != 1 or x.dtype.kind not in "uif" or y.dtype.kind not in "uif":
        raise FairleadError(f"{name} must hold numeric samples with one numeric label each")
    if not source.shape:
        return
    if x.shape[1:] != source.shape or (len(source.shape) == 3 and x.dtype != np.uint8):
        raise FairleadError(
            f"{name} holds samples of shape {x.shape[1:]} and type {x.dtype}, but {source.name} needs "
            f"{source.shape}{' and uint8' if len(source.shape) == 3 else ''}: it is a different data set"
        )
    if source.classes == 2 and not np.isin(y, (-1, 1)).all():
        raise FairleadError(f"{name} has labels other than −1 and +1: map 0 and 1 to them")
    if source.classes > 2 and y.dtype.kind == "f":
        raise FairleadError(f"{name} has labels of type {y.dtype}: save them as integers")
    if source.classes > 2:
        formats.check_labels(y, source.classes, name)


def samples(x: Array) -> Tensor:
    """Bytes stay bytes; other numbers become float32."""
    return torch.from_numpy(np.require(x, None if x.dtype == np.uint8 else np.float32, ["C", "W"]))


def labels(y: Array) -> Tensor:
    """Classes as int64; −1 and +1, and real numbers, as float32."""
    whole = y.dtype.kind in "ui" and int(y.min()) >= 0
    return torch.from_numpy(y.astype(np.int64 if whole else np.float32))
