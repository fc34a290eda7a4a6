"""Splitting samples across clients. Splits use only the labels, of any type (also negative numbers
and strings), so they work for any data.

Every split except `by_id` with a minimum assigns each sample to exactly one client and each client at
least one sample, for any setting. The seed determines it: draws come from numpy's PCG64.

>>> split = similarity(np.repeat(["cat", "dog"], 50), clients=2, percent=0)
>>> split.table(np.repeat(["cat", "dog"], 50))
array([[50,  0],
       [ 0, 50]])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairlead.data.amounts import capped, fill_empty, log_dirichlet, log_power, rounded, shares
from fairlead.errors import FairleadError

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Split(Sequence[Ints]):
    """Index lists, one per client: client i owns `order[offsets[i] : offsets[i + 1]]`. For very many
    clients, passing these two arrays is fastest.

    >>> len(Split(np.arange(3_000_000), np.arange(0, 3_000_001, 3)))
    1000000
    """

    order: Ints
    offsets: Ints

    def __post_init__(self) -> None:
        order, offsets = _indices(self.order), _indices(self.offsets)
        ends = offsets[[0, -1]].tolist() if len(offsets) else []
        if ends != [0, len(order)] or (np.diff(offsets) < 0).any():
            raise FairleadError(
                f"a split's offsets must rise from 0 to its {len(order)} entries, with one more offset "
                "than clients"
            )
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "offsets", offsets)

    @classmethod
    def of(cls, lists: Iterable[ArrayLike]) -> Split:
        """From one index list per client.

        >>> Split.of([[0, 2], [1]]).sizes
        array([2, 1])
        """
        given: list[Any] = list(lists)
        flat = _flat(given)
        if flat is not None:
            return cls(flat, _offsets(list(map(len, given))))
        arrays = [_indices(ids) for ids in given]
        order = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
        return cls(order, _offsets([len(ids) for ids in arrays]))

    @cached_property
    def sizes(self) -> Ints:
        """Samples per client."""
        return np.diff(self.offsets)

    @cached_property
    def even(self) -> bool:
        """Whether all clients have the same number of samples."""
        return bool((self.sizes == self.sizes[:1]).all())

    @property
    def owners(self) -> Ints:
        """The client of every entry of `order`."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.sizes)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return [self[k] for k in range(*client.indices(len(self)))]
        client = client + len(self) if client < 0 else client
        if not 0 <= client < len(self):
            raise IndexError(client)
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def table(self, labels: ArrayLike) -> Ints:
        """The number of samples per client and label: (clients, classes). The columns are the distinct
        labels in ascending order, `np.unique(labels)`.

        >>> Split.of([[0, 2], [1]]).table([-1, 7, 7])
        array([[1, 1],
               [0, 1]])
        """
        classes, column = np.unique(_labels(labels), return_inverse=True)
        cells = self.owners * len(classes) + column[self.order]
        counts = np.bincount(cells, minlength=len(self) * len(classes))
        return counts.reshape(len(self), len(classes))

    def describe(self, labels: ArrayLike) -> str:
        """The split in one sentence, and a second one if some samples belong to no client.

        >>> Split.of([[0, 2], [1]]).describe([0, 1, 1, 0])
        '2 clients hold 3 samples: 1 to 2 (median 1.5) each, from 1 to 2 (median 1.5) of 2 classes. 1 sample belongs to no client.'
        """
        from fairlead.data.split_plot import sentence

        return sentence(self, labels)

    def plot(self, labels: ArrayLike, path: str | Path | None = None) -> Any:
        """A figure with a bubble per client and class and a bar per client size, saved to `path`."""
        from fairlead.data.split_plot import bubbles

        return bubbles(self, labels, path)


def iid(labels: ArrayLike, clients: int, seed: int = 0) -> Split:
    """A random split into equal parts (up to one sample).

    >>> iid(np.zeros(10), clients=4).sizes
    array([3, 3, 2, 2])
    """
    n = _samples(labels, clients)
    return Split(_shuffled(_rng(seed), n), _offsets(_even(n, clients)))


def similarity(labels: ArrayLike, clients: int, percent: float, seed: int = 0) -> Split:
    """`percent` % of every client's data is iid, the rest is sorted by label
    (Karimireddy et al. 2020, section 7.1). Sizes differ by at most two."""
    labels = _labels(labels, clients)
    if not 0 <= percent <= 100:
        raise FairleadError(f"similarity is {percent} %: it must be in [0, 100]")
    order = _shuffled(_rng(seed), len(labels))
    mixed, rest = np.split(order, [round(len(labels) * percent / 100)])
    backwards = rest[np.argsort(labels[rest], kind="stable")][::-1]
    # larger parts of one cut are paired with smaller parts of the other, so that no client is empty
    first = np.repeat(np.arange(clients), _even(len(mixed), clients))
    second = np.repeat(np.arange(clients)[::-1], _even(len(rest), clients))
    return _assigned(np.concatenate([mixed, backwards]), np.concatenate([first, second]), clients)


def shards(labels: ArrayLike, clients: int, per_client: int = 2, seed: int = 0) -> Split:
    """Sort by label, cut into clients·per_client equal shards (up to one sample), and give each client
    `per_client` of them at random (McMahan et al. 2017; Das et al. 2022, appendix D).

    >>> labels = np.repeat(np.arange(10), 60)
    >>> (shards(labels, clients=30, per_client=2).table(labels) > 0).sum(1).max()
    np.int64(2)
    """
    labels = _labels(labels, clients)
    pieces = clients * per_client
    if not clients <= pieces <= len(labels):
        raise FairleadError(
            f"{clients} clients with {per_client} shards each cut {len(labels)} samples into "
            f"{pieces} shards: give 1 to {len(labels) // clients} shards per client"
        )
    rng = _rng(seed)
    samples, _ = _by_label(rng, labels)
    dealt = rng.permutation(pieces)
    sizes = _even(len(labels), pieces)
    position = np.empty(pieces, dtype=np.int64)
    position[dealt] = np.arange(pieces)
    order = samples[np.argsort(np.repeat(position, sizes), kind="stable")]
    return Split(order, _offsets(sizes[dealt].reshape(clients, per_client).sum(1)))


def dirichlet(labels: ArrayLike, clients: int, alpha: float, seed: int = 0) -> Split:
    """Each class is divided by its own proportions, drawn from Dirichlet(alpha) over the clients
    (Hsu et al. 2019), so sizes are uneven. Proportions are rounded to samples without bias. A client
    left empty gets one sample from the largest client.

    >>> dirichlet(np.zeros(9), clients=3, alpha=1e6).sizes
    array([3, 3, 3])
    """
    labels = _labels(labels, clients)
    rng = _rng(seed)
    samples, counts = _by_label(rng, labels)
    starts = rng.spawn(1)[0].random(len(counts))
    owners = []
    for count, start in zip(counts, starts, strict=True):
        amounts = count * shares(log_dirichlet(rng, alpha, clients))
        owners.append(np.repeat(np.arange(clients), rounded(amounts, count, start)))
    return _assigned(samples, fill_empty(np.concatenate(owners), clients), clients)


def dirichlet_balanced(labels: ArrayLike, clients: int, alpha: float, seed: int = 0) -> Split:
    """Dirichlet with clients of equal size (up to one sample), after the variant of FedDF and FedPVR.

    The classes are handled in random order, each with proportions from Dirichlet(alpha) over the
    clients. A client gets at most what it has room for; the excess goes to clients with room left, in
    their drawn proportions, so the last classes fill the remaining gaps. See `dirichlet_sliced` for what
    the authors' code does.

    >>> dirichlet_balanced(np.arange(100) % 10, clients=8, alpha=1e-3).sizes
    array([13, 13, 13, 13, 12, 12, 12, 12])
    """
    labels = _labels(labels, clients)
    rng = _rng(seed)
    samples, counts = _by_label(rng, labels)
    room = _even(len(labels), clients)
    owner = np.empty(len(labels), dtype=np.int64)
    begins = _offsets(counts)
    for label in rng.permutation(len(counts)):
        log, count = log_dirichlet(rng, alpha, clients), int(counts[label])
        taken = capped(log, room, count, rng.random())
        owner[begins[label] : begins[label + 1]] = np.repeat(np.arange(clients), taken)
        room = room - taken
    return _assigned(samples, owner, clients)


def dirichlet_sliced(labels: ArrayLike, clients: int, alpha: float, seed: int = 0) -> Split:
    """Dirichlet with clients of equal size (up to one sample), as in the code of FedPVR's authors.

    Classes are divided in their order, with proportions from Dirichlet(alpha) over the clients that have less
    than an equal share so far. The lists are joined and cut into equal slices, so a client also gets samples
    drawn for its neighbours. The authors draw again until no list is shorter than half an equal share; here at
    most 100 times, and not in groups of ten clients.

    >>> dirichlet_sliced(np.arange(100) % 10, clients=8, alpha=0.1).sizes
    array([13, 13, 13, 13, 12, 12, 12, 12])
    """
    labels = _labels(labels, clients)
    rng = _rng(seed)
    samples, counts = _by_label(rng, labels)
    owner = np.empty(len(labels), dtype=np.int64)
    begins, equal = _offsets(counts), len(labels) / clients
    for _ in range(100):
        sizes = np.zeros(clients, np.int64)
        for label, count in enumerate(counts):
            log = np.where(sizes < equal, log_dirichlet(rng, alpha, clients), -np.inf)
            cuts = (np.cumsum(shares(log)) * count).astype(np.int64)
            taken = np.diff(cuts, prepend=0)
            taken[np.flatnonzero(np.isfinite(log))[-1]] += count - taken.sum()
            owner[begins[label] : begins[label + 1]] = np.repeat(np.arange(clients), taken)
            sizes += taken
        if sizes.min() >= int(equal / 2):
            break
    order = samples[np.argsort(owner, kind="stable")]
    return Split(order, _offsets(_even(len(labels), clients)))


def quantity(
    labels: ArrayLike,
    clients: int,
    alpha: float | None = None,
    seed: int = 0,
    *,
    power: float | None = None,
) -> Split:
    """Clients of very different sizes with iid labels. Each client gets one sample; the rest is divided
    in proportions drawn from Dirichlet(alpha), or by a power law: the r-th largest client's share is
    proportional to r^−power, in random order.

    >>> np.sort(quantity(np.zeros(1000), clients=4, power=2.0).sizes)
    array([ 44,  79, 176, 701])
    """
    n, rng = _samples(labels, clients), _rng(seed)
    order = _shuffled(rng, n)
    if alpha is not None and power is None:
        portions = shares(log_dirichlet(rng, alpha, clients))
    elif power is not None and alpha is None:
        portions = shares(log_power(rng, power, clients))
    else:
        raise FairleadError(
            f"alpha is {alpha} and power is {power}: give one of them, such as alpha=0.5 or power=1"
        )
    return Split(order, _offsets(1 + rounded((n - clients) * portions, n - clients, rng.random())))


def by_id(ids: ArrayLike, minimum: int = 1) -> Split:
    """Natural clients: one per distinct id (a writer, a hospital), in ascending order. Those with fewer
    than `minimum` samples are dropped with their samples, which `describe` counts.

    >>> split = by_id(["bo", "al", "bo", "cy", "bo", "al"], minimum=2)
    >>> [ids.tolist() for ids in split]
    [[1, 5], [0, 2, 4]]
    """
    names, owner, sizes = np.unique(_labels(ids), return_inverse=True, return_counts=True)
    kept = sizes >= minimum
    if not kept.any():
        raise FairleadError(
            f"none of {len(names)} clients has {minimum} samples: lower minimum to at most "
            f"{sizes.max()}, the largest client's size"
        )
    order = np.argsort(owner, kind="stable")
    return Split(order[kept[owner[order]]], _offsets(sizes[kept]))


def _indices(ids: ArrayLike) -> Ints:
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise FairleadError(
            "each client needs a list of sample indices: convert masks with np.flatnonzero, "
            "and one owner per sample with by_id(owner)"
        )
    return array.astype(np.int64, copy=False)


def _flat(lists: list[Any]) -> Ints | None:
    """All entries of plain lists of integers, converted at once; None for anything else."""
    if not lists or not all(type(ids) is list for ids in lists):
        return None
    if any(ids and type(ids[0]) is not int for ids in lists):
        return None
    try:
        flat = np.array(list(chain.from_iterable(lists)))
    except (ValueError, OverflowError):  # lists within lists
        return None
    return flat if flat.ndim == 1 and flat.dtype == np.int64 else None


def _labels(labels: ArrayLike, clients: int = 1) -> NDArray[Any]:
    array = np.asarray(labels)
    if array.ndim != 1:
        raise FairleadError(
            f"the labels have shape {array.shape}: give one label per sample, for one-hot rows "
            "labels.argmax(1)"
        )
    _samples(array, clients)
    return array


def _samples(labels: ArrayLike, clients: int) -> int:
    n = len(np.atleast_1d(np.asarray(labels)))
    if not (isinstance(clients, int | np.integer) and 1 <= clients <= n):
        raise FairleadError(
            f"{clients} clients for {n} samples: give an integer from 1 to {n}"
            if n
            else "there are no samples to split: give one label per sample"
        )
    return n


def _rng(seed: int) -> np.random.Generator:
    if not (isinstance(seed, int | np.integer) and seed >= 0):
        raise FairleadError(f"seed is {seed}: it must be a non-negative integer")
    return np.random.default_rng(seed)


def _shuffled(rng: np.random.Generator, n: int) -> Ints:
    return rng.permutation(np.arange(n, dtype=np.int64))


def _by_label(rng: np.random.Generator, labels: NDArray[Any]) -> tuple[Ints, Ints]:
    """All samples, grouped by class and shuffled within each, and the class sizes."""
    mixed = _shuffled(rng, len(labels))
    classes, column = np.unique(labels, return_inverse=True)
    order = mixed[np.argsort(column[mixed], kind="stable")]
    return order, np.bincount(column, minlength=len(classes))


def _offsets(sizes: ArrayLike) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _even(n: int, parts: int) -> Ints:
    return n // parts + (np.arange(parts, dtype=np.int64) < n % parts)


def _assigned(samples: Ints, owner: Ints, clients: int) -> Split:
    """`samples[j]` goes to client `owner[j]`; within a client the order is kept."""
    sizes = np.bincount(owner, minlength=clients)
    return Split(samples[np.argsort(owner, kind="stable")], _offsets(sizes))


SPLITS: dict[str, Callable[..., Split]] = {
    "iid": iid, "similarity": similarity, "dirichlet": dirichlet,
    "dirichlet-balanced": dirichlet_balanced, "dirichlet-sliced": dirichlet_sliced, "shards": shards, "quantity": quantity,
}  # fmt: skip
