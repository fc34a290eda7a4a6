"""What the server expects of an upload, so that anything else is refused before it counts.

The server tries every client program once on a sample of its own. So it knows the names, lengths and types of what
clients send without trusting the first that answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairlead.compress import Compressor, Noise
from fairlead.core.message import Message
from fairlead.core.records import Upload
from fairlead.data.batches import Batches
from fairlead.deploy.agreement import Agreement, compressors_of
from fairlead.deploy.local_work import LocalWork
from fairlead.deploy.wire import MOST_HEADER, Reply
from fairlead.engine.api import Request
from fairlead.errors import FairleadError
from fairlead.probe.base import Measure, Sums
from fairlead.task.task import Task

MOST_GRADIENTS = 1 << 50


@dataclass(frozen=True)
class Vector:
    """One vector of an upload: its length and type, and its compressor, by number, if it has one."""

    d: int
    dtype: torch.dtype
    code: int | None = None

    @property
    def most(self) -> int:
        """An upper bound on its bytes; a code may name coordinates with eight bytes each."""
        return self.d * (self.dtype.itemsize + 8 * (self.code is not None)) + 1024


@dataclass(frozen=True)
class Form:
    """What an upload of one program looks like."""

    like: Upload
    """An upload with the same fields."""
    vectors: Mapping[str, Vector]
    more: Mapping[str, Vector]
    """Buffers, and the sums of measures inside the program."""
    nominal: float
    """Bits of an upload as papers count them."""

    @property
    def most(self) -> int:
        """An upper bound on the bytes of a reply."""
        return 2 * MOST_HEADER + sum(v.most for v in self._all.values())

    @property
    def _all(self) -> dict[str, Vector]:
        return {**self.vectors, **self.more}

    def check(self, reply: Reply, message: Message) -> None:
        """Refuse an upload of another form."""
        names = [f.name for f in message.fields]
        if sorted(names) != sorted(self._all):
            raise FairleadError(f"its vectors are {names}: {sorted(self._all)} are expected")
        for f in message.fields:
            v = self._all[f.name]
            if (f.d, f.dtype, f.coded) != (v.d, v.dtype, v.code is not None):
                raise FairleadError(
                    f"its vector {f.name} is {f.d} numbers of {f.dtype}: {v.d} of {v.dtype} are expected"
                )
        if {n: c[0] for n, c in reply.codes.items()} != {
            n: v.code for n, v in self.vectors.items() if v.code is not None
        }:
            raise FairleadError("its vectors are encoded by other compressors than the method's")
        if not 0 <= reply.gradients <= MOST_GRADIENTS:
            raise FairleadError(f"its count of gradients is {reply.gradients}")

    def read(
        self, reply: Reply, message: Message, compressors: list[Compressor]
    ) -> tuple[Upload, dict[str, Tensor]]:
        """The upload of a checked message, and what came with it; refused if they are not finite."""
        found: dict[str, Tensor] = {}
        for name, v in self._all.items():
            by = noise = None
            if v.code is not None:
                by = compressors[v.code]
                noise = Noise(torch.tensor([reply.codes[name][1:]]))
            value = message.value(name, by, noise)
            if value.shape != (v.d,) or value.dtype != v.dtype:
                raise FairleadError(f"its vector {name} has shape {tuple(value.shape)}")
            if not bool(torch.isfinite(value).all()):
                raise FairleadError(f"its vector {name} holds NaN or infinite values")
            found[name] = value
        more = {name: found.pop(name) for name in self.more}
        return self.like.filled(found), more


class Forms:
    """The forms of the uploads of a run's programs."""

    def __init__(self, sample: Task, agreement: Agreement) -> None:
        self.work = LocalWork(sample, agreement, 0)
        self.work.session.batches = Batches(steps=1)  # of all samples
        self.compressors = compressors_of(self.work.session.method)
        self._known: dict[Any, Form] = {}

    def of(self, request: Request, idle: bool) -> Form:
        """The form of what a request asks for."""
        if request.measuring:  # its uploads may have other lengths each time
            return self._tried(request, idle)
        key = request.program, idle, tuple(sorted(request.broadcast)), inside(request)
        if key not in self._known:
            self._known[key] = self._tried(request, idle)
        return self._known[key]

    def _tried(self, request: Request, idle: bool) -> Form:
        device = self.work.session.task.device
        down = {
            n: v.to(device) if isinstance(v, Tensor) else v for n, v in request.broadcast.items()
        }
        done = self.work.run(
            request.program, down, 0, request.exchange, 0, idle, request.measuring, inside(request)
        )
        outbox, vectors = done.client.outbox, {}
        for field in outbox.fields(done.upload):
            by = outbox.sent[field.name][0].by if field.coded else None
            if by is not None and by not in self.compressors:
                raise FairleadError(
                    f"{by} is not among the method's settings: make it one, so that the server knows it"
                )
            code = None if by is None else self.compressors.index(by)
            vectors[field.name] = Vector(field.d, field.dtype, code)
        more = {name: Vector(v.numel(), v.dtype) for name, v in done.more.items()}
        like = done.upload.map(lambda v: torch.empty(0))
        return Form(like, vectors, more, float(done.client.bits(done.upload)[1]))


def inside(request: Request) -> tuple[str, ...]:
    """The measures that clients take inside the program of a request; others look at uploads only."""
    return tuple(m.name for m in request.measures if type(m).point is not Measure.point)


def measured_of(more: Mapping[str, Tensor], device: torch.device) -> Sums:
    """The sums of measures among what came with an upload."""
    found: Sums = {}
    for name, v in more.items():
        _, measure, key = name.split("/", 2)
        found.setdefault(measure, {})[key] = v.to(device)
    return found
