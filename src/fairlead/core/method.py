"""The protocol between a method and whatever runs it.

A method is a frozen record of hyper-parameters with two small programs: `round`, which the server
runs, and a client program that `round` hands to `cohort.run`. Both are pure functions of vectors.
What the server keeps, what a client keeps and what travels are named records of vectors.

The same client program runs for one client, where vectors have shape (d,), and for many at once,
where they carry a leading client axis, (S, d). Numbers that differ between clients (`step.lr`,
`client.moved`) are shaped (S, 1) then, so plain broadcasting does the rest.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, dataclass_transform

from torch import Tensor

from fairlead.compress import Compressor
from fairlead.task.domain import Simplex
from fairlead.errors import FairleadError
from fairlead.schedules import Rate, rate_at


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

    wire: ClassVar[Any] = None  # an encoded upload carries its codes here
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
    """What the server keeps between rounds. `x` is the model."""

    x: Tensor


class Memory(Record):
    """What one client keeps between the rounds it takes part in."""


class Upload(Record):
    """What one client sends; the server sees means over the clients that answered. It may have no
    field: an exchange that only tells clients something."""

    def walked(self) -> Tensor | None:
        """How far the client went, y − x (or x − y), where its upload tells; for measuring drift."""
        return getattr(self, "dy", None)


S = TypeVar("S", bound=State)
M = TypeVar("M", bound=Memory)
U = TypeVar("U", bound=Upload)


class Step(ABC):
    """One local step: a batch and a step size."""

    lr: Any  # a float for one client; (S, 1) for many, zero where a client has run out of steps

    @abstractmethod
    def grad(self, y: Tensor) -> Tensor:
        """The gradient at `y` on this step's batch; call it at as many points as needed."""


class Client(ABC, Generic[M]):
    """What a client program sees of its client (or of S clients at once)."""

    memory: M
    """What the client kept, or its starting value."""
    moved: Any
    """The sum of the step sizes really applied by the last `steps`; K·lr when constant."""

    @abstractmethod
    def steps(self, lr: Rate) -> Iterator[Step]:
        """The local steps of this round."""

    @abstractmethod
    def grad(self, x: Tensor, batch: int | None = None) -> Tensor:
        """The gradient at `x` on all local data, or on one large batch, the same for every call
        of a round."""

    @abstractmethod
    def encode(self, upload: U, by: Compressor | None) -> U:
        """The upload as the server will see it, each of its vectors compressed with noise of its
        own. Return this one; with None it is the upload itself."""


@dataclasses.dataclass(frozen=True)
class Replies(Generic[U]):
    """What came back from one exchange."""

    mean: U
    """The mean of every uploaded vector over the clients that answered, by the run's weights."""
    count: int
    """How many clients answered."""


class Cohort(ABC):
    """The clients of one round, as the server sees them."""

    round: int
    """The number of rounds finished before this one."""
    first: bool
    """Whether no round has taken place yet."""
    share: Any
    """The weight of the clients that answered among all clients: |S|/N for uniform weights. A number,
    or a tensor of one where rounds are recorded."""

    @abstractmethod
    def run(self, program: Callable[..., U | tuple[U, Memory]], **broadcast: Tensor) -> Replies[U]:
        """One exchange: send `broadcast`, let every client run `program(client, **broadcast)`,
        collect. A program returns its upload, or the upload and what the client keeps."""

    def rate(self, rate: Rate) -> Any:
        """A server's step size in this round. Prefer it to asking for `round`: a program that does not
        depend on the round's number can be recorded once and played again."""
        return rate_at(rate, self.round, self.round)


class Algorithm(ABC, Generic[S, M]):
    """A federated method. Subclasses are frozen dataclasses of hyper-parameters."""

    paper: ClassVar[str] = ""
    """The key of the paper in `fairlead.methods.citations`."""
    refuses: ClassVar[Mapping[str, str]] = {}
    """Settings that other methods have and the mathematics of this one does not allow, and why."""

    def bind(self, layers: Mapping[str, slice], domain: Simplex | None = None) -> Self:
        """The method for a model with these parameters, by name and place in the vector, and for
        points of a set; most methods only know the whole space."""
        if domain is not None:
            raise FairleadError(
                f"the steps of {type(self).__name__} leave the simplex: use MirrorDescent or MirrorProx"
            )
        return self

    def with_lr(self, lr: Rate) -> Self:
        """The method with another step size."""
        return dataclasses.replace(cast(Any, self), lr=lr)

    @abstractmethod
    def init(self, x: Tensor) -> S:
        """The server's state before the first round."""

    def memory(self, x: Tensor) -> M | None:
        """What every client starts with; None when clients keep nothing."""
        return None

    def start(self, s: S, everyone: Cohort) -> S:
        """Work with all clients before round 0, such as a warm start."""
        return s

    @abstractmethod
    def round(self, s: S, cohort: Cohort) -> S:
        """The server's program for one round."""

    def communications(self) -> int:
        """How many communication rounds the paper counts for one round."""
        return 1

    def rates(self) -> dict[str, Rate]:
        """The step sizes to check before training, by the name of their setting."""
        return {name: getattr(self, name) for name in ("lr", "server_lr") if hasattr(self, name)}
