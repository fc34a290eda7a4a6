"""Step sizes: a number, or a schedule over rounds or over local steps.

A schedule is called with k = 0, 1, 2, …: the round, or with `per="step"` the local step counted
over all rounds (a round counts as many steps as its longest client runs). Any function of the
round is also a schedule.

>>> Exponential(0.1, 0.5)(2)
0.025
>>> [round(InverseSqrt(1.0)(k), 2) for k in range(4)]
[1.0, 0.71, 0.58, 0.5]
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from fairlead.errors import FairleadError, unknown


@dataclass(frozen=True, kw_only=True)
class _Per:
    per: Literal["round", "step"] = "round"


@dataclass(frozen=True)
class Schedule(_Per, ABC):
    """A step size that changes with k."""

    lr: float

    @abstractmethod
    def __call__(self, k: int) -> float: ...


@dataclass(frozen=True)
class Constant(Schedule):
    """lr."""

    def __call__(self, k: int) -> float:
        return self.lr


@dataclass(frozen=True)
class Exponential(Schedule):
    """lr·decay^k."""

    decay: float = 0.99

    def __call__(self, k: int) -> float:
        return self.lr * self.decay**k


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from lr at k = 0 to `floor` at k = `total`; `floor` from then on."""

    total: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.total < 1:
            raise FairleadError(f"the cosine's total is {self.total}: it must be at least 1")

    def __call__(self, k: int) -> float:
        progress = min(k / self.total, 1.0)
        return self.floor + (self.lr - self.floor) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class MultiStep(Schedule):
    """lr, multiplied by `decay` at each milestone."""

    milestones: tuple[int, ...]
    decay: float = 0.1

    def __call__(self, k: int) -> float:
        return self.lr * self.decay ** sum(k >= m for m in self.milestones)


@dataclass(frozen=True)
class InverseSqrt(Schedule):
    """lr/√(k + 1)."""

    def __call__(self, k: int) -> float:
        return self.lr / math.sqrt(k + 1)


@dataclass(frozen=True)
class SqrtDecay(Schedule):
    """lr/(√k + 1), used with per="step" by FedAvg-S in the saddle-point experiments."""

    def __call__(self, k: int) -> float:
        return self.lr / (math.sqrt(k) + 1)


Rate: TypeAlias = float | Callable[[int], float]

SMALLEST = 1e-30  # smaller steps vanish in float32 and cannot be divided by

SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "exponential": Exponential,
    "cosine": Cosine,
    "multistep": MultiStep,
    "inverse-sqrt": InverseSqrt,
    "sqrt-decay": SqrtDecay,
}


def rate_at(rate: Rate, round: int, step: int) -> float:
    """The step size in a round, at a step counted over all rounds."""
    if callable(rate):
        return rate(step if getattr(rate, "per", "round") == "step" else round)
    return rate


def check_rate(name: str, rate: Rate, rounds: int, steps: int) -> None:
    """Raise unless the step size is positive and finite throughout the run."""
    if not callable(rate) and not isinstance(rate, int | float):
        raise FairleadError(f"{name} is {rate!r}: give a number or a schedule")
    last = steps if getattr(rate, "per", "round") == "step" else rounds
    for k in range(last if callable(rate) else 1):
        value = rate_at(rate, k, k)
        if not (math.isfinite(value) and value > SMALLEST):
            where = f" at k = {k}" if callable(rate) else ""
            raise FairleadError(f"{name} is {value}{where}: step sizes must be positive and finite")


def scaled(rate: Schedule, factor: float) -> Schedule:
    """The same schedule with its step sizes multiplied by `factor`.

    >>> scaled(Exponential(0.1, 0.9), 10).lr
    1.0
    """
    changed = {"lr": rate.lr * factor}
    if isinstance(rate, Cosine):
        changed["floor"] = rate.floor * factor
    return replace(rate, **changed)


def parse(lr: float, text: str | None, rounds: int) -> Rate:
    """A schedule from its command-line form, name:arguments; a trailing /step counts local steps
    instead of rounds.

    >>> parse(0.1, "exponential:0.5", 10)(1)
    0.05
    >>> parse(0.1, "multistep:5,8", 10)(6)
    0.010000000000000002
    """
    if text is None:
        return lr
    text, _, per = text.partition("/")
    if per not in ("", "round", "step"):
        raise unknown("schedule unit", per, ["round", "step"])
    rate = _parse(lr, text, rounds)
    return replace(rate, per=per or "round")


def _parse(lr: float, text: str, rounds: int) -> Schedule:
    name, _, rest = text.partition(":")
    if name not in SCHEDULES:
        raise unknown("schedule", name, SCHEDULES)
    numbers: Iterable[str] = [part for part in rest.split(",") if part]
    try:
        if name == "multistep":
            return MultiStep(lr, tuple(int(n) for n in numbers))
        if name == "cosine":
            return Cosine(lr, *([int(n) for n in numbers] or [rounds]))
        return SCHEDULES[name](lr, *(float(n) for n in numbers))
    except (TypeError, ValueError) as error:
        raise FairleadError(
            f"cannot parse the schedule '{text}': write for example exponential:0.99, "
            "cosine:100, multistep:50,80 or inverse-sqrt"
        ) from error
