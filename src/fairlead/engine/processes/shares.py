"""Which rank runs which clients: shares of about equal cost, and rows that move with them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.engine.processes.ranks import Ranks
from fairlead.engine.state.store import ClientStore

Ints = NDArray[np.int64]


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
