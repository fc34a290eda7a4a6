"""Nested inputs and targets as flat tensors.

A task keeps its data as one flat tuple of tensors with a row per sample, which are indexed together; engines see
nothing else. Only calls of the model and the loss put the tensors back into the tuples and dicts they came in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fairlead.data.checks import as_tensor, whole
from fairlead.errors import FairleadError


@dataclass(frozen=True)
class Arrangement:
    """Where each tensor of the data belongs.

    inputs: a position for a model of one input; a tuple for its positional arguments, or a dict for arguments by name,
        of positions or of further tuples and dicts.
    targets: the arguments of the loss after the model's output, likewise.
    spread: the data are all inputs, without a target.

    >>> arrangement = Arrangement({"ids": 0, "mask": 1}, (2,))
    >>> arrangement.arguments("imy"), arrangement.of_loss("imy")
    (((), {'ids': 'i', 'mask': 'm'}), ('y',))
    """

    inputs: Any
    targets: tuple[Any, ...]
    spread: bool = False

    @classmethod
    def of(cls, data: Sequence[Any]) -> tuple[Arrangement, tuple[Any, ...]]:
        """The arrangement of (inputs, *targets), and the arrays it holds."""
        count = iter(range(10**6))
        inputs, targets = data[0], tuple(data[1:])
        places = mapped(inputs, lambda _: next(count)), mapped(targets, lambda _: next(count))
        return cls(*places), (*leaves(inputs), *leaves(targets))

    @classmethod
    def all_inputs(cls, count: int) -> Arrangement:
        """All tensors as positional arguments of the model, which computes its own loss."""
        return cls(tuple(range(count)), (), spread=True)

    @property
    def count(self) -> int:
        """How many tensors are inputs; they are the first."""
        return sum(1 for _ in leaves(self.inputs))

    def arguments(self, block: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and named arguments of the model."""
        given = mapped(self.inputs, block.__getitem__)
        if isinstance(given, dict):
            return (), given
        return (given if isinstance(given, tuple) else (given,)), {}

    def of_loss(self, block: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments of the loss after the model's output."""
        return mapped(self.targets, block.__getitem__)

    def arrays(self, data: Sequence[Any]) -> tuple[Any, ...]:
        """The arrays of other data in this arrangement, in its order."""
        given = (tuple(data), ()) if self.spread else (data[0], tuple(data[1:]))
        try:
            return (*_alike(self.inputs, given[0]), *_alike(self.targets, given[1]))
        except KeyError as error:
            raise FairleadError(
                "the test data must have the inputs and targets of the training data, under the same names"
            ) from error

    def tensors(self, arrays: Sequence[Any]) -> tuple[Tensor, ...]:
        """Arrays as tensors; whole-number targets become int64, which losses need."""
        count = self.count
        return (*map(_tensor, arrays[:count]), *(whole(_tensor(a)) for a in arrays[count:]))


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Tuples and dicts, however nested, with every leaf changed."""
    if isinstance(tree, tuple):
        return tuple(mapped(part, change) for part in tree)
    if isinstance(tree, Mapping):
        return {name: mapped(part, change) for name, part in tree.items()}
    return change(tree)


def leaves(tree: Any) -> Iterator[Any]:
    """The leaves of tuples and dicts, however nested."""
    if isinstance(tree, tuple):
        tree = dict(enumerate(tree))
    if not isinstance(tree, Mapping):
        yield tree
        return
    for part in tree.values():
        yield from leaves(part)


def _alike(places: Any, tree: Any) -> Iterator[Any]:
    """The leaves of a tree, in the order of another one of the same form."""
    if not isinstance(places, tuple | dict):
        if isinstance(tree, tuple | Mapping):
            raise KeyError(places)
        yield tree
        return
    if isinstance(places, tuple):
        tree = dict(enumerate(tree)) if isinstance(tree, tuple) else tree
        places = dict(enumerate(places))
    if not isinstance(tree, Mapping) or set(tree) != set(places):
        raise KeyError(str(tree))
    for name, place in places.items():
        yield from _alike(place, tree[name])


def _tensor(given: Any) -> Tensor:
    if isinstance(given, list) and given and isinstance(given[0], Tensor | np.ndarray):
        raise FairleadError(
            "the data hold a list of tensors: give several inputs as a tuple or dict, and samples as one stacked tensor"
        )
    if getattr(getattr(given, "dtype", None), "kind", "") in ("U", "S"):
        raise FairleadError(
            "the data hold strings: encode labels with Task.from_torch_dataset or Task.from_arrays, and text with the "
            "tokenizer of Task.from_huggingface"
        )
    try:
        return as_tensor(given if isinstance(given, Tensor) else np.asarray(given))
    except (TypeError, ValueError) as error:
        raise FairleadError(
            f"the data hold a {type(given).__name__} that is no array of numbers: give tensors, or tuples and dicts of "
            "tensors"
        ) from error
