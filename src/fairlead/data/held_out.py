"""Holding out a share of every client's samples."""

from __future__ import annotations

import numpy as np

from fairlead.data.splits import Ints, Split
from fairlead.errors import FairleadError

ENOUGH = 10
"""Clients with fewer samples give none where their share rounds to none."""


def held_out(
    split: Split, share: float, seed: int, name: str = "hold_out", least: int = 0
) -> tuple[Split, Ints]:
    """The split without a random share of every client's samples, and these in ascending order. A client never
    gives all, and a sample that several clients have is held out by all or none of them.

    least: how many to take from clients with at least ten samples where the share is smaller.

    >>> split, rows = held_out(Split.of([range(10), range(10, 14)]), 0.01, seed=0, least=1)
    >>> split.sizes, len(rows)
    (array([9, 4]), 1)
    """
    if not 0 < share < 1:
        raise FairleadError(f"{name} is {share}: must be in (0, 1)")
    drawn = np.random.default_rng(seed).random(len(split.order))
    _, first, row = np.unique(split.order, return_index=True, return_inverse=True)
    drawn = drawn[first][row]  # the same for every client that has the sample
    rank = np.argsort(np.argsort(drawn, kind="stable"), kind="stable")
    owner = split.owners
    place = np.empty(len(owner), dtype=np.int64)
    place[np.lexsort((rank, owner))] = np.arange(len(owner)) - np.repeat(
        split.offsets[:-1], split.sizes
    )
    count = np.maximum(np.rint(share * split.sizes), least * (split.sizes >= ENOUGH))
    out = place < np.minimum(count, split.sizes - 1)[owner]
    rows = np.unique(split.order[out])
    out = np.isin(split.order, rows)
    kept = np.bincount(owner[~out], minlength=len(split))
    if not len(rows):
        raise FairleadError(f"{name} is {share}: no client has enough samples to hold any out")
    if not kept.all():
        client = int(kept.argmin())
        raise FairleadError(
            f"{name} is {share}, which leaves client {client} no sample: hold out less"
        )
    return Split(split.order[~out], np.cumsum([0, *kept])), rows


def first_of(order: Ints, rows: Ints) -> Ints:
    """The first position of each of some samples.

    >>> first_of(np.array([5, 2, 7, 2]), np.array([2, 7]))
    array([1, 2])
    """
    known, first = np.unique(order, return_index=True)
    return first[np.searchsorted(known, rows)]
