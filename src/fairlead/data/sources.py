"""Data sets by name: embedded, from your own folder, from the cache, or downloaded.

>>> digits().describe()
'digits: 1,438 + 359 samples of 64 float32 numbers, 10 classes'
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.data import locations
from fairlead.data.formats import Arrays
from fairlead.data.holdings import Holdings, holdings
from fairlead.data.locations import Location
from fairlead.data.registry import SOURCES, File, Source
from fairlead.errors import FairleadError, unknown

__all__ = [
    "SOURCES",
    "Dataset",
    "File",
    "Row",
    "Source",
    "check",
    "diabetes",
    "digits",
    "get",
    "listing",
    "load",
]


@dataclass(frozen=True)
class Dataset:
    """Images, rows or text with labels, split into training and test parts.

    groups, groups_test: each sample's natural client (a writer, a speaking role), if known;
        group_names are their names.
    """

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    groups: Tensor | None = None
    groups_test: Tensor | None = None
    group_names: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        """The number of labels: the largest class plus one, or the number of distinct values."""
        if self.y.is_floating_point():
            return len(self.y.unique())
        return 1 + max(int(y.max()) for y in (self.y, self.y_test) if len(y))

    def describe(self) -> str:
        """Sizes, shape and classes in one line."""
        shape = " × ".join(str(n) for n in self.x.shape[1:])
        kind = str(self.x.dtype).removeprefix("torch.")
        clients = "" if self.groups is None else f", {len(self.groups.unique()):,} clients"
        return (
            f"{self.name}: {len(self.x):,} + {len(self.x_test):,} samples of {shape} {kind} numbers, "
            f"{self.classes} classes{clients}"
        )

    def against_others(self, label: int) -> Dataset:
        """One label as +1, all others as −1."""
        if not bool((self.y == label).any()):
            raise FairleadError(f"no sample of {self.name} has the label {label}")
        y, y_test = (torch.where(t == label, 1.0, -1.0) for t in (self.y, self.y_test))
        return replace(self, name=f"{self.name}, {label} against others", y=y, y_test=y_test)

    def half_digits(self, seed: int = 0) -> Dataset:
        """The digits (labels 0–9) sampled down to as many as there are letters, in both parts: half of the
        samples, as in EMNIST ByClass, where they are 49.5 %."""
        if self.y.is_floating_point() or self.classes <= 10:
            raise FairleadError(
                f"{self.name} has no letters: only digits and letters are resampled"
            )
        rng = np.random.default_rng(seed)
        kept, test = (_half_digits(y, rng) for y in (self.y, self.y_test))
        return replace(
            self,
            name=f"{self.name}, half digits",
            x=self.x[kept],
            y=self.y[kept],
            x_test=self.x_test[test],
            y_test=self.y_test[test],
            groups=None if self.groups is None else self.groups[kept],
            groups_test=None if self.groups_test is None else self.groups_test[test],
        )


def _half_digits(y: Tensor, rng: np.random.Generator) -> Tensor:
    """The positions that are kept, in order."""
    letters, numbers = (torch.nonzero(part)[:, 0] for part in (y >= 10, y < 10))
    chosen = rng.permutation(len(numbers))[: len(letters)]
    return torch.cat([letters, numbers[torch.from_numpy(chosen)]]).sort().values


def digits(test_share: float = 0.2, seed: int = 0) -> Dataset:
    """Handwritten digits in [0, 1] (Alpaydin and Kaynak 1998); the seed determines the test part."""
    x, y = _embedded("load_digits")
    order = np.random.default_rng(seed).permutation(len(x))
    cut = round(len(x) * test_share)
    images = torch.tensor(x / 16.0, dtype=torch.float32)
    labels = torch.tensor(y, dtype=torch.int64)
    test, kept = order[:cut], order[cut:]
    return Dataset("digits", images[kept], labels[kept], images[test], labels[test])


def diabetes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ten measurements of 442 patients and their disease progression (Efron et al. 2004), both
    standardised to mean zero and variance one."""
    x, y = _embedded("load_diabetes")
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()


def _embedded(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise FairleadError(
            "the embedded data sets need scikit-learn: pip install scikit-learn"
        ) from error
    return getattr(datasets, name)(return_X_y=True)


def load(
    name: str,
    data: str | Path | None = None,
    progress: bool | None = None,
    extra: bool = False,
) -> Dataset:
    """A data set from SOURCES, or your own stored as NAME.npz.

    It is read from the folder `data` or $FAIRLEAD_DATA, else from the cache, else downloaded to the
    cache. If it has no test part, a fixed tenth of its samples is held out as one. extra: also the
    training samples of further clients, if its npz file has them (FEMNIST's few-shot writers).
    """
    source = _source(name, data)
    if source.name == "digits":
        found = None
    else:
        found = locations.read(source, _located(source, data, progress))
    if extra and (found is None or found.extra is None):
        raise FairleadError(
            f"{source.name} has no extra clients here: they are x_extra, y_extra and writer_extra of an npz file"
        )
    if found is None:
        return digits()
    return _dataset(source, _with_extra(found) if extra else found)


class Row(NamedTuple):
    """One line of `listing`."""

    name: str
    what: str
    samples: int
    """As published; 0 for your own."""
    classes: int
    where: str
    holds: Holdings | None = None
    """What the npz file there holds, if it is one."""
    wrong: str = ""
    """Why the npz file there cannot be used."""


def listing(data: str | Path | None = None) -> list[Row]:
    """Every data set, your own npz files included, where it is (embedded, a folder, the cache, or not found), and
    what its file holds."""
    folder, cache = locations.data_folder(data), locations.cache_folder()
    rows, seen = [], set()
    for source in SOURCES.values():
        where, found = "not found", None
        if source.read is None:
            where = "embedded"
        elif found := locations.find(source, folder):
            where = str(folder)
        elif found := locations.find(source, cache):
            where = "cache"
        row = Row(source.name, source.what, source.samples, source.classes, where)
        if found is not None and found.npz:
            seen.add(found.paths[0])
            row = _with_holdings(row, found.paths[0])
        rows.append(row)
    own = sorted({*(folder.glob("*.npz") if folder is not None else ())} - seen)
    mine = (_with_holdings(Row(path.stem, "your own", 0, 0, str(folder)), path) for path in own)
    return [*rows, *(row for row in mine if row.holds is not None)]


def _with_holdings(row: Row, path: Path) -> Row:
    try:
        return row._replace(holds=holdings(path))
    except FairleadError as error:
        return row._replace(wrong=str(error))


def get(name: str, data: str | Path | None = None, progress: bool | None = None) -> list[Path]:
    """Find or download a data set and return its files (none if it is embedded)."""
    source = _source(name, data)
    return [] if source.name == "digits" else list(_located(source, data, progress).paths)


def check(name: str, data: str | Path | None = None) -> list[str]:
    """Verify the checksums of a data set on this machine, read all of it, and report the result.

    >>> check("digits")
    ['digits: 1,438 + 359 samples of 64 float32 numbers, 10 classes']
    """
    source = _source(name, data)
    if source.name == "digits":
        return [digits().describe()]
    folder = locations.data_folder(data)
    location = locations.find(source, folder) or locations.find(source, locations.cache_folder())
    if location is None:
        raise locations.missing(source)
    _check_checksums(source, location)
    known = {path: file.checksum for path, file in location.official(source)}
    report = [
        f"{path} has the published checksum {known[path]}"
        if path in known
        else f"{path} has no published checksum to compare"
        for path in location.paths
    ]
    found = _dataset(source, locations.read(source, location))
    size = len(found.x) + len(found.x_test)
    note = "" if size == source.samples else f" (published: {source.samples:,} samples)"
    return [*report, found.describe() + note]


def _source(name: str, data: str | Path | None) -> Source:
    """The record for a name, spelled with - or _; a new one for the user's own npz."""
    for stem in locations.stems(name):
        if stem in SOURCES:
            return SOURCES[stem]
    own = Source(name, "your own", "", 0, 0, ())
    if locations.find(own, locations.data_folder(data)) is None:
        raise FairleadError(
            f"{unknown('data set', name, SOURCES)} (or set FAIRLEAD_DATA to the folder that holds "
            f"your {name}.npz)"
        )
    return own


def _located(source: Source, data: str | Path | None, progress: bool | None) -> Location:
    location = locations.find(source, locations.data_folder(data))
    if location is not None:
        _check_checksums(source, location)
        return location
    location = locations.find(source, locations.cache_folder())
    if location is not None and location.wrong(source) is None:
        return location
    return locations.download(source, progress)


def _check_checksums(source: Source, location: Location) -> None:
    wrong = location.wrong(source)
    if wrong is not None:
        path, file = wrong
        raise FairleadError(
            f"{path} is damaged or a different file: its checksum is not the published "
            f"{file.checksum}, so download it again"
        )


def _dataset(source: Source, found: Arrays) -> Dataset:
    if found.x_test is None or found.y_test is None:
        found = _hold_out(found)
    groups, groups_test = (
        None if g is None else torch.from_numpy(g.astype(np.int64))
        for g in (found.groups, found.groups_test)
    )
    assert found.x_test is not None
    assert found.y_test is not None
    return Dataset(
        source.name,
        locations.samples(found.x),
        locations.labels(found.y),
        locations.samples(found.x_test),
        locations.labels(found.y_test),
        groups,
        groups_test,
        found.group_names,
    )


def _with_extra(found: Arrays) -> Arrays:
    """The training samples of the extra clients added, as clients of their own."""
    extra = found.extra
    assert extra is not None
    if (
        found.x_test is None
    ):  # before the extra clients are added, so that the test part stays the same
        found = _hold_out(found)
    groups, own = None, found.groups
    if own is not None and extra.groups is not None:
        parts = [g for g in (own, found.groups_test) if g is not None and len(g)]
        first = len(found.group_names) or 1 + max(int(g.max()) for g in parts)
        groups = np.concatenate([own.astype(np.int64), extra.groups.astype(np.int64) + first])
    return replace(
        found,
        x=np.concatenate([found.x, extra.x]),
        y=np.concatenate([found.y, extra.y]),
        groups=groups,
        groups_test=None if groups is None else found.groups_test,
        group_names=(*found.group_names, *extra.group_names) if groups is not None else (),
    )


def _hold_out(found: Arrays) -> Arrays:
    """Hold out a random tenth as the test part; the order is kept."""
    n = len(found.x)
    test = np.zeros(n, dtype=bool)
    test[np.random.default_rng(0).permutation(n)[: round(n / 10)]] = True
    groups = found.groups
    return replace(
        found,
        x=found.x[~test],
        y=found.y[~test],
        x_test=found.x[test],
        y_test=found.y[test],
        groups=None if groups is None else groups[~test],
        groups_test=None if groups is None else groups[test],
    )
