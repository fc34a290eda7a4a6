"""How many rounds a target needs, from a curve that has not reached it yet.

A curve is read by doublings of the number of rounds: g_1 is the progress of the last doubling (of log loss, or of
log(1 − accuracy)), g_0 that of the doubling before, and ρ = g_1/g_0. If the next doublings bring ρg_1, ρ²g_1, …, the
target is reached after r·2^n rounds. Where progress slows down, ρ is below one, and the target may be out of reach;
on a problem that converges linearly, it is two. The range is that of ρ a quarter higher and a fifth lower, a tenth on
either side, and of the seeds: it is wide because a short curve says little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fairlead.study.diagnose.ranges import Range
from fairlead.task.metrics import Better, reaches

FASTEST, SLOWEST = 2.0, 0.25
"""The range of ρ."""


def rounds_to(
    curves: Sequence[NDArray[np.float64]], target: float, better: Better, most: float
) -> Range:
    """The rounds to a target, from the metric by round for one or several seeds, of which those that ran for half of
    the rounds of the longest or less do not count. most: beyond it a number of rounds is as good as infinite.

    >>> e = np.exp(-0.1 * np.arange(33))
    >>> rounds_to([e], float(np.exp(-8)), "lower", 1e4)
    Range(value=80.0, low=72.0, high=110.0)
    >>> rounds_to([e], 0.5, "lower", 1e4)
    Range(value=7.0, low=7.0, high=7.0)
    """
    longest = max(len(curve) for curve in curves)
    each = [_one(curve, target, better) for curve in curves if 2 * (len(curve) - 1) > longest - 1]
    middle = float(np.median([one.value for one in each]))
    low, high = min(one.low for one in each), max(one.high for one in each)
    return Range(*(_whole(value, most) for value in (middle, low, high)))


def _one(curve: NDArray[np.float64], target: float, better: Better) -> Range:
    good = reaches(curve, target, better)
    if good.any():
        found = float(good.argmax())
        return Range(found, found, found)
    r = len(curve) - 1
    if r < 2:
        return Range(math.inf, r, math.inf)
    logs, goal = _logs(curve, better), float(_logs(np.array([target]), better)[0])
    now, half, quarter = (_smooth(logs, k) for k in (r, r // 2, r // 4))
    last, before, gap = half - now, quarter - half, now - goal
    if last <= 0:
        return Range(math.inf, r, math.inf)
    rho = min(FASTEST, max(SLOWEST, last / before)) if before > 0 and r >= 4 else 1.0
    ends = rho, min(FASTEST, 1.25 * max(rho, 1.0)), 0.8 * rho
    middle = r - r // 8 / 2  # of the rounds that were averaged
    value, low, high = (middle * 2 ** _doublings(gap, last, one) for one in ends)
    return Range(value, max(float(r), 0.9 * min(low, value)), 1.1 * max(high, value))


def _doublings(gap: float, last: float, rho: float) -> float:
    """The n with last·(ρ + ρ² + … + ρ^n) = gap; infinite if there is none.

    >>> _doublings(3.0, 1.0, 1.0), round(_doublings(6.0, 1.0, 2.0), 6), _doublings(2.0, 1.0, 0.5)
    (3.0, 2.0, inf)
    """
    if gap <= 0:
        return 0.0
    if abs(rho - 1) < 1e-9:
        return min(gap / last, 60.0)
    power = 1 + gap * (rho - 1) / (last * rho)
    return min(math.log(power) / math.log(rho), 60.0) if power > 0 else math.inf


def _logs(values: NDArray[np.float64], better: Better) -> NDArray[np.float64]:
    """Numbers that fall as the metric gets better: log of a positive loss, log of 1 − accuracy, or ± the metric."""
    error = values if better == "lower" else 1 - values
    if (error > 0).all():
        return np.log(error)
    return values if better == "lower" else -values


def _smooth(values: NDArray[np.float64], k: int) -> float:
    """The mean over the eighth of the rounds before k, at least one."""
    return float(values[k - k // 8 : k + 1].mean())


def _whole(value: float, most: float) -> float:
    return math.inf if value > most else float(math.ceil(value - 1e-9))
