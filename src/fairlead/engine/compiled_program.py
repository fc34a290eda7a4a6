"""Client programs whose parts are compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fairlead.engine.rolled import Program
from fairlead.engine.tracing import Key
from fairlead.gradients.capture import captured, compiled
from fairlead.gradients.copies import Copies


class CompiledProgram(Program):
    """A program whose parts are compiled, for inputs of one shape. tuned: several kernels are tried."""

    def __init__(self, program: Program, values: Mapping[Key, Any], tuned: bool) -> None:
        self.__dict__.update(program.__dict__)
        made = {key for entry in self.start for key in entry.outputs}
        later = {*self.left, *self.fixed, *self.carried.values()} & made
        self._made = list(later)
        self._read = list({k for entry in self.start for k in entry.reads() if k not in made})
        known = program.begin(values)
        slots = [t.contiguous() for t in program.first_slots(known)]
        self._device = next(iter(values.values())).device
        now = torch.full((1,), self.first, device=self._device)
        if self.loops:
            program.step(slots, known, now)  # gradients are captured before they are compiled
        ends = {key for entry in self.end for key in entry.outputs}
        self._left = [k for k in self.left if k not in ends and k not in self.carried]
        self._kept = self.fixed

        def begin(*given: Tensor) -> list[Tensor]:
            found = program.begin(dict(zip(self._read, given, strict=True)))
            return [found[key] for key in self._made]

        def step(*given: Tensor) -> list[Tensor]:
            rest = dict(zip(self._kept, given[len(slots) : -1], strict=True))
            return program.step(given[: len(slots)], rest, given[-1])

        def finish(*given: Tensor) -> list[Tensor]:
            rest = dict(zip(self._left, given[len(slots) :], strict=True))
            return list(program.finish(rest, given[: len(slots)]).values())

        given = [known[key] for key in self._kept]
        rest = [known[key] for key in self._left]
        inputs = [values[key] for key in self._read]
        self._begin = compiled(begin, inputs, tuned) if self.start else None
        self._step, self._copies = None, None
        if self.loops:
            loop = captured(step, [*slots, *given, now])
            if loop is None:
                self._step = step
            else:
                self._copies = Copies(loop, len(slots))
                more = self._copies.of(slots)
                self._step = compiled(loop, [*slots, *given, now, *more], tuned)
        self._finish = compiled(finish, [*slots, *rest], tuned) if self.end else None

    def begin(self, values: Mapping[Key, Any]) -> dict[Key, Any]:
        if self._begin is None:
            return super().begin(values)
        made = self._begin(*(values[key] for key in self._read))
        return {**values, **dict(zip(self._made, made, strict=True))}

    def first_slots(self, values: Mapping[Key, Any]) -> list[Any]:
        """Also the copies that are carried."""
        slots = [t.contiguous() for t in super().first_slots(values)]
        return slots if self._copies is None else [*slots, *self._copies.of(slots)]

    def step(self, slots: Sequence[Any], values: Mapping[Key, Any], now: Tensor | int) -> list[Any]:
        assert self._step is not None
        if isinstance(now, int):
            now = torch.full((1,), now, device=self._device)
        own, copies = self._apart(slots)
        return self._step(*own, *(values[k] for k in self._kept), now, *copies)

    def _apart(self, slots: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """What is carried, and the copies of it."""
        made = [t.contiguous() for t in slots]
        return made[: len(self.carried)], made[len(self.carried) :]

    def finish(self, values: Mapping[Key, Any], slots: Sequence[Any]) -> dict[str, Tensor]:
        if self._finish is None:
            return super().finish(values, slots[: len(self.carried)])
        found = self._finish(*self._apart(slots)[0], *(values[k] for k in self._left))
        return dict(zip(self.outputs, found, strict=True))
