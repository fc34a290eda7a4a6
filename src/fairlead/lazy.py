"""Vectors that are computed when they are needed, all their sums and products in one walk.

A client's step such as y − lr·(g − c_i + c) is four operators, each of which reads and writes vectors of
the model's length: more bytes than the gradient itself moves, for many models. Here the operators are
noted, and computed block by block while the block lies in the processor's cache, with a number times a
vector and the sum it goes into as one operator. Results are the same up to that rounding. What is no
plain arithmetic sees a tensor.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fairlead.algorithm import Record

BLOCK = 1 << 16
"""Coordinates that are computed together."""
WORTH = 1 << 15
"""The length from which it pays."""

Operand: TypeAlias = "Vector | Tensor | float"
_OPERATORS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul,
    "div": torch.true_divide, "true_divide": torch.true_divide, "truediv": torch.true_divide,
}  # fmt: skip


class Vector:
    """A sum or product of vectors, or the parts of one that lie apart.

    >>> x, y = torch.ones(4), torch.arange(4.0)
    >>> v = x - 0.5 * Vector.of([y[:3], y[3:]])
    >>> isinstance(v, Vector), v.tensor
    (True, tensor([ 1.0000,  0.5000,  0.0000, -0.5000]))
    """

    def __init__(self, like: Tensor, length: int) -> None:
        self.like, self.length = like, length
        self.parts: list[Tensor] = []
        self.op: Callable[..., Tensor] | None = None
        self.operands: tuple[Operand, ...] = ()
        self._tensor: Tensor | None = None

    @classmethod
    def of(cls, parts: Sequence[Tensor]) -> Vector:
        """The vector whose parts these are, one after another; short neighbours are put together."""
        flat: list[Tensor] = []
        short: list[Tensor] = []
        for part in parts:
            if part.numel() < BLOCK // 4:
                short.append(part.reshape(-1))
                continue
            if short:
                flat.append(torch.cat(short))
                short = []
            flat.append(part.reshape(-1))
        if short:
            flat.append(torch.cat(short))
        made = cls(flat[0], sum(len(part) for part in flat))
        made.parts = flat
        return made

    @property
    def tensor(self) -> Tensor:
        """The vector itself."""
        if self._tensor is None:
            self._tensor = self._computed()
            self.parts, self.op, self.operands = [], None, ()  # what it was made of can go
        return self._tensor

    def _computed(self) -> Tensor:
        if self.op is None:
            return torch.cat(self.parts)
        out = self._place()
        for begin, end in self._blocks():
            _compute(self, begin, end, {}, out[begin:end])
        return out

    def _place(self) -> Tensor:
        """Where to compute: over an operand that nobody else holds, such as the point before a step."""
        for k in range(len(self.operands)):
            operand = self.operands[k]
            if isinstance(operand, Vector) and operand._tensor is not None:
                # held by the operands, by `operand`, and by the call that counts
                unknown = sys.getrefcount(operand) <= 3 and sys.getrefcount(operand._tensor) <= 2
                if unknown and operand._tensor.is_contiguous():
                    return operand._tensor
        return torch.empty(self.length, dtype=self.like.dtype)

    def _blocks(self) -> list[tuple[int, int]]:
        """Ranges of coordinates that cross no border between parts."""
        borders = self._borders(set()) or [self.length]
        chain = any(isinstance(v, Vector) and v._tensor is None and v.op for v in self._factors())
        step = BLOCK if chain else self.length  # a single operator leaves nothing in the cache
        found, begin = [], 0
        for border in borders:
            while begin < border:
                end = min(border, begin + step)
                found.append((begin, end))
                begin = end
        return found

    def _factors(self) -> tuple[Operand, ...]:
        """The operands, with what a product as the second one is made of."""
        product = _scaled(self)
        return self.operands if product is None else (self.operands[0], product[1])

    def _borders(self, seen: set[int]) -> list[int]:
        """Where the parts of a vector under this one end; all have the model's layout."""
        if self.parts:
            return torch.tensor([len(part) for part in self.parts]).cumsum(0).tolist()
        for operand in self.operands:
            if isinstance(operand, Vector) and operand._tensor is None and id(operand) not in seen:
                seen.add(id(operand))
                borders = operand._borders(seen)
                if borders:
                    return borders
        return []

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
        return func(*_settled(args), **_settled(kwargs or {}))

    # -- as a tensor ------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    def __getitem__(self, key: Any) -> Tensor:
        return self.tensor[key]

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


def _noted(name: str, one: Any, two: Any) -> Any:
    """One operator, to be computed later where both sides allow it."""
    op = _OPERATORS[name]
    like = one if isinstance(one, Vector) else two
    if not (_fits(one, like) and _fits(two, like)):
        return op(*_settled((one, two)))
    made = Vector(like.like, like.length)
    made.op, made.operands = op, (one, two)
    return made


def _fits(value: Any, like: Vector) -> bool:
    if isinstance(value, Vector):
        return value.length == like.length and value.like.dtype == like.like.dtype
    if isinstance(value, Tensor):
        vector = value.shape == (like.length,) or (value.numel() == 1 and value.dim() <= 1)
        return vector and value.dtype == like.like.dtype and not value.requires_grad
    return isinstance(value, int | float)


def _scaled(value: Vector) -> tuple[float, Operand] | None:
    """The number and the vector of a sum or difference whose second side is their product."""
    if value.op not in (torch.add, torch.sub):
        return None
    second = value.operands[1]
    if not isinstance(second, Vector) or second._tensor is not None or second.op is not torch.mul:
        return None
    one, two = second.operands
    if isinstance(one, int | float):
        return float(one), two
    return (float(two), one) if isinstance(two, int | float) else None


def _compute(
    value: Vector, begin: int, end: int, known: dict[int, Any], out: Tensor | None = None
) -> Tensor:
    """Some coordinates of a sum or product."""
    assert value.op is not None
    product = _scaled(value)
    if product is not None:
        first = _block(value.operands[0], begin, end, known)
        if isinstance(first, Tensor):
            second = _block(product[1], begin, end, known)
            return value.op(first, second, alpha=product[0], out=out)
    values = [_block(operand, begin, end, known) for operand in value.operands]
    return value.op(*values, out=out)


def _block(value: Operand, begin: int, end: int, known: dict[int, Any]) -> Any:
    """Some coordinates of an operand."""
    if isinstance(value, Vector):
        if id(value) not in known:
            known[id(value)] = _part(value, begin, end, known)
        return known[id(value)]
    if isinstance(value, Tensor):
        return value[begin:end] if value.numel() > 1 else value
    return value


def _part(value: Vector, begin: int, end: int, known: dict[int, Any]) -> Tensor:
    if value._tensor is not None:
        return value._tensor[begin:end]
    if value.op is not None:
        return _compute(value, begin, end, known)
    first = 0
    for part in value.parts:
        if begin < first + len(part):
            return part[begin - first : end - first]
        first += len(part)
    raise IndexError(begin)


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
