"""Vectors that are computed when they are needed, a whole sum in one walk.

A client's step such as y − lr·(g − c_i + c) is four operators, each of which reads and writes vectors of
the model's length: more bytes than the gradient itself moves, for many models. Here such a sum is
noted as numbers times vectors, and computed block by block while the block lies in the processor's
cache, over the old y where nobody else needs it. Parts of a gradient that are matrix products, as those of
dense layers are, go into the sum as they are multiplied and are never written by themselves. Results are
the same up to rounding. What is no sum of numbers times vectors sees a tensor.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fairlead.core.method import Record

BLOCK = 1 << 16
"""Coordinates that are computed together."""
SHORT = 1 << 14
"""Neighbouring parts of fewer coordinates are put together."""
LARGE = 1 << 20
"""The same where matrix products are among them, which lose more by being cut."""
WORTH = 1 << 15
"""The length from which it pays."""
TERMS = 5
"""A sum of more vectors is computed before it grows on."""


def _held_once() -> int:
    """What `sys.getrefcount` says of a thing that one name holds: not the same in all versions of Python."""
    thing = object()
    return sys.getrefcount(thing)


ONCE = _held_once()


class Product(NamedTuple):
    """A matrix a·b that has not been computed yet."""

    a: Tensor
    b: Tensor

    def numel(self) -> int:
        return self.a.shape[0] * self.b.shape[1]


Part: TypeAlias = Tensor | Product


class Parts:
    """A vector as parts that lie apart.

    again: called when products that went into one sum are needed for another: it would have been better
    to compute them.
    """

    def __init__(self, parts: Sequence[Part], again: Callable[[], None] | None = None) -> None:
        self.parts = list(parts)
        self.ends = list(itertools.accumulate(part.numel() for part in self.parts))
        self.again, self.used = again, False

    def use(self) -> None:
        """Products are computed when they are used for the second time."""
        if self.used and any(isinstance(part, Product) for part in self.parts):
            self.parts = [_flat(part) for part in self.parts]
            if self.again is not None:
                self.again()
        self.used = True

    @property
    def tensor(self) -> Tensor:
        return torch.cat([_flat(part) for part in self.parts])


def merged(parts: Sequence[Tensor]) -> list[Tensor]:
    """The parts as vectors, with short neighbours put together."""
    found: list[Tensor] = []
    for short, some in itertools.groupby(parts, lambda part: part.numel() < SHORT):
        flat = [part.reshape(-1) for part in some]
        found += [torch.cat(flat)] if short and len(flat) > 1 else flat
    return found


def _flat(part: Part) -> Tensor:
    return (part.a @ part.b).reshape(-1) if isinstance(part, Product) else part


Term: TypeAlias = "tuple[float, Tensor | Parts | Vector]"


class Vector:
    """A sum of numbers times vectors.

    >>> x, y = torch.ones(4), torch.arange(4.0)
    >>> v = x - 0.5 * Vector.of([y[:3], y[3:]])
    >>> isinstance(v, Vector), v.tensor
    (True, tensor([ 1.0000,  0.5000,  0.0000, -0.5000]))
    """

    def __init__(self, terms: list[Term], length: int, dtype: torch.dtype) -> None:
        self.terms, self.length, self.dtype = terms, length, dtype
        self.size = sum(v.size if isinstance(v, Vector) else 1 for _, v in terms)
        self._tensor: Tensor | None = None
        self.shown = False  # somebody may hold a view of it

    @classmethod
    def of(cls, parts: Sequence[Part], again: Callable[[], None] | None = None) -> Vector:
        """The vector whose parts these are, one after another."""
        found, first = Parts(parts, again), parts[0]
        dtype = (first.a if isinstance(first, Product) else first).dtype
        return cls([(1.0, found)], found.ends[-1], dtype)

    @property
    def tensor(self) -> Tensor:
        """The vector itself."""
        if self._tensor is None:
            self._tensor = self._computed()
            self.terms, self.size = [], 1  # what it was made of can go
        return self._tensor

    def _view(self) -> Tensor:
        self.shown = True
        return self.tensor

    # -- computing --------------------------------------------------------------------------------

    def _computed(self) -> Tensor:
        self.terms = self._leaves()
        out, over = self._place()
        whole = [
            (number, v if isinstance(v, Tensor) else v.tensor)
            for k, (number, v) in enumerate(self.terms)
            if k != over and not isinstance(v, Parts)
        ]
        apart = [(number, v) for number, v in self.terms if isinstance(v, Parts)]
        for _, parts in apart:
            parts.use()
        for number, parts in apart[1:]:
            if parts.ends != apart[0][1].ends:
                whole.append((number, parts.tensor))
                apart.remove((number, parts))
        whole.sort(key=lambda term: term[0] != 1)  # a sum begins with what is not multiplied
        begin = 0
        for place, end in enumerate(apart[0][1].ends if apart else [self.length]):
            here = [(number, parts.parts[place]) for number, parts in apart]
            products = [(number, part) for number, part in here if isinstance(part, Product)]
            vectors = [(number, part) for number, part in here if isinstance(part, Tensor)]
            vectors = [*((number, v[begin:end]) for number, v in whole), *vectors]
            _add_up(out[begin:end], vectors, products, over is not None)
            begin = end
        return out

    def _leaves(self) -> list[Term]:
        """The terms with sums among them written out, unless somebody else holds such a sum: then it is
        computed once."""
        found: list[Term] = []
        left, self.terms = self.terms, []
        while left:
            number, v = left.pop(0)
            if isinstance(v, Vector) and v._tensor is None:
                if sys.getrefcount(v) <= ONCE and not v.shown:  # by `v` alone
                    left[:0] = [(number * factor, w) for factor, w in v.terms]
                    v.terms = []
                    continue
                settled(v)
            found.append((number, v))
        return _joined(found, [], 1.0)

    def _place(self) -> tuple[Tensor, int | None]:
        """Where to compute: over a term that nobody else holds, such as the point before a step."""
        for k in range(len(self.terms)):
            number, term = self.terms[k]
            if number == 1 and isinstance(term, Vector) and not term.shown:
                # the vector held by the terms and by `term`, the tensor by the vector
                alone = sys.getrefcount(term) <= ONCE + 1 and sys.getrefcount(term._tensor) <= 2
                if alone and term.tensor.is_contiguous():
                    return term.tensor, k
        return torch.empty(self.length, dtype=self.dtype), None

    # -- arithmetic -------------------------------------------------------------------------------

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
        return func(*_viewed(args), **_viewed(kwargs or {}))

    # -- as a tensor ------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view(), name)

    def __getitem__(self, key: Any) -> Tensor:
        return self._view()[key]

    def __len__(self) -> int:
        return self.length

    @property
    def shape(self) -> torch.Size:
        return torch.Size([self.length])

    def dim(self) -> int:
        return 1


def _as_tensor(name: str) -> Callable[..., Any]:
    def method(self: Vector, *others: Any) -> Any:
        return getattr(self.tensor, name)(*_settled(others))

    return method


for _name in ("pow", "matmul", "abs", "gt", "ge", "lt", "le", "rpow", "rtruediv", "rmatmul"):
    setattr(Vector, f"__{_name}__", _as_tensor(f"__{_name}__"))


def _add_up(
    out: Tensor,
    vectors: list[tuple[float, Tensor]],
    products: list[tuple[float, Product]],
    over: bool,
) -> None:
    """Sum vectors and products into a place, which is a term of the sum itself if `over`."""
    length, width, size = out.numel(), 1, BLOCK
    if products:
        width, size = products[0][1].b.shape[1], LARGE
    if length <= size or len(vectors) + len(products) == 1:  # one operator leaves no cache warm
        _add_block(out, vectors, products, over)
        return
    step = max(1, size // width) * width
    for begin in range(0, length, step):
        end = min(length, begin + step)
        rows = slice(begin // width, end // width)
        some = [(number, v[begin:end]) for number, v in vectors]
        multiplied = [(number, Product(p.a[rows], p.b)) for number, p in products]
        _add_block(out[begin:end], some, multiplied, over)


def _add_block(
    out: Tensor,
    vectors: list[tuple[float, Tensor]],
    products: list[tuple[float, Product]],
    started: bool,
) -> None:
    left = iter(vectors)
    for number, v in left:
        if started:
            out.add_(v, alpha=number)
            continue
        started = True
        second = next(left, None) if number == 1 else None
        if second is None:
            torch.mul(v, number, out=out)
        else:
            torch.add(v, second[1], alpha=second[0], out=out)
    for number, (a, b) in products:
        rows = out.view(-1, b.shape[1])
        torch.addmm(rows, a, b, beta=1 if started else 0, alpha=number, out=rows)
        started = True


_OPERATORS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul,
    "div": torch.true_divide, "true_divide": torch.true_divide, "truediv": torch.true_divide,
}  # fmt: skip


def _noted(name: str, one: Any, two: Any) -> Any:
    """One operator, to be computed later where it makes a sum of numbers times vectors."""
    op = _OPERATORS[name]
    like = one if isinstance(one, Vector) else two
    if op is torch.add or op is torch.sub:
        if _is_like(one, like) and _is_like(two, like):
            return _sum(one, two, 1.0 if op is torch.add else -1.0, like)
    elif like is one or op is torch.mul:
        number = _number(two if like is one else one)
        if number is not None:
            return _times(like, number if op is torch.mul else 1 / number if number else None)
    return op(*_settled((one, two)))


def _is_like(value: Any, like: Vector) -> bool:
    if isinstance(value, Vector):
        return value.length == like.length and value.dtype == like.dtype
    if not isinstance(value, Tensor) or value.requires_grad:
        return False
    return value.shape == (like.length,) and value.dtype == like.dtype


def _number(value: Any) -> float | None:
    """A factor, as a number or a tensor of one element."""
    if isinstance(value, Tensor):
        single = value.numel() == 1 and value.dim() <= 1 and not value.requires_grad
        return float(value) if single else None
    return float(value) if isinstance(value, int | float) else None


def _terms(value: Vector | Tensor) -> list[Term]:
    if isinstance(value, Vector) and value._tensor is None and len(value.terms) == 1:
        return value.terms
    return [(1.0, value)]


def _times(value: Vector, number: float | None) -> Any:
    if number is None:
        return value.tensor / 0.0
    terms: list[Term] = [(number * factor, v) for factor, v in _terms(value)]
    return Vector(terms, value.length, value.dtype)


def _sum(one: Any, two: Any, sign: float, like: Vector) -> Vector:
    made = Vector(_joined(_terms(one), _terms(two), sign), like.length, like.dtype)
    if made.size > TERMS:
        settled(made)
    return made


def _joined(one: list[Term], two: list[Term], sign: float) -> list[Term]:
    """The terms of both sides, with one term for each vector."""
    found: dict[int, Term] = {}
    for number, v in [*one, *((sign * number, v) for number, v in two)]:
        found[id(v)] = (found[id(v)][0] + number if id(v) in found else number, v)
    return list(found.values())


def settled(value: Any) -> Any:
    """A vector, record or pair of records with everything computed."""
    if isinstance(value, Vector):
        return value.tensor
    if isinstance(value, Record):
        kind: Any = type(value)
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(kind)}
        late = {n: settled(v) for n, v in fields.items() if isinstance(v, Vector | Record)}
        if all(late[n] is fields[n] for n in late):
            return value
        return kind(**{**fields, **late})
    return _settled(value) if isinstance(value, tuple | list | dict) else value


def _settled(values: Any) -> Any:
    if isinstance(values, tuple | list):
        return type(values)(settled(v) for v in values)
    if isinstance(values, dict):
        return {name: settled(v) for name, v in values.items()}
    return settled(values)


def _viewed(values: Any) -> Any:
    """Settled, where what is made of it may be a view."""
    inside = values.values() if isinstance(values, dict) else values
    for value in inside if isinstance(values, tuple | list | dict) else [values]:
        if isinstance(value, Vector):
            value.shown = True
        elif isinstance(value, tuple | list | dict):
            _viewed(value)
    return _settled(values)
