"""What a run is set up with, in words that are the same in every process."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor


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
    return getattr(thing, "__qualname__", type(thing).__qualname__)
