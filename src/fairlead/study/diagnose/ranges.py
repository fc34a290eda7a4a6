"""Numbers with a range, and how they are said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """A number and the range in which it is expected.

    >>> str(Range(30, 20, 45)), str(Range(0.5, 0.5, 0.5)), str(Range(math.inf, 200, math.inf))
    ('30 (20 … 45)', '0.5', '> 200')
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return short(self.value)
        if math.isinf(self.value):
            return f"> {short(self.low)}"
        return f"{short(self.value)} ({short(self.low)} … {short(self.high)})"

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def times(self, factor: float) -> Range:
        """The range of a multiple."""
        return Range(self.value * factor, self.low * factor, self.high * factor)


def of_seeds(values: Sequence[float]) -> Range:
    """The range of a mean over few seeds: as far on each side as the values lie apart. One value says nothing of its
    range, for which a quarter on each side is a guess.

    >>> of_seeds([1.0, 2.0]), of_seeds([4.0])
    (Range(value=1.5, low=0.5, high=2.5), Range(value=4.0, low=3.0, high=5.0))
    """
    mean = sum(values) / len(values)
    apart = max(values) - min(values) if len(values) > 1 else abs(mean) / 4
    if math.isnan(apart):  # all are infinite
        apart = 0.0
    return Range(mean, mean - apart, mean + apart)


def of_ratios(values: Sequence[float]) -> Range:
    """The same for ratios, by their logarithms; for one value a factor of three on each side is a guess.

    >>> of_ratios([2.0, 8.0])
    Range(value=4.0, low=1.0, high=16.0)
    >>> of_ratios([4.0])
    Range(value=4.0, low=1.3333333333333335, high=12.0)
    """
    logs = [math.log2(value) if value > 0 else -math.inf for value in values]
    mean = sum(logs) / len(logs)
    apart = max(logs) - min(logs) if len(logs) > 1 else math.log2(3)
    apart = 0.0 if math.isnan(apart) else apart
    return Range(2**mean, 2 ** (mean - apart), 2 ** (mean + apart))


def short(value: float) -> str:
    """A number with three digits, whole if it is large.

    >>> short(0.12345), short(123456.0), short(12.0), short(math.inf)
    ('0.123', '123,456', '12', '∞')
    """
    if math.isinf(value):
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
