"""How many samples of each class each client gets."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairlead.errors import FairleadError, positive

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


def log_dirichlet(rng: np.random.Generator, alpha: float, clients: int) -> Floats:
    """The logarithm of a Dirichlet draw, up to a constant: a tiny alpha causes no 0/0."""
    positive("alpha", alpha)
    alpha = min(max(alpha, 1e-200), 1e200)
    # Gamma(alpha) = Gamma(alpha + 1) · U^(1/alpha)
    gamma, u = rng.gamma(alpha + 1, size=clients), rng.random(clients)
    return np.log(gamma) + np.log(np.maximum(u, 2.0**-54)) / alpha


def log_power(rng: np.random.Generator, power: float, clients: int) -> Floats:
    if not 0 <= power <= 100:
        raise FairleadError(f"power is {power}: it must be in [0, 100], where 0 gives equal sizes")
    return -power * np.log(1.0 + rng.permutation(clients))


def shares(log: Floats) -> Floats:
    shares = np.exp(log - log.max())
    return shares / shares.sum()


def rounded(amounts: Floats, total: int, start: float) -> Ints:
    """`amounts` rounded to integers that sum to `total`; with `start` uniform in [0, 1) the rounding
    is unbiased."""
    ends = np.floor(np.cumsum(amounts) + start).clip(max=total).astype(np.int64)
    ends[-1] = total
    return np.diff(ends, prepend=0)


def capped(log: Floats, room: Ints, count: int, start: float) -> Ints:
    """`count` samples in proportion to exp(log), within each client's room: min(room, λ·exp(log))."""
    limit = np.where(room > 0, np.log(np.maximum(room, 1)), -np.inf)
    order = np.argsort(limit - log, kind="stable")  # in the order in which clients fill up
    cap, log = room[order].astype(float), log[order]
    left = count - (np.cumsum(cap) - cap)  # for this client and later ones, if all earlier are full
    share = np.exp(log - np.logaddexp.accumulate(log[::-1])[::-1])
    full = int(np.append(left * share < cap, True).argmax())
    amounts = np.empty(len(room))
    amounts[order[:full]] = cap[:full]
    if full < len(room):
        amounts[order[full:]] = left[full] * share[full] * np.exp(log[full:] - log[full])
    taken = np.minimum(rounded(amounts, count, start), room)
    spare = np.cumsum(room - taken)  # rounding leftovers go to the first clients
    return taken + np.diff(np.minimum(spare, count - taken.sum()), prepend=0)


def fill_empty(owner: Ints, clients: int) -> Ints:
    """Give each empty client in turn the first sample of the client that is largest by then."""
    sizes = np.bincount(owner, minlength=clients)
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return owner
    larger = np.cumsum(np.bincount(sizes)[::-1])  # clients as large as the largest, or one less, …
    level = len(larger) - 2 - int(np.searchsorted(np.cumsum(larger), len(empty)))
    surplus = np.maximum(sizes - level, 0)
    donor = np.repeat(np.arange(clients), surplus)
    nth = np.arange(len(donor)) - np.repeat(np.cumsum(surplus) - surplus, surplus)
    chosen = np.lexsort((donor, nth - sizes[donor]))[: len(empty)]
    first = np.cumsum(sizes) - sizes
    moved = np.argsort(owner, kind="stable")[(first[donor] + nth)[chosen]]
    filled = owner.copy()
    filled[moved] = empty
    return filled
