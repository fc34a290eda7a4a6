"""A trial round: the method's round from the present state with clients that are listened to; nothing is kept.

Clients mark their points with `step.at(y)`; an `Ear` between the method's program and its client notes them and what
the client encodes. Measures of local points run their own code there, before anything is uploaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from fairlead.core.method import Broadcast, Client, Cohort, Replies, Step
from fairlead.core.records import Upload
from fairlead.probe.place import ProbedClient
from fairlead.schedules import Rate

TRIAL = "trial."
"""How the labels of programs that are listened to begin."""


class Heard(Upload):
    """A method's upload, and the means of what was heard."""

    kind: ClassVar[type[Upload]] = Upload
    """The class of the method's upload."""
    sent: Mapping[str, Tensor]
    heard: Mapping[str, Tensor]


class HeardEach(Heard):
    """The same, with what was heard client by client."""

    each: ClassVar[tuple[str, ...]] = ("heard",)


@cache
def _heard(kind: type[Upload], each: bool) -> type[Heard]:
    """The class of what is sent when a program with this upload is listened to."""
    base = HeardEach if each else Heard
    return cast(type[Heard], type(base.__name__, (base,), {"kind": kind}))


def listened(inner: Callable[..., Any], hear: Callable[..., Any]) -> Callable[..., Heard]:
    """A method's client program with an ear in between. What is sent to `hear` has a name that begins with _."""

    def program(client: ProbedClient, **down: Any) -> Heard:
        own = {key[1:]: down.pop(key) for key in list(down) if key.startswith("_")}
        start = next((v for v in down.values() if isinstance(v, Tensor)), None)
        ear = Ear(client, start)
        returned = inner(ear, **down)
        upload = client.settled(returned[0] if isinstance(returned, tuple) else returned)
        found, each = hear(client, ear, **own)
        return _heard(type(upload), each)(sent=upload.tensors(), heard=found)

    return program


class Ear(Client[Any]):
    """A client whose local points and encoded vectors are noted."""

    def __init__(self, client: ProbedClient, start: Tensor | None) -> None:
        self.client, self.memory, self.start = client, client.memory, start
        self.points: list[Tensor] = []
        """The points after steps k = 1 … K."""
        self.coded: list[tuple[Upload, Upload]] = []
        """Uploads before and after a compressor."""

    @property
    def moved(self) -> Any:
        return self.client.moved

    def steps(self, lr: Rate) -> Iterator[Step]:
        for step in self.client.steps(lr):
            yield _EarStep(step, self)

    def grad(self, x: Tensor, batch: int | None = None) -> Tensor:
        return self.client.grad(x, batch)

    def encode(self, upload: Any, by: Any) -> Any:
        if by is None:
            return upload
        upload = self.client.settled(upload)
        sent = self.client.encode(upload, by)
        self.coded.append((upload, sent))
        return sent

    def noise(self, like: Tensor) -> Tensor:
        return self.client.noise(like)

    def path(self, steps: int) -> Tensor | None:
        """The points as (…, steps, d); a client that has run out of steps stays where it is."""
        if not self.points or self.start is None:
            return None
        y = self.points + [self.points[-1]] * (steps - len(self.points))
        return torch.stack(list(torch.broadcast_tensors(*y)), -2)


class _EarStep(Step):
    def __init__(self, step: Step, ear: Ear) -> None:
        self.step, self.ear, self.lr = step, ear, step.lr

    def grad(self, y: Tensor) -> Tensor:
        return self.step.grad(y)

    def at(self, y: Tensor) -> Tensor:
        self.ear.points.append(self.ear.client.settled(y))
        return self.step.at(y)


class TrialCohort(Cohort):
    """A cohort whose clients are listened to.

    ask: runs one exchange and returns means and rows by name, and the class of the uploads. hear: a function
    (client, ear, **sent) → vectors by name.
    """

    def __init__(
        self,
        cohort: Cohort,
        ask: Callable[
            [str, Callable[..., Any], Mapping[str, Broadcast]],
            tuple[dict[str, Tensor], dict[str, Tensor], Replies[Any], type[Heard]],
        ],
        program: Callable[[Callable[..., Any]], tuple[str, Callable[..., Any]]],
        hear: Callable[..., Any],
        sent: Mapping[str, Broadcast],
    ) -> None:
        self.cohort, self.ask, self.program = cohort, ask, program
        self.hear, self.extra = hear, sent
        self.first, self.rate = cohort.first, cohort.rate
        self.heard: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cohort, name)

    def noise(self, like: Tensor) -> Tensor:
        return self.cohort.noise(like)

    def run(self, program: Callable[..., Any], **broadcast: Broadcast) -> Replies[Any]:
        name, inner = self.program(program)
        extra = {f"_{key}": value for key, value in self.extra.items()}
        label = f"{TRIAL}{self.hear.__name__}.{name}"
        heard = listened(inner, self.hear)
        sums, rows, replies, kind = self.ask(label, heard, {**broadcast, **extra})
        means = _under("sent", sums)
        self.heard |= {**_under("heard", sums), **_under("heard", rows)}
        each, sent = _under("sent", rows), kind.kind
        return replace(replies, mean=sent(**means), rows=sent(**each) if each else None)


def _under(group: str, flat: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The vectors of a group, by their own names."""
    return {k.removeprefix(f"{group}/"): v for k, v in flat.items() if k.startswith(f"{group}/")}
