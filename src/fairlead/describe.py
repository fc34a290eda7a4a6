"""Settings as JSON, the same in every process; numbers with their nouns."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

TRUSTED = "trusted to be the same"
"""Among settings: the user says that this one is as it was."""


def described(thing: Any) -> Any:
    """Anything a run is set up with, as JSON takes it; data and functions by a digest or a name.

    >>> import fairlead as fl
    >>> described(fl.FedAvg(lr=0.1))["lr"]
    0.1
    """
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        fields = {f.name: described(getattr(thing, f.name)) for f in dataclasses.fields(thing)}
        return {"is": type(thing).__qualname__, **fields}
    if isinstance(thing, partial):
        parts = [described(part) for part in (thing.func, *thing.args)]
        return {"is": parts, **{k: described(v) for k, v in thing.keywords.items()}}
    if isinstance(thing, Tensor | np.ndarray):
        array = thing.detach().cpu().numpy() if isinstance(thing, Tensor) else thing
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
        return f"{array.dtype}{list(array.shape)} {digest}"
    if isinstance(thing, Mapping):
        return {str(k): described(v) for k, v in thing.items()}
    if isinstance(thing, list | tuple | range):
        return [described(part) for part in thing]
    if isinstance(thing, slice):
        return [thing.start, thing.stop]
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if callable(thing) and hasattr(thing, "__code__"):
        return _function(thing)
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def counted(count: int, noun: str) -> str:
    """A number with its noun, in the plural unless there is one.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _function(f: Any) -> str:
    """A function by its name and what it computes: its code, constants, defaults and closed-over values.

    >>> _function(lambda k: 0.1) == _function(lambda k: 0.2)
    False
    >>> _function(lambda k: 0.1) == _function(lambda k: 0.1)
    True
    """
    cells = [_contents(cell) for cell in f.__closure__ or ()]
    known = [_code(f.__code__), described(f.__defaults__), described(f.__kwdefaults__)]
    held = [c.__qualname__ if hasattr(c, "__code__") else described(c) for c in cells]
    text = repr([*known, held])
    return f"{f.__qualname__} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _code(code: Any) -> list[Any]:
    """What a code object does, without where it was written."""
    constants = [_code(c) if hasattr(c, "co_code") else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), constants, code.co_names, code.co_varnames]
