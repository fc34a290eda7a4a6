"""Every client's own test samples: given, held out from its data, or a share of common test data."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairlead.data.amounts import rounded
from fairlead.data.splits import Ints, Split
from fairlead.errors import FairleadError


def following(split: Split, labels: ArrayLike, test_labels: ArrayLike, seed: int = 0) -> Split:
    """Test samples dealt to clients so that each client's labels follow those it trains on: every label's test
    samples go to the clients in proportion to their training samples of that label. A small client may get none,
    and a label that nobody trains on goes to nobody.

    >>> split = Split.of([[0, 1, 2], [3, 4, 5]])
    >>> test = following(split, [0, 0, 0, 1, 1, 1], [1, 0, 0, 1])
    >>> [sorted(rows.tolist()) for rows in test]
    [[1, 2], [0, 3]]
    """
    rng = np.random.default_rng(seed)
    mine, theirs = np.asarray(labels), np.asarray(test_labels)
    classes, column = np.unique(mine, return_inverse=True)
    trained = split.table(column) if len(classes) else np.zeros((len(split), 0), np.int64)
    owner = np.full(len(theirs), -1)
    for place, label in enumerate(classes):
        rows = rng.permutation(np.flatnonzero(theirs == label))
        if trained[:, place].any():
            clients = rng.permutation(len(split))  # so that rounding favours nobody
            share = trained[clients, place] / trained[:, place].sum()
            owner[rows] = np.repeat(clients, rounded(share * len(rows), len(rows), rng.random()))
    return owned(owner, len(split))


def owned(owner: Ints, clients: int) -> Split:
    """The split in which every row belongs to its owner, and to nobody where that is −1."""
    order = np.argsort(owner, kind="stable")[int((owner < 0).sum()) :]
    sizes = np.bincount(owner[owner >= 0], minlength=clients)
    return Split(order, np.cumsum([0, *sizes]))


def by_group(split: Split, groups: NDArray[np.int64], test_groups: NDArray[np.int64]) -> Split:
    """The test samples of clients that are natural groups, such as writers: those of the same group.

    >>> test = by_group(Split.of([[0, 1], [2]]), np.array([7, 7, 9]), np.array([9, 7, 8, 9]))
    >>> [rows.tolist() for rows in test]
    [[1], [0, 3]]
    """
    known = groups[split.order[split.offsets[:-1]]]  # every client is one group
    rank = np.argsort(known)
    place = np.searchsorted(known[rank], test_groups).clip(max=len(known) - 1)
    found = rank[place]
    return owned(np.where(known[found] == test_groups, found, -1), len(split))


def of_held_out(split: Split, rows: Ints) -> Split:
    """Where every client's samples are in ascending `rows` that were held out from a split.

    >>> [at.tolist() for at in of_held_out(Split.of([[3, 0], [1, 2]]), np.array([0, 2, 3]))]
    [[2, 0], [1]]
    """
    out = np.isin(split.order, rows)
    sizes = np.bincount(split.owners[out], minlength=len(split))
    return Split(np.searchsorted(rows, split.order[out]), np.cumsum([0, *sizes]))


def check_test_split(split: Split, clients: int, samples: int) -> None:
    """Reject a split of test samples that does not fit the task; clients may have none."""
    if len(split) != clients:
        raise FairleadError(
            f"test_clients has {len(split)} index lists for {clients} clients: give one per client"
        )
    wrong = split.order[(split.order < 0) | (split.order >= samples)]
    if len(wrong) or not len(split.order):
        what = f"test sample {wrong[0]}" if len(wrong) else "no test sample at all"
        raise FairleadError(f"test_clients contains {what}: indices must be in 0 … {samples - 1}")
