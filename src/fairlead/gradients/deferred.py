"""Linear combinations of vectors that are computed when they are needed, in one pass.

A client's step such as y − lr·(g − c_i + c) is four operators, each of which reads and writes vectors of
the model's length: for many models more bytes than the gradient itself moves. A `Vector` notes such a
sum as numbers times vectors and computes it block by block while a block is in the processor's cache.
Gradients of dense layers are matrix products; they are multiplied straight into the sum.

Ownership is explicit. A `Vector` is the only handle of its node; a node's memory is reused for a result
only if its handle is gone, exactly one pending sum refers to it and no tensor view of it was given away.
Gradients always come in the same segments (see `segments`), so that sums are taken segment by segment.
Anything that is not a sum of numbers times vectors sees a plain tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fairlead.core.records import Record
from fairlead.gradients.segments import Product, add_segment

LEAST_DIM = 1 << 15
"""The length of a vector from which it pays."""
MOST_TERMS = 5
"""A sum of more vectors is computed before it grows."""


class Parts:
    """A gradient in segments; those that are products are computed if they are used a second time."""

    def __init__(self, parts: Sequence[Tensor | Product]) -> None:
        self.parts = list(parts)
        self.used = False

    def use(self, reused: Callable[[], None]) -> None:
        """Note that the gradient goes into a sum."""
        if self.used and any(isinstance(part, Product) for part in self.parts):
            self.parts = [p.tensor if isinstance(p, Product) else p for p in self.parts]
            reused()
        self.used = True

    @property
    def tensor(self) -> Tensor:
        return torch.cat([p.tensor if isinstance(p, Product) else p for p in self.parts])


Leaf: TypeAlias = "Tensor | Parts | _Node"
Term: TypeAlias = tuple[float, Leaf]


class _Node:
    """A sum, pending (`terms`) or computed (`tensor`)."""

    __slots__ = ("consumers", "handle", "shown", "space", "tensor", "terms")

    def __init__(self, terms: list[Term], space: Space) -> None:
        self.terms, self.space = terms, space
        self.tensor: Tensor | None = None
        self.consumers = 0
        """Pending sums that have it as a term."""
        self.shown = False
        """Whether a view of its tensor may be held elsewhere."""
        self.handle: Callable[[], Vector | None] = lambda: None
        for _, leaf in terms:
            if isinstance(leaf, _Node):
                leaf.consumers += 1

    @property
    def exclusive(self) -> bool:
        """Whether the one sum that refers to it is all that can still see it."""
        return self.handle() is None and self.consumers == 1 and not self.shown

    def compute(self) -> Tensor:
        if self.tensor is None:
            leaves = self._leaves()
            self.tensor = _summed(leaves, self.space)
            for _, leaf in leaves:
                if isinstance(leaf, _Node):
                    leaf.consumers -= 1
            self.terms = []
        return self.tensor

    def _leaves(self) -> list[Term]:
        """The terms with pending sums that nothing else needs written out, one term per vector."""
        found: dict[int, Term] = {}
        left = self.terms
        while left:
            number, leaf = left.pop(0)
            if isinstance(leaf, _Node) and leaf.tensor is None:
                if leaf.exclusive:
                    left[:0] = [(number * factor, inner) for factor, inner in leaf.terms]
                    continue
                leaf.compute()
            if id(leaf) in found:
                number += found[id(leaf)][0]
                if isinstance(leaf, _Node):
                    leaf.consumers -= 1
            found[id(leaf)] = (number, leaf)
        return list(found.values())


class Space:
    """What the vectors of a task have in common: length, type and segments.

    reused: called when a gradient that was left as products is needed a second time.
    """

    def __init__(self, lengths: Sequence[int], dtype: torch.dtype) -> None:
        self.lengths, self.dtype, self.size = tuple(lengths), dtype, sum(lengths)
        self.products_reused = False

    def _note_reuse(self) -> None:
        self.products_reused = True

    def vector(self, parts: Sequence[Tensor | Product]) -> Vector:
        """The gradient with these segments."""
        return Vector(_Node([(1.0, Parts(parts))], self))


def _summed(leaves: list[Term], space: Space) -> Tensor:
    """The sum, over the memory of a term that nothing else needs, or in new memory."""
    over = next(
        (
            leaf
            for number, leaf in leaves
            if number == 1 and isinstance(leaf, _Node) and leaf.exclusive
            and leaf.tensor is not None and leaf.tensor.is_contiguous()
        ),
        None,
    )  # fmt: skip
    out = torch.empty(space.size, dtype=space.dtype) if over is None else over.tensor
    assert out is not None
    whole: list[tuple[float, Tensor]] = []
    apart: list[tuple[float, Parts]] = []
    for number, leaf in leaves:
        if isinstance(leaf, Parts):
            leaf.use(space._note_reuse)
            apart.append((number, leaf))
        elif leaf is not over:
            value = leaf.compute() if isinstance(leaf, _Node) else leaf
            whole.append((number, value))
    whole.sort(key=lambda term: term[0] != 1)  # a sum begins with what is not multiplied
    begin = 0
    for place, length in enumerate(space.lengths if apart else (space.size,)):
        end = begin + length
        vectors = [(number, v[begin:end]) for number, v in whole]
        products: list[tuple[float, Product]] = []
        for number, parts in apart:
            part = parts.parts[place]
            if isinstance(part, Product):
                products.append((number, part))
            else:
                vectors.append((number, part))
        add_segment(out[begin:end], vectors, products, over is not None)
        begin = end
    return out


class Vector:
    """The handle of a sum of numbers times vectors.

    >>> x, y = torch.ones(4), torch.arange(4.0)
    >>> v = x - 0.5 * Space([3, 1], torch.float32).vector([y[:3], y[3:]])
    >>> isinstance(v, Vector), v.tensor
    (True, tensor([ 1.0000,  0.5000,  0.0000, -0.5000]))
    """

    __slots__ = ("__weakref__", "node")

    def __init__(self, node: _Node) -> None:
        self.node = node
        node.handle = weakref.ref(self)

    @property
    def tensor(self) -> Tensor:
        """The vector itself, which its holder may keep."""
        self.node.shown = True
        return self.node.compute()

    def point(self) -> Tensor:
        """The vector itself, to be read before this handle is used again and not to be kept."""
        return self.node.compute()

    def __add__(self, other: Any) -> Any:
        return _noted("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _noted("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _noted("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _noted("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return _noted("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _noted("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _noted("div", self, other)

    def __neg__(self) -> Any:
        return _noted("mul", self, -1.0)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.__name__.strip("_")
        if name in _OPERATORS and len(args) == 2 and not kwargs:
            return _noted(name, *args)
        return func(*settled(args), **settled(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    def __getitem__(self, key: Any) -> Tensor:
        return self.tensor[settled(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tensor[settled(key)] = settled(value)

    def __len__(self) -> int:
        return self.node.space.size

    @property
    def shape(self) -> torch.Size:
        return torch.Size([self.node.space.size])

    @property
    def dtype(self) -> torch.dtype:
        return self.node.space.dtype

    def dim(self) -> int:
        return 1


def _as_tensor(name: str) -> Callable[..., Any]:
    def method(self: Vector, *others: Any) -> Any:
        return getattr(self.tensor, name)(*settled(others))

    return method


for _name in ("pow", "matmul", "abs", "gt", "ge", "lt", "le", "rpow", "rtruediv", "rmatmul"):
    setattr(Vector, f"__{_name}__", _as_tensor(f"__{_name}__"))

_OPERATORS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul,
    "div": torch.true_divide, "true_divide": torch.true_divide, "truediv": torch.true_divide,
}  # fmt: skip


def _noted(name: str, one: Any, two: Any) -> Any:
    """One operator, deferred where it makes a sum of numbers times vectors."""
    op = _OPERATORS[name]
    like = one if isinstance(one, Vector) else two
    if op is torch.add or op is torch.sub:
        if _fits(one, like) and _fits(two, like):
            return _sum(one, two, 1.0 if op is torch.add else -1.0, like.node.space)
    elif like is one or op is torch.mul:
        number = _number(two if like is one else one)
        if number is not None and (op is torch.mul or number != 0):
            factor = number if op is torch.mul else 1 / number
            return Vector(_Node(_terms(like, factor), like.node.space))
    return op(*settled((one, two)))


def _fits(value: Any, like: Vector) -> bool:
    if isinstance(value, Vector):
        return value.node.space is like.node.space
    if not isinstance(value, Tensor) or value.requires_grad:
        return False
    return value.shape == like.shape and value.dtype == like.dtype


def _number(value: Any) -> float | None:
    """A factor, as a number or a one-element tensor."""
    if isinstance(value, Tensor):
        single = value.numel() == 1 and value.dim() <= 1 and not value.requires_grad
        return float(value) if single else None
    return float(value) if isinstance(value, int | float) else None


def _sum(one: Any, two: Any, sign: float, space: Space) -> Vector:
    made = _Node([*_terms(one, 1.0), *_terms(two, sign)], space)
    if _count(made) > MOST_TERMS:
        made.compute()
    return Vector(made)


def _terms(value: Vector | Tensor, factor: float) -> list[Term]:
    """A vector times a number, as terms; a multiple of one vector, such as a gradient, as that vector."""
    if isinstance(value, Tensor):
        return [(factor, value)]
    node = value.node
    if node.tensor is None and len(node.terms) == 1:
        number, leaf = node.terms[0]
        return [(factor * number, leaf)]
    return [(factor, node)]


def _count(node: _Node) -> int:
    """Vectors in a pending sum."""
    inner = (leaf for _, leaf in node.terms)
    return sum(_count(v) if isinstance(v, _Node) and v.tensor is None else 1 for v in inner)


def settled(value: Any) -> Any:
    """A vector, record, or collection of them with everything computed."""
    if isinstance(value, Vector):
        return value.tensor
    if isinstance(value, Record):
        flat = {name: getattr(value, name) for name in value._names}
        late = {n: settled(v) for n, v in flat.items() if isinstance(v, Vector | Record | dict)}
        if all(late[n] is flat[n] for n in late):
            return value
        kind: Any = type(value)
        return kind(**{**flat, **late})
    if isinstance(value, tuple | list):
        return type(value)(settled(v) for v in value)
    if isinstance(value, dict):
        found = {name: settled(v) for name, v in value.items()}
        return value if all(found[name] is v for name, v in value.items()) else found
    return value
