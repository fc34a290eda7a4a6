"""Which process runs which clients: fixed shares of about equal cost and rows that move with them, or chunks
that processes take as they become free."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.engine.processes.ranks import Ranks
from fairlead.engine.state.store import ClientStore

Ints = NDArray[np.int64]
FINEST = 32
"""The smallest chunk is this part of a process's fair share, or one client."""
SUMS = 1 << 30
"""Bytes that the sums of all chunks may take, for each vector of a method."""


def balanced(cost: NDArray[np.float64], owner: Ints, ranks: int) -> Ints:
    """The rank of every client: the costliest first, each on its owner if that has room, otherwise on the
    least loaded rank. Deterministic, so all ranks find the same.

    >>> balanced(np.array([4.0, 1.0, 1.0, 2.0]), np.array([0, 0, 0, 0]), 2)
    array([0, 1, 1, 1])
    """
    place, load = owner.copy(), np.zeros(ranks)
    fair = max(cost.sum() / ranks, cost.max(initial=0.0)) * (1 + 1e-9)
    for client in np.argsort(-cost, kind="stable"):
        rank = owner[client]
        if load[rank] + cost[client] > fair:
            rank = int(load.argmin())
        place[client] = rank
        load[rank] += cost[client]
    return place


def chunks(cost: NDArray[np.float64], processes: int, length: int) -> list[Ints]:
    """A cohort in chunks, at least one per process, from large to small: each process begins with half of its
    fair share, and takes the next chunk when it is done with one. Costly clients come first. A function of
    the clients' costs, the number of processes and the bytes of a vector, so that sums by chunk do not depend
    on who takes which.

    >>> [len(some) for some in chunks(np.ones(25), 2, 4000)]
    [7, 7, 3, 3, 2, 2, 1]
    >>> [len(some) for some in chunks(np.ones(25), 2, SUMS)]  # few vectors of a gigabyte
    [13, 12]
    """
    cost, finest = np.maximum(cost, 1e-9), FINEST
    found = _chunks(cost, processes, finest)
    while finest > 1 and len(found) * length > SUMS:
        finest //= 2
        found = _chunks(cost, processes, finest)
    return found + [np.zeros(0, np.int64)] * (processes - len(found))


def _chunks(cost: NDArray[np.float64], processes: int, finest: int) -> list[Ints]:
    order = np.argsort(-cost, kind="stable")
    ends = np.cumsum(cost[order])
    total, least = ends[-1], ends[-1] / (finest * processes)
    found: list[Ints] = []
    first, spent, size = 0, 0.0, 0.0
    while first < len(order):
        if len(found) % processes == 0:  # the next of each process
            size = max((total - spent) / (2 * processes), least)
        last = int(np.searchsorted(ends, spent + 0.999 * size)) + 1
        found.append(np.sort(order[first:last]))
        first, spent = last, ends[min(last, len(ends)) - 1]
    return found


def most_chunks(processes: int) -> int:
    """An upper bound on the number of chunks."""
    return (2 + FINEST.bit_length()) * processes


def move_rows(
    ranks: Ranks, stores: Iterable[ClientStore], ids: Ints, source: Ints, target: Ints
) -> None:
    """Move rows of clients from the ranks that have them to those that will run them."""
    me = ranks.rank
    for store in stores:
        leaving = {
            int(r): ids[(source == me) & (target == r)] for r in np.unique(target) if r != me
        }
        coming = {int(r): ids[(target == me) & (source == r)] for r in np.unique(source) if r != me}
        give = {r: _packed(store, some) for r, some in leaving.items() if len(some)}
        take = {r: _room(store, some) for r, some in coming.items() if len(some)}
        ranks.swap(give, take)
        for rank, rows in take.items():
            _unpack(store, coming[rank], rows)
        gone = [some for some in leaving.values() if len(some)]
        if gone:
            store.drop(np.concatenate(gone))


def _packed(store: ClientStore, ids: Ints) -> Tensor:
    """The rows as bytes, one row per client, with all fields together."""
    rows = store.read(ids).tensors()
    parts = [rows[name].contiguous().reshape(len(ids), -1).view(torch.uint8) for name in rows]
    return torch.cat(parts, 1)


def _room(store: ClientStore, ids: Ints) -> Tensor:
    like = store.start.tensors()
    width = sum(t.numel() * t.element_size() for t in like.values())
    device = next(iter(like.values())).device
    return torch.empty(len(ids), width, dtype=torch.uint8, device=device)


def _unpack(store: ClientStore, ids: Ints, rows: Tensor) -> None:
    found, first = {}, 0
    for name, like in store.start.tensors().items():
        width = like.numel() * like.element_size()
        part = rows[:, first : first + width].contiguous()
        found[name] = part.view(like.dtype).reshape(len(ids), *like.shape)
        first += width
    store.write(ids, store.start.filled(found))
