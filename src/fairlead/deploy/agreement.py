"""What the server and all clients of a federation must agree on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.compress import Compressor
from fairlead.core.method import Algorithm
from fairlead.data.batches import Batches
from fairlead.describe import described
from fairlead.errors import FairleadError
from fairlead.probe import Measure, Probe
from fairlead.run.measuring import split
from fairlead.task.task import Task


@dataclass(frozen=True)
class Agreement:
    """The method, the number of clients, their local work and the seed: the same on the server and on every
    client.

    method: settings that come from a task's constants must be numbers here. clients: how many there are;
    they are numbered from 0. batches: the local work of every client, see `fl.Batches`. measures: what clients let the
    server measure, such as `fl.measure.OnClients()`; each says in `leaves` what leaves a client for it.

    >>> import fairlead as fl
    >>> Agreement(fl.Scaffold(lr=0.1), clients=4, batches=fl.Batches(batch_size=8, steps=5)).clients
    4
    """

    method: Algorithm[Any, Any]
    clients: int
    batches: Batches = field(default_factory=Batches)
    seed: int = 0
    measures: Sequence[Measure | Probe] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.method, Algorithm):
            raise FairleadError(
                f"the method is {self.method!r}: pass an object such as fl.FedAvg(lr=0.1)"
            )
        if not isinstance(self.clients, int) or self.clients < 1:
            raise FairleadError(f"clients is {self.clients}: must be a number of at least 1")
        object.__setattr__(self, "measures", tuple(self.measures))
        split(self.measures)

    def bound(self, task: Task) -> Algorithm[Any, Any]:
        """The method for a task's model."""
        return self.method.settled(None).bind(task.layers, task.domain).to(task.device)

    def digest(self, task: Task) -> str:
        """The same for all who agree, also on the model's parameters and their precision."""
        layers = {name: [at.start, at.stop] for name, at in task.layers.items()}
        text = json.dumps([described(self), layers, task.buffer_dim, str(task.dtype)])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def compressors_of(method: Algorithm[Any, Any]) -> list[Compressor]:
    """The compressors among a method's settings, in the order of the settings."""
    found: list[Compressor] = []
    for setting in dataclasses.fields(method):  # pyright: ignore[reportArgumentType]
        value = getattr(method, setting.name)
        if isinstance(value, Compressor):
            found.append(value)
        elif isinstance(value, Algorithm):
            found += compressors_of(value)
    return found
