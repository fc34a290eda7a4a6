"""The search space: lists of values and ranges, and methods with settings from it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from fairlead.core.method import Algorithm
from fairlead.describe import described
from fairlead.errors import FairleadError, unknown
from fairlead.schedules import Schedule
from fairlead.study.compare import with_value as with_value

GRID = (10.0, 3.0, 1.0, 0.3, 0.1)
"""The default step sizes."""

Values: TypeAlias = Sequence[Any] | Mapping[str, Any] | tuple[float, ...]
Method: TypeAlias = Algorithm[Any, Any]


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, log-uniform with `log`; with `whole` only integers."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def samples(self) -> list[float]:
        """Its ends."""
        return [self.low, self.high]


@dataclass(frozen=True)
class Choices:
    """A list of values, keyed by the number or string stored for each."""

    values: dict[Any, Any]

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers, which have an order and edges."""
        return all(not isinstance(word, str) for word in self.values)

    def samples(self) -> list[Any]:
        """The stored number or string of each value."""
        return list(self.values)


Searched: TypeAlias = Range | Choices


def searched(name: str, given: Values, whole: bool = False) -> Searched:
    """A list (or a mapping from names to values) as choices; (low, high[, "log"]) as a range.

    >>> searched("server_lr", (0.1, 3.0, "log"))
    Range(low=0.1, high=3.0, log=True, whole=False)
    >>> searched("warm_start", [True, False]).samples()
    ['true', 'false']
    """
    if isinstance(given, Mapping):
        return Choices(_nonempty(name, dict(given)))
    if isinstance(given, tuple):
        return _range(name, given, whole)
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise FairleadError(f'{name} is {given!r}: give a list of values, or (low, high, "log")')
    words = [_word(value) for value in given]
    if not all(_is_number(word) for word in words):
        words = [str(word) for word in words]
    found = dict(zip(words, given, strict=True))
    if len(found) < len(given):
        raise FairleadError(f"{name} has the values {words}: give each of them once")
    return Choices(_nonempty(name, found))


def _nonempty(name: str, values: dict[Any, Any]) -> dict[Any, Any]:
    if not values:
        raise FairleadError(f"the grid of {name} is empty: give at least one value")
    return values


def _range(name: str, given: tuple[Any, ...], whole: bool) -> Range:
    match given:
        case (low, high) | (low, high, "linear" | "log") if _is_number(low) and _is_number(high):
            log = given[2:] == ("log",)
            if (0 if log else -math.inf) < low < high < math.inf:
                return Range(low, high, log, whole)
    raise FairleadError(
        f"the range of {name} is {given}: give (low, high) or (low, high, 'log') with low < high, and "
        "low above zero for 'log'; write choices as a list"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _word(value: Any) -> Any:
    """A number or string unchanged; anything else as a string that is the same in every process."""
    if _is_number(value) or isinstance(value, str):
        return value
    if dataclasses.is_dataclass(value):
        return repr(value)
    return json.dumps(described(value))


@dataclass(frozen=True)
class Space:
    """The searched settings of one method.

    >>> import fairlead as fl
    >>> space = Space.of(fl.FedProx(lr=1.0), {"lr": [1.0, 0.1], "mu": [0.1, 1.0]})
    >>> space.points()[1], space.apply(fl.FedProx(lr=1.0), {"lr": 0.1, "mu": 0.5}).mu
    ({'lr': 1.0, 'mu': 1.0}, 0.5)
    """

    parts: dict[str, Searched]

    @classmethod
    def of(cls, method: Method, given: Mapping[str, Values]) -> Space:
        """The settings that the method has; every value and range end is checked right away."""
        kinds = fields_of(method)
        parts = {
            name: searched(name, values, kinds[name].split(" |")[0] == "int")
            for name, values in given.items()
            if name in kinds
        }
        space = cls(parts)
        for name, part in parts.items():
            for word in part.samples():
                space.apply(method, {name: word})
        return space

    def apply(self, method: Method, settings: Mapping[str, Any]) -> Method:
        """The method with these settings; a schedule keeps its shape."""
        for name, word in settings.items():
            part = self.parts.get(name)
            value = part.values.get(word, word) if isinstance(part, Choices) else word
            method = changed(method, name, value)
        return method

    def points(self) -> list[dict[str, Any]]:
        """Every combination of the listed values."""
        lists: list[list[Any]] = []
        for name, part in self.parts.items():
            if isinstance(part, Range):
                raise FairleadError(
                    f"the grid needs a list of values for {name}, not a range: give a list, or use "
                    'sampler="tpe"'
                )
            lists.append(part.samples())
        return [dict(zip(self.parts, point, strict=True)) for point in itertools.product(*lists)]


def check_names(methods: Mapping[str, Method], names: Sequence[str]) -> None:
    """Reject a setting that no method has."""
    known = {name for method in methods.values() for name in fields_of(method)}
    for name in names:
        if name not in known:
            raise unknown(f"setting of {' and '.join(methods)}", name, known)


def fields_of(method: Method) -> dict[str, str]:
    """A method's settings and their types, including those of a wrapped method."""
    own = {f.name: str(f.type) for f in dataclasses.fields(cast(Any, method)) if f.init}
    inner = getattr(method, "method", None)
    if isinstance(inner, Algorithm):
        own = {**fields_of(inner), **{name: kind for name, kind in own.items() if name != "method"}}
    return {n: kind for n, kind in own.items() if n != "domain" and n not in method.refuses}


def changed(method: Method, name: str, value: Any) -> Method:
    """The method with one setting replaced."""
    if name == "lr":
        rate: Any = cast(Any, method).lr
        return method.with_lr(with_value(rate, value))
    record = cast(Any, method)
    if name not in {field.name for field in dataclasses.fields(record)}:
        return dataclasses.replace(record, method=changed(record.method, name, value))
    current = getattr(method, name)
    if isinstance(current, Schedule) and _is_number(value):
        value = with_value(current, value)
    try:
        return dataclasses.replace(record, **{name: value})
    except TypeError as error:
        kind = type(method).__name__
        raise FairleadError(f"{kind} does not accept {value!r} for {name}: {error}") from error
