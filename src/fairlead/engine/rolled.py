"""Client programs as straight-line operators around one loop, so that their size does not grow with the steps.

A program is run once on tensors without values, for a few local steps, while every operator is noted (see
`tracing`). From some step on all steps issue the same operators: on values made before the loop (they stay), in
the same step, or at the same place up to three steps earlier (they are carried from step to step). That step is
the body of a loop; what comes before it and after it is run once. Gradients are single entries of the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.utils._pytree import tree_flatten, tree_unflatten

from fairlead.engine.tracing import BEFORE, Entry, Key, Recorder, Untraceable

TRACED = 7
"""Steps that are traced."""
FURTHEST = 3
"""How many steps back a step may reach."""
_aten = torch.ops.aten
NOW = object()
"""Among the arguments of an operator: the number of the present step."""
DIFFERS = object()
"""In the place of an argument on which the steps do not agree."""


@dataclass
class Program:
    """A program: entries before the loop, in its body, and after it."""

    start: list[Entry]
    body: list[Entry]
    end: list[Entry]
    first: int
    """Steps before the loop."""
    carried: dict[Key, Any]
    """What the body reads of earlier steps, and what that is in the loop's first step."""
    outputs: dict[str, Any]

    @property
    def loops(self) -> bool:
        """Whether it has a loop."""
        return bool(self.body)

    @property
    def fixed(self) -> list[Key]:
        """What the body reads that is made before the loop."""
        own = {*self.carried, *(key for entry in self.body for key in entry.outputs)}
        return list(dict.fromkeys(k for e in self.body for k in e.reads() if k not in own))

    @property
    def left(self) -> set[Key]:
        """What is needed after the loop: outputs, and what is read on the way to them."""
        ends = {k for entry in self.end for k in entry.reads()}
        return ends | {key for key in self.outputs.values() if type(key) is Key}

    def begin(self, values: Mapping[Key, Any]) -> dict[Key, Any]:
        """What is known before the loop, from the inputs."""
        found = dict(values)
        execute(self.start, found)
        return found

    def first_slots(self, values: Mapping[Key, Any]) -> list[Any]:
        """What is carried into the loop's first step."""
        like = {k: t for e in self.body for k, t in zip(e.outputs, e.like, strict=True)}
        found = []
        for slot, begin in self.carried.items():
            t = like[slot._replace(step=0)]
            if begin is None:  # only read after a step has written it
                found.append(torch.zeros(t.shape, dtype=t.dtype, device=t.device))
            else:
                found.append((values[begin] if type(begin) is Key else begin).expand(t.shape))
        return found

    def step(self, slots: Sequence[Any], values: Mapping[Key, Any], now: Tensor | int) -> list[Any]:
        """One step of the loop: what is carried on. now: the step's number, also as a tensor (1,)."""
        found: dict[Key, Any] = {key: values[key] for key in self.fixed}
        found.update(earlier := dict(zip(self.carried, slots, strict=True)))
        execute(self.body, found, now)
        nearer = (slot._replace(step=slot.step + 1) for slot in self.carried)
        return [found[key] if key.step == 0 else earlier[key] for key in nearer]

    def run(self, values: Mapping[Key, Any], steps: int) -> dict[str, Tensor]:
        """The outputs of all steps, from the inputs."""
        known = self.begin(values)
        slots = self.first_slots(known)
        for k in range(self.first, steps if self.loops else 0):
            slots = self.step(slots, known, k)
        return self.finish(known, slots)

    def finish(self, values: Mapping[Key, Any], slots: Sequence[Any]) -> dict[str, Tensor]:
        """The outputs, from what is known before the loop and what it leaves."""
        found = {**values, **dict(zip(self.carried, slots, strict=True))}
        execute(self.end, found)
        return {n: found[k] if type(k) is Key else k for n, k in self.outputs.items()}


def execute(entries: Sequence[Entry], values: dict[Key, Any], now: Any = None) -> None:
    """Run the operators on values by key; what nothing needs any more is let go."""
    for entry in entries:
        leaves = [values[leaf] if type(leaf) is Key else leaf for leaf in entry.leaves]
        if any(leaf is NOW for leaf in leaves):
            out = leaves[0][now] if isinstance(now, int) else leaves[0].index_select(0, now)[0]
        else:
            args, kwargs = tree_unflatten(leaves, entry.spec)
            out = entry.run(*args, **kwargs)
        results = (t for t in tree_flatten(out)[0] if isinstance(t, Tensor))
        values.update(zip(entry.outputs, results, strict=True))
        for key in entry.done:
            del values[key]


def rolled(recorder: Recorder, outputs: Mapping[str, Tensor]) -> Program:
    """The program that was recorded, with its steps as a loop."""
    out = {name: recorder.key(t) for name, t in outputs.items()}
    entries = _needed(recorder.entries, out)
    before, after = entries.pop(BEFORE), entries.pop(TRACED, [])
    steps = [entries[k] for k in sorted(entries)]
    if not steps:
        return _finished(Program(before, [], after, 0, {}, out))
    for first in range(TRACED - FURTHEST - 1):
        loop = _Loop(steps, first)
        if loop.found() and loop.closes(after, out):
            start = [*before, *(entry for step in steps[:first] for entry in step)]
            end = [replace(e, leaves=[loop.last(leaf) for leaf in e.leaves]) for e in after]
            left = {name: loop.last(key) for name, key in out.items()}
            return _finished(Program(start, loop.body, end, first, loop.carried(), left))
    raise Untraceable("its local steps differ from each other")


def unrolled(recorder: Recorder, outputs: Mapping[str, Tensor]) -> Program:
    """The program that was recorded, without a loop."""
    out = {name: recorder.key(t) for name, t in outputs.items()}
    entries = _needed(recorder.entries, out)
    return _finished(Program([e for k in sorted(entries) for e in entries[k]], [], [], 0, {}, out))


class _Loop:
    """The steps from `first` on, as a body that is the same for all of them."""

    def __init__(self, steps: Sequence[list[Entry]], first: int) -> None:
        self.steps, self.first = steps, first
        self.starts: dict[Key, Any] = {}
        """What the loop's first step reads as the values of earlier ones."""
        self.body = [
            replace(e, outputs=[k._replace(step=0) for k in e.outputs], leaves=list(e.leaves))
            for e in steps[-1]
        ]

    def found(self) -> bool:
        """Whether there is such a body; it is made on the way."""
        steps = self.steps[self.first :]
        if any(len(step) != len(self.body) for step in steps):
            return False
        for place, entry in enumerate(self.body):
            ours = [step[place] for step in steps]
            if any(e.run != entry.run or e.spec != entry.spec for e in ours):
                return False
            for at in range(len(entry.leaves)):
                entry.leaves[at] = self._leaf(entry, at, [e.leaves[at] for e in ours])
                if entry.leaves[at] is DIFFERS:
                    return False
        return True

    def _leaf(self, entry: Entry, at: int, seen: list[Any]) -> Any:
        """One argument of the body, from those of all steps."""
        count, newest = len(self.steps), seen[-1]
        numbers = range(self.first, count)
        if (
            entry.run is _aten.select.int
            and at == 2
            and entry.leaves[1] == 0
            and seen == list(numbers)
        ):
            return NOW
        if all(_same(s, newest) for s in seen):
            made_before = type(newest) is not Key or newest.step < self.first
            return newest if made_before else DIFFERS
        if type(newest) is not Key or newest.step < self.first:
            return DIFFERS
        slot = newest._replace(step=newest.step - (count - 1))
        if slot.step < -FURTHEST:
            return DIFFERS
        for k, s in zip(numbers, seen, strict=True):
            made = k + slot.step
            if made >= self.first:
                right = s == slot._replace(step=made)
            else:  # the slot of fewer steps ago held it before
                right = self._begins(slot._replace(step=made - self.first), s)
            if not right:
                return DIFFERS
        return slot

    def _begins(self, slot: Key, value: Any) -> bool:
        """Whether a slot can begin with a value."""
        inside = type(value) is Key and value.step >= self.first
        return (
            isinstance(value, Key | Tensor)
            and not inside
            and _same(self.starts.setdefault(slot, value), value)
        )

    def closes(self, after: Sequence[Entry], out: Mapping[str, Any]) -> bool:
        """Whether what is needed after the loop is carried to its end."""
        for key in [*(key for entry in after for key in entry.reads()), *out.values()]:
            slot = self.last(key)
            if slot is not key:
                if slot.step < -FURTHEST:
                    return False
                self.starts.setdefault(slot, None)
        return True

    def last(self, key: Any) -> Any:
        """A value of one of the last steps, as what the loop leaves."""
        made = type(key) is Key and self.first <= key.step < TRACED
        return key._replace(step=key.step - TRACED) if made else key

    def carried(self) -> dict[Key, Any]:
        """All slots; one that reaches back further needs the nearer ones."""
        for slot in list(self.starts):
            for back in range(slot.step + 1, 0):
                self.starts.setdefault(slot._replace(step=back), None)
        return self.starts


def _same(one: Any, two: Any) -> bool:
    if one is two or type(one) is not type(two):
        return one is two
    if isinstance(one, Tensor):  # a number that a step made anew, such as torch.tensor(0.5)
        host = one.device.type == two.device.type == "cpu" and not is_fake(one)
        return host and one.numel() == 1 and one.dtype == two.dtype and torch.equal(one, two)
    return one == two


def _needed(entries: Mapping[int, list[Entry]], out: dict[str, Any]) -> dict[int, list[Entry]]:
    """The entries that the outputs need, numbered anew."""
    used = {key for key in out.values() if type(key) is Key}
    kept: dict[int, list[Entry]] = {}
    for step in sorted(entries, reverse=True):
        kept[step] = []
        for entry in reversed(entries[step]):
            if entry.changes or any(key in used for key in entry.outputs):
                used.update(entry.reads())
                kept[step].insert(0, entry)
    new = {
        key: key._replace(place=place)
        for some in kept.values()
        for place, entry in enumerate(some)
        for key in entry.outputs
    }
    for entry in (entry for some in kept.values() for entry in some):
        entry.outputs = [new[key] for key in entry.outputs]
        entry.leaves = [new.get(k, k) if type(k) is Key else k for k in entry.leaves]
    out.update({name: new.get(k, k) if type(k) is Key else k for name, k in out.items()})
    return dict(sorted(kept.items()))


def _finished(program: Program) -> Program:
    """The program with what each entry lets go."""
    starts = {value for value in program.carried.values() if type(value) is Key}
    _let_go(program.start, program.left | starts | set(program.fixed))
    _let_go(program.body, {slot._replace(step=0) for slot in program.carried})
    _let_go(program.end, {key for key in program.outputs.values() if type(key) is Key})
    return program


def _let_go(entries: Sequence[Entry], kept: set[Key]) -> None:
    made = {key for entry in entries for key in entry.outputs}
    later = set(kept)
    for entry in reversed(entries):
        own = {*entry.reads(), *entry.outputs} & made
        entry.done = [key for key in own if key not in later]
        later |= own
