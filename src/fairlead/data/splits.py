"""Dividing samples among clients. All splits need labels or a count alone, not the data.

>>> split = similarity(np.repeat([0, 1], 50), clients=2, percent=0, seed=0)
>>> split.table(np.repeat([0, 1], 50))
array([[50,  0],
       [ 0, 50]])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairlead.errors import FairleadError

Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split(Sequence[Ints]):
    """Index lists, one a client: client i owns `order[offsets[i] : offsets[i + 1]]`."""

    order: Ints
    offsets: Ints

    @classmethod
    def of(cls, lists: Iterable[ArrayLike]) -> Split:
        """From one index list a client."""
        arrays = [_indices(ids) for ids in lists]
        order = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
        return cls(order, np.cumsum([0, *map(len, arrays)]))

    @property
    def sizes(self) -> Ints:
        """Samples a client."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: Any) -> Any:
        if not 0 <= client < len(self):
            raise IndexError(client)
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def table(self, labels: ArrayLike) -> Ints:
        """How many samples of each label each client holds: (clients, classes)."""
        labels = np.asarray(labels)
        owner = np.repeat(np.arange(len(self)), self.sizes)
        table = np.zeros((len(self), int(labels.max()) + 1), dtype=np.int64)
        np.add.at(table, (owner, labels[self.order]), 1)
        return table


def _indices(ids: ArrayLike) -> Ints:
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise FairleadError(
            "a client's data are a list of sample indices: for a mask use np.flatnonzero, "
            "for one owner a sample [np.flatnonzero(owner == i) for i in range(clients)]"
        )
    return array.astype(np.int64)


def _check(samples: int, clients: int) -> None:
    if not 1 <= clients <= samples:
        raise FairleadError(
            f"{clients} clients for {samples} samples: take between 1 and {samples} clients"
        )


def _cut(order: Ints, clients: int) -> list[Ints]:
    return np.array_split(order, clients)


def iid(labels: ArrayLike, clients: int, seed: int = 0) -> Split:
    """A random split into parts of equal size (up to one sample)."""
    n = len(np.asarray(labels))
    _check(n, clients)
    return Split.of(_cut(np.random.default_rng(seed).permutation(n), clients))


def similarity(labels: ArrayLike, clients: int, percent: float, seed: int = 0) -> Split:
    """`percent` % of every client's data is iid, the rest comes sorted by label
    (Karimireddy et al. 2020, section 7.1)."""
    labels = np.asarray(labels)
    _check(len(labels), clients)
    if not 0 <= percent <= 100:
        raise FairleadError(f"similarity is {percent} %: take between 0 and 100")
    order = np.random.default_rng(seed).permutation(len(labels))
    shared = round(len(labels) * percent / 100)
    mixed, rest = order[:shared], order[shared:]
    by_label = rest[np.argsort(labels[rest], kind="stable")]
    # the larger parts of one cut meet the smaller parts of the other, so that nobody stays empty
    parts = zip(_cut(mixed, clients), reversed(_cut(by_label[::-1], clients)), strict=True)
    return Split.of(np.concatenate(part) for part in parts)


def shards(labels: ArrayLike, clients: int, per_client: int = 2, seed: int = 0) -> Split:
    """Sort by label, cut into clients·per_client shards, deal each client `per_client` of them
    at random (McMahan et al. 2017; Das et al. 2022, appendix D)."""
    labels = np.asarray(labels)
    _check(len(labels), clients * per_client)
    rng = np.random.default_rng(seed)
    mixed = rng.permutation(len(labels))
    pieces = _cut(mixed[np.argsort(labels[mixed], kind="stable")], clients * per_client)
    dealt = rng.permutation(len(pieces)).reshape(clients, per_client)
    return Split.of(np.concatenate([pieces[j] for j in hand]) for hand in dealt)


def dirichlet(labels: ArrayLike, clients: int, alpha: float, seed: int = 0) -> Split:
    """Each class is divided by proportions drawn from Dirichlet(alpha): sizes come out uneven.
    A client left with nothing takes one sample from the largest, so the split always ends."""
    labels = np.asarray(labels)
    _check(len(labels), clients)
    if not (np.isfinite(alpha) and alpha > 0):
        raise FairleadError(f"alpha is {alpha}: take a positive number such as 0.1")
    rng = np.random.default_rng(seed)
    mixed = rng.permutation(len(labels))
    by_label = mixed[np.argsort(labels[mixed], kind="stable")]
    owner = np.empty(len(labels), dtype=np.int64)
    start = 0
    for count in np.unique(labels, return_counts=True)[1]:
        shares = _proportions(rng, alpha, clients)
        ends = np.rint(np.cumsum(shares) * count).astype(np.int64)
        ends[-1] = count
        owner[start : start + count] = np.repeat(np.arange(clients), np.diff(ends, prepend=0))
        start += count
    sizes = np.bincount(owner, minlength=clients)
    for needy in np.flatnonzero(sizes == 0):
        giver = int(sizes.argmax())
        owner[np.flatnonzero(owner == giver)[0]] = needy
        sizes[giver] -= 1
        sizes[needy] += 1
    return Split(by_label[np.argsort(owner, kind="stable")], np.cumsum([0, *sizes]))


def _proportions(rng: np.random.Generator, alpha: float, clients: int) -> NDArray[np.float64]:
    """One Dirichlet draw in logarithms, so that a tiny alpha gives no 0/0."""
    # Gamma(alpha) = Gamma(alpha + 1) · U^(1/alpha)
    log = np.log(rng.gamma(alpha + 1, size=clients)) + np.log(rng.random(clients)) / alpha
    shares = np.exp(log - log.max())
    return shares / shares.sum()


SPLITS = {"iid": iid, "similarity": similarity, "shards": shards, "dirichlet": dirichlet}
