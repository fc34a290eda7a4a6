"""The operators of a client program, noted while it runs on tensors without values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

BEFORE = -100
"""The step of what comes before the first one."""
_aten = torch.ops.aten


class Untraceable(Exception):
    """Why a program cannot be written down as a list of operators with one loop."""


class Key(NamedTuple):
    """A value: an input by its name, or an output of an operator by its step and its place there.

    Within the body of the loop `step` is how many steps ago the value was made, as a negative number.
    """

    step: int
    place: int | str
    output: int = 0


@dataclass
class Entry:
    """One operator; keys stand for tensors among its flattened arguments."""

    run: Callable[..., Any]
    leaves: list[Any]
    spec: Any
    outputs: list[Key]
    like: list[Tensor]
    """Tensors without values, shaped like its outputs."""
    changes: bool
    """Whether it changes a tensor in place."""
    done: list[Key] = field(default_factory=list)
    """Values that nothing needs after it."""

    def reads(self) -> Iterable[Key]:
        return (leaf for leaf in self.leaves if type(leaf) is Key)


class Recorder(TorchDispatchMode):
    """Notes the operators of a program. name_of: the name of a tensor that is an input, or None."""

    def __init__(self, name_of: Callable[[Tensor], str | None]) -> None:
        super().__init__()
        self.name_of, self.step = name_of, BEFORE
        self.entries: dict[int, list[Entry]] = {BEFORE: []}
        self._known: dict[int, Key] = {}
        self._made_in: dict[int, int] = {}  # the step that made a tensor's memory
        self._alive: list[Any] = []

    def begin(self, step: int) -> None:
        """What follows belongs to this step."""
        self.step = step
        self.entries.setdefault(step, [])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _aten._local_scalar_dense.default:
            raise Untraceable("its client program waits for a number")
        out = func(*args, **kwargs)
        self.note(func, args, kwargs, out, func._schema.is_mutable)
        if func._schema.is_mutable:
            self._check_changed(func, args, kwargs)
        return out

    def note(
        self, run: Callable[..., Any], args: Any, kwargs: Any, out: Any, changes: bool = False
    ) -> None:
        """Note an operator and what it returned."""
        flat, spec = tree_flatten((args, kwargs))
        here = self.entries[self.step]
        leaves = [self.key(leaf) if isinstance(leaf, Tensor) else leaf for leaf in flat]
        results = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor)]
        outputs = [Key(self.step, len(here), place) for place in range(len(results))]
        given = {id(leaf) for leaf in flat}
        for key, t in zip(outputs, results, strict=True):
            if id(t) not in given:
                self._known[id(t)] = key
                self._made_in.setdefault(t.untyped_storage()._cdata, self.step)
        self._alive += [*flat, *results]
        here.append(Entry(run, leaves, spec, outputs, results, changes))

    def key(self, t: Tensor) -> Any:
        """The key of a tensor, or a constant itself."""
        found = self._known.get(id(t))
        if found is not None:
            return found
        name = self.name_of(t)
        return t if name is None else Key(BEFORE, name)

    def _check_changed(self, func: Any, args: Any, kwargs: Any) -> None:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            changed = args[place] if place < len(args) else kwargs.get(argument.name)
            for t in tree_flatten(changed)[0]:
                if self._made_in.get(t.untyped_storage()._cdata) != self.step:
                    raise Untraceable("its client program changes a vector in place")
