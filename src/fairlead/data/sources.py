"""Data sets by name: embedded, from a folder of yours, from the cache, or downloaded.

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
from fairlead.data.locations import Place
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
    """Images, rows or text with labels, divided into training and test parts.

    groups, groups_test: the client of every sample (a writer, a speaking role), where data have them;
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
        """How many labels there are: one more than the largest class, or the different numbers."""
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


def digits(test_share: float = 0.2, seed: int = 0) -> Dataset:
    """Handwritten digits in [0, 1] (Alpaydin and Kaynak 1998), the same test part for a seed."""
    x, y = _embedded("load_digits")
    order = np.random.default_rng(seed).permutation(len(x))
    cut = round(len(x) * test_share)
    images = torch.tensor(x / 16.0, dtype=torch.float32)
    labels = torch.tensor(y, dtype=torch.int64)
    test, kept = order[:cut], order[cut:]
    return Dataset("digits", images[kept], labels[kept], images[test], labels[test])


def diabetes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ten measurements of 442 patients and the progression of their disease (Efron et al. 2004), both
    with mean zero and variance one."""
    x, y = _embedded("load_diabetes")
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()


def _embedded(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise FairleadError(
            "the embedded data come with scikit-learn: pip install fairlead[all]"
        ) from error
    return getattr(datasets, name)(return_X_y=True)


def load(name: str, data: str | Path | None = None, progress: bool | None = None) -> Dataset:
    """A data set of SOURCES, or one of your own stored as NAME.npz.

    It is taken from the folder `data` or $FAIRLEAD_DATA, else from the cache, else downloaded into
    the cache. A set without a test part gives up a tenth of its samples as one, the same every time.
    """
    source = _source(name, data)
    if source.name == "digits":
        return digits()
    return _dataset(source, locations.read(source, _here(source, data, progress)))


class Row(NamedTuple):
    """One line of `listing`."""

    name: str
    what: str
    samples: int
    classes: int
    where: str


def listing(data: str | Path | None = None) -> list[Row]:
    """Every set and where it is now: embedded, a folder, the cache, or not here."""
    folder, cache = locations.data_folder(data), locations.cache_folder()
    rows = []
    for source in SOURCES.values():
        where = "not here"
        if source.read is None:
            where = "embedded"
        elif locations.look(source, folder):
            where = str(folder)
        elif locations.look(source, cache):
            where = "cache"
        rows.append(Row(source.name, source.what, source.samples, source.classes, where))
    return rows


def get(name: str, data: str | Path | None = None, progress: bool | None = None) -> list[Path]:
    """Have a set on this machine; the files it is read from (none if it is embedded)."""
    source = _source(name, data)
    return [] if source.name == "digits" else list(_here(source, data, progress).paths)


def check(name: str, data: str | Path | None = None) -> list[str]:
    """Compare the checksums of a set that is here, read all of it, and say what was found.

    >>> check("digits")
    ['digits: 1,438 + 359 samples of 64 float32 numbers, 10 classes']
    """
    source = _source(name, data)
    if source.name == "digits":
        return [digits().describe()]
    folder = locations.data_folder(data)
    place = locations.look(source, folder) or locations.look(source, locations.cache_folder())
    if place is None:
        raise locations.missing(source)
    _refuse_wrong(source, place)
    known = {path: file.checksum for path, file in place.official(source)}
    told = [
        f"{path} has the published checksum {known[path]}"
        if path in known
        else f"{path} has no published checksum to compare"
        for path in place.paths
    ]
    found = _dataset(source, locations.read(source, place))
    size = len(found.x) + len(found.x_test)
    whole = "" if size == source.samples else f" (published: {source.samples:,} samples)"
    return [*told, found.describe() + whole]


def _source(name: str, data: str | Path | None) -> Source:
    """The record of a name, written with - or _; one of the user's own if there is such an npz."""
    for stem in locations.stems(name):
        if stem in SOURCES:
            return SOURCES[stem]
    own = Source(name, "your own", "", 0, 0, ())
    if locations.look(own, locations.data_folder(data)) is None:
        raise FairleadError(
            f"{unknown('data set', name, SOURCES)} (or set FAIRLEAD_DATA to the folder that holds "
            f"your {name}.npz)"
        )
    return own


def _here(source: Source, data: str | Path | None, progress: bool | None) -> Place:
    place = locations.look(source, locations.data_folder(data))
    if place is not None:
        _refuse_wrong(source, place)
        return place
    place = locations.look(source, locations.cache_folder())
    if place is not None and place.wrong(source) is None:
        return place
    return locations.download(source, progress)


def _refuse_wrong(source: Source, place: Place) -> None:
    wrong = place.wrong(source)
    if wrong is not None:
        path, file = wrong
        raise FairleadError(
            f"{path} is damaged or another file: its checksum is not the published {file.checksum}, "
            "get the file again"
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


def _hold_out(found: Arrays) -> Arrays:
    """A random tenth as test part, in the order it had."""
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
