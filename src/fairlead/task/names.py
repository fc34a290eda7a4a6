"""Splits and models by name, for the command line."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from fairlead.data.splits import SPLITS, Split, by_id
from fairlead.errors import FairleadError, unknown


def split_by_name(
    name: str,
    labels: Any,
    clients: int,
    value: float | None,
    seed: int,
    groups: Tensor | None = None,
) -> Split:
    """A split from its name and its value (percent, alpha, shards per client, or for by-id the minimum
    number of samples per client)."""
    if name == "by-id":
        if groups is None:
            raise FairleadError("the data do not have clients of their own: use another split")
        return by_id(groups.numpy(), 1 if value is None else _integer(name, value))
    if name not in SPLITS:
        raise unknown("split", name, [*SPLITS, "by-id"])
    if name == "iid":
        if value is not None:
            raise FairleadError("the iid split has no value: leave out --split-value")
        return SPLITS["iid"](labels, clients, seed)
    number = SPLIT_VALUES[name] if value is None else value
    chosen = _integer(name, number) if name == "shards" else number
    return SPLITS[name](labels, clients, chosen, seed)


def _integer(name: str, value: float) -> int:
    if not (math.isfinite(value) and value == int(value)):
        raise FairleadError(f"the split {name} needs an integer, not {value}")
    return int(value)


SPLIT_VALUES = {
    "similarity": 0.0, "dirichlet": 0.1, "dirichlet-balanced": 0.1, "dirichlet-sliced": 0.1,
    "shards": 2, "quantity": 0.5,
}  # fmt: skip


def mlp_widths(name: str) -> list[int] | None:
    """The widths of hidden layers in mlp:600x600; None for other names.

    >>> mlp_widths("mlp:600x300")
    [600, 300]
    """
    kind, colon, text = name.partition(":")
    if kind != "mlp" or not colon:
        return None
    widths = text.split("x")
    if not all(w.isdecimal() and int(w) > 0 for w in widths):
        raise FairleadError(f"model is '{name}': write the widths of hidden layers as mlp:600x600")
    return [int(w) for w in widths]
