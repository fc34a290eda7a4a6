"""How many samples of a class go to which client."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairlead.errors import FairleadError, positive

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


def log_dirichlet(rng: np.random.Generator, alpha: float, clients: int) -> Floats:
    """Logarithms of one Dirichlet draw up to a constant, so that a tiny alpha gives no 0/0."""
    positive("alpha", alpha)
    alpha = min(max(alpha, 1e-200), 1e200)
    # Gamma(alpha) = Gamma(alpha + 1) · U^(1/alpha)
    gamma, u = rng.gamma(alpha + 1, size=clients), rng.random(clients)
    return np.log(gamma) + np.log(np.maximum(u, 2.0**-54)) / alpha


def log_power(rng: np.random.Generator, power: float, clients: int) -> Floats:
    if not 0 <= power <= 100:
        raise FairleadError(f"power is {power}: take a number between 0 (equal sizes) and 100")
    return -power * np.log(1.0 + rng.permutation(clients))


def shares(log: Floats) -> Floats:
    shares = np.exp(log - log.max())
    return shares / shares.sum()


def rounded(amounts: Floats, total: int, start: float) -> Ints:
    """Whole numbers next to `amounts`, with the sum `total`; over a uniform `start` in [0, 1) their
    means are the amounts."""
    ends = np.floor(np.cumsum(amounts) + start).clip(max=total).astype(np.int64)
    ends[-1] = total
    return np.diff(ends, prepend=0)


def capped(log: Floats, room: Ints, count: int, start: float) -> Ints:
    """`count` samples in the proportions exp(log), nobody beyond its room: min(room, λ·exp(log))."""
    limit = np.where(room > 0, np.log(np.maximum(room, 1)), -np.inf)
    order = np.argsort(limit - log, kind="stable")  # who is full first comes first
    cap, log = room[order].astype(float), log[order]
    left = count - (np.cumsum(cap) - cap)  # for this client and later ones, if all before are full
    share = np.exp(log - np.logaddexp.accumulate(log[::-1])[::-1])
    full = int(np.append(left * share < cap, True).argmax())
    amounts = np.empty(len(room))
    amounts[order[:full]] = cap[:full]
    if full < len(room):
        amounts[order[full:]] = left[full] * share[full] * np.exp(log[full:] - log[full])
    taken = np.minimum(rounded(amounts, count, start), room)
    spare = np.cumsum(room - taken)  # what floating-point rounding left over goes to the first
    return taken + np.diff(np.minimum(spare, count - taken.sum()), prepend=0)


def fed(owner: Ints, clients: int) -> Ints:
    """Whoever owns nothing takes the first sample of whoever then owns most, one after the other."""
    sizes = np.bincount(owner, minlength=clients)
    needy = np.flatnonzero(sizes == 0)
    if not len(needy):
        return owner
    taller = np.cumsum(np.bincount(sizes)[::-1])  # clients as large as the largest, or one less, …
    level = len(taller) - 2 - int(np.searchsorted(np.cumsum(taller), len(needy)))
    gifts = np.maximum(sizes - level, 0)
    giver = np.repeat(np.arange(clients), gifts)
    nth = np.arange(len(giver)) - np.repeat(np.cumsum(gifts) - gifts, gifts)
    turn = np.lexsort((giver, nth - sizes[giver]))[: len(needy)]
    first = np.cumsum(sizes) - sizes
    given = np.argsort(owner, kind="stable")[(first[giver] + nth)[turn]]
    fed = owner.copy()
    fed[given] = needy
    return fed
