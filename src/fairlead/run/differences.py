"""In what two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.run.history import History


def differences(one: Any, two: Any) -> dict[str, tuple[Any, Any]]:
    """The settings in which two stored runs differ, by dotted name."""
    first, second = flat(one.about), flat(two.about)
    ignored = ("began", "out", "after")  # when and where, not what
    names = [n for n in dict.fromkeys([*first, *second]) if n.split(".")[0] not in ignored]
    return {n: (first.get(n), second.get(n)) for n in names if first.get(n) != second.get(n)}


def first_difference(one: History, two: History) -> int | None:
    """The first round in which two histories differ, ignoring the time they took; None if they agree.

    >>> one = History([{"round": 0, "loss": 2.0, "seconds": 1.0}, {"round": 1, "loss": 1.0}])
    >>> two = History([{"round": 0, "loss": 2.0, "seconds": 9.0}, {"round": 1, "loss": 0.5}])
    >>> first_difference(one, two), first_difference(one, one)
    (1, None)
    """
    first, second = ({row["round"]: row for row in history.rows} for history in (one, two))
    for number in sorted({*first, *second}):
        a, b = first.get(number, {}), second.get(number, {})
        for name in {*a, *b} - {"seconds", "measure_seconds"}:
            x, y = a.get(name), b.get(name)
            if x != y and not (x != x and y != y):  # NaN equals NaN
                return int(number)
    return None


def flat(nested: Mapping[str, Any], under: str = "") -> dict[str, Any]:
    """A nested mapping flattened to dotted names.

    >>> flat({"method": {"lr": 0.1}, "seed": 0})
    {'method.lr': 0.1, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{under}{name}."))
        else:
            found[f"{under}{name}"] = value
    return found
