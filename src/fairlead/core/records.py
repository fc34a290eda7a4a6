"""Named records of vectors: what the server keeps, what a client keeps, what a client sends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, cast, dataclass_transform

from torch import Tensor


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record:
    """A frozen record of named vectors; subclasses only list their fields.

    >>> import torch
    >>> class Server(State):
    ...     x: Tensor
    ...     c: Tensor
    >>> s = Server(x=torch.ones(2), c=torch.zeros(2))
    >>> s.map(lambda v: v + 1).x
    tensor([2., 2.])
    """

    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, kw_only=True, eq=False)(cls)
        cls._names = tuple(field.name for field in dataclasses.fields(cast(Any, cls)))

    def tensors(self) -> dict[str, Tensor]:
        """All vectors by name; those of a nested mapping or record are named `field/key`."""
        flat: dict[str, Tensor] = {}
        for name in self._names:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                flat[name] = value
            else:
                inner = value.tensors() if isinstance(value, Record) else value
                flat.update({f"{name}/{key}": v for key, v in inner.items()})
        return flat

    def filled(self, flat: Mapping[str, Tensor]) -> Self:
        """The record with the vectors that `tensors` gave, its nested records and mappings too."""
        changed: dict[str, Any] = {}
        for name in self._names:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                changed[name] = flat[name]
                continue
            inner = {
                k.removeprefix(under): t
                for k, t in flat.items()
                if k.startswith(under := f"{name}/")
            }
            changed[name] = value.filled(inner) if isinstance(value, Record) else inner
        return type(self)(**changed)

    def map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """The record with `fn` applied to every vector."""
        changed: dict[str, Any] = {}
        for name in self._names:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                changed[name] = fn(value)
            elif isinstance(value, Record):
                changed[name] = value.map(fn)
            else:
                changed[name] = {key: fn(v) for key, v in value.items()}
        return type(self)(**changed)


class State(Record):
    """What the server keeps between rounds. `x` is the model.

    >>> import fairlead as fl
    >>> run = fl.train(fl.problems.theorem2(), fl.Scaffold(lr=0.1), rounds=2, steps=3)
    >>> list(run.state.tensors())  # the model and the server's control variate
    ['x', 'c']
    """

    x: Tensor


class Memory(Record):
    """What one client keeps between the rounds it takes part in.

    >>> import fairlead as fl
    >>> run = fl.train(fl.problems.theorem2(), fl.Scaffold(lr=0.1), rounds=2, steps=3)
    >>> kept = run.client_states()  # one row per client
    >>> bool((kept.c.mean(0) - run.state.c).abs().max() < 1e-12)
    True
    """


class Upload(Record):
    """What one client sends; the server sees means over the clients that answered. An upload without
    fields is an acknowledgement: the exchange only informs clients.

    >>> import torch
    >>> class Moved(Upload):
    ...     dy: Tensor
    >>> Moved(dy=torch.ones(2)).drift()
    tensor([1., 1.])
    """

    each: ClassVar[tuple[str, ...]] = ()
    """Fields that the server sees client by client, as rows, instead of their mean: for measures."""

    def drift(self) -> Tensor | None:
        """How far the client moved, y − x (or x − y), where the upload contains it; drift diversity is
        measured on it."""
        return getattr(self, "dy", None)
