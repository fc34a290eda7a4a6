"""Whether what is continued has the same settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.describe import TRUSTED
from fairlead.errors import FairleadError
from fairlead.task.objective import UNKNOWN


def check_same(
    what: str,
    then: Mapping[str, Any],
    now: Mapping[str, Any],
    shown: Callable[[Any], str] = str,
    advice: str = "",
) -> None:
    """Raise an error if what is continued has other settings. what: the beginning of the sentence, such as
    "x is of a run". advice: its end."""
    for name in now:
        found = difference("", then.get(name), now[name])
        if found is not None:
            where, before, after = found
            more = advice
            if where.startswith("objective"):
                more = f"; if it is the same, say so with task.replace(trust=True){advice}"
            if isinstance(after, str) and after.startswith(UNKNOWN):
                raise FairleadError(
                    f"{what} whose {where.removeprefix('objective.').removesuffix(' = ')} {after}{more}"
                )
            raise FairleadError(
                f"{what} with other settings: {name} was {where}{shown(before)}, now it is "
                f"{where}{shown(after)}{more}"
            )


def difference(path: str, then: Any, now: Any) -> tuple[str, Any, Any] | None:
    """The first setting that differs or cannot be compared, such as ("lr = ", 0.1, 0.2)."""
    if now == TRUSTED:
        return None
    unknown = isinstance(now, str) and now.startswith(UNKNOWN)
    if then == now and not unknown and not isinstance(now, Mapping):
        return None
    if isinstance(then, Mapping) and isinstance(now, Mapping) and then.keys() == now.keys():
        start = path.removesuffix(" = ")
        inner = (difference(f"{start}.{key} = ".lstrip("."), then[key], now[key]) for key in now)
        return next((found for found in inner if found is not None), None)
    return path, then, now
