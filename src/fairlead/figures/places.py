"""Which line style each method has: the same in every figure and report, whatever it is shown with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count

COLOURS = 8
KNOWN = {
    "fedsgd": 0, "minibatchsgd": 0, "fedavg": 1, "mirror-descent": 1, "fedprox": 2, "fednova": 2, "scaffold": 3,
    "scaffold-s": 3, "mime": 4, "mimelite": 4, "fedglomo": 5, "fedlomo": 5, "fedpvr": 6, "scaffnew": 6,
    "fedadam": 7, "feddyn": 7,
}  # fmt: skip
"""The colours of some methods; if one is taken, and for all other methods, the first free one is used."""


def places(labels: Sequence[str]) -> list[int]:
    """A place for each label: its colour is the place modulo eight, and its dashes differ from eight to eight.
    Labels of one method, such as "FedAvg, lr 0.1" and "FedAvg, lr 0.3", share a colour.

    >>> places(["Scaffold", "FedAvg, lr 0.1", "FedAvg, lr 0.3", "mine"])
    [3, 1, 9, 0]
    """
    methods = [re.split("[,:]", label)[0].strip() for label in labels]
    slots: dict[str, int] = {}
    for method in methods:
        wanted = KNOWN.get(method.lower())
        if wanted is not None and wanted not in slots.values():
            slots.setdefault(method, wanted)
    for method in methods:
        if method not in slots:
            slots[method] = next(k for k in count() if k not in slots.values())
    found: list[int] = []
    for method in methods:
        others = {place for other, place in slots.items() if other != method}
        found.append(
            next(k for k in count(slots[method], COLOURS) if k not in found and k not in others)
        )
    return found
