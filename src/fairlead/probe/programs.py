"""The client programs of probes by name, for a client that is elsewhere and runs only what it has agreed to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.core.method import Algorithm
from fairlead.errors import FairleadError
from fairlead.probe.base import Measure
from fairlead.probe.place import Probe
from fairlead.probe.trial import TRIAL, listened


def program_of(
    agreed: Sequence[Measure | Probe], name: str, method: Algorithm[Any, Any]
) -> Callable[..., Any]:
    """The program of one of the probes with this name, such as dissimilarity.gradient.

    >>> from fairlead.probe import Dissimilarity
    >>> program_of([Dissimilarity()], "dissimilarity.gradient", None).__name__
    'gradient'
    """
    probe_name, _, label = name.partition(".")
    probe = next((p for p in agreed if isinstance(p, Probe) and p.name == probe_name), None)
    if probe is None:
        raise FairleadError(
            f"the measure {probe_name} is not among those agreed on: add it to the agreement's measures on all sides"
        )
    if not label.startswith(TRIAL):
        return _own(probe, label)
    heard, _, inner = label.removeprefix(TRIAL).partition(".")
    return listened(method.program(inner), _own(probe, heard))


def _own(probe: Probe, label: str) -> Callable[..., Any]:
    """A client program of a probe: a method whose first argument is the client."""
    found = getattr(probe, label, None) if label.isidentifier() and label[0] != "_" else None
    first = next(iter(inspect.signature(found).parameters), "") if inspect.ismethod(found) else ""
    if found is None or first != "client":
        raise FairleadError(f"the measure {probe.name} has no client program named {label}")
    return found
