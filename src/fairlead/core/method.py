"""The protocol between a method and whatever runs it.

A method is a frozen record of hyper-parameters with two small programs: `round`, which the server
runs, and a client program, a method of the same class, which `round` passes to `cohort.run`. Both are
pure functions of vectors. What the server keeps, what a client keeps and what travels are named records.

The same client program runs for one client, where vectors have shape (d,), and for many at once,
where they carry a leading client axis, (S, d). Numbers that differ between clients (`step.lr`,
`client.moved`) are then shaped (S, 1), so plain broadcasting does the rest.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from fairlead.compress import Compressor
from fairlead.core.domain import Simplex
from fairlead.core.records import Memory, State, Upload
from fairlead.core.replies import Replies
from fairlead.errors import FairleadError
from fairlead.schedules import Rate, rate_at
from fairlead.theory.bound import Constants

S = TypeVar("S", bound=State)
M = TypeVar("M", bound=Memory)
U = TypeVar("U", bound=Upload)


class Step(ABC):
    """One local step: a batch and a step size.

    >>> import fairlead as fl
    >>> from dataclasses import dataclass
    >>> class Moved(Upload):
    ...     dy: Tensor
    >>> class Server(State):
    ...     x: Tensor
    >>> @dataclass(frozen=True)
    ... class Average(Algorithm[Server, Memory]):
    ...     lr: float
    ...     def init(self, x):
    ...         return Server(x=x)
    ...     def round(self, s, cohort):
    ...         return Server(x=s.x + cohort.run(self.local, x=s.x).mean.dy)
    ...     def local(self, client, x):
    ...         y = x
    ...         for step in client.steps(self.lr):  # a Step each
    ...             y = step.at(y - step.lr * step.grad(y))
    ...         return Moved(dy=y - x)
    >>> task = fl.problems.random_quadratics(clients=4)
    >>> mine, fedavg = (fl.train(task, m, rounds=3, steps=5).x for m in (Average(0.1), fl.FedAvg(0.1)))
    >>> torch.allclose(mine, fedavg)
    True
    """

    lr: Any
    """A float for one client; (S, 1) for many, zero where a client has run out of steps."""

    @abstractmethod
    def grad(self, y: Tensor) -> Tensor:
        """The gradient at `y` on this step's batch; may be called at several points."""

    def at(self, y: Tensor) -> Tensor:
        """Marks `y` as the client's point after this step, for measures of local points; returns it."""
        return y


class Client(ABC, Generic[M]):
    """What a client program sees of its client (or of S clients at once).

    A client program sees its client and what the server sent. This one sends the full gradient at x:

    >>> import fairlead as fl
    >>> from fairlead.methods.sgd import Gradient, Server
    >>> class FullGradient(fl.FedSGD):
    ...     def local(self, client: Client, x: Tensor) -> Gradient:
    ...         return Gradient(g=client.grad(x))
    >>> task = fl.problems.theorem2(gradient=2.0)
    >>> float(fl.train(task, FullGradient(lr=0.5), rounds=1).x)  # 1 − 0.5·f'(1), and f' is x
    0.5
    """

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
        """The upload as the server will see it, each of its vectors compressed with its own
        noise. Return this one; with None it is the upload itself."""

    @abstractmethod
    def noise(self, like: Tensor) -> Tensor:
        """Standard normal numbers in the shape of a vector, a function of (seed, round, client, call):
        the same in every engine. Use it instead of `torch.randn_like`."""


@dataclasses.dataclass(frozen=True)
class Lasting:
    """A broadcast vector that clients keep until its `version` changes: it is sent, and counted, only to
    clients that do not have this version yet.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=4, dim=10)
    >>> catalyst = fl.Catalyst(fl.FedAvg(lr=0.1), inner_rounds=5)  # its centre is a Lasting vector
    >>> run = fl.train(task, catalyst, rounds=5, steps=2)
    >>> [int(e.all_down[0]) // 640 for e in run.ledger.exchanges]  # vectors received per round
    [2, 1, 1, 1, 1]
    """

    value: Tensor
    version: Tensor


Broadcast: TypeAlias = Tensor | Lasting | float


class Cohort(ABC):
    """The clients of one round, as the server sees them.

    `round` asks its cohort once per exchange; here FedAvg with a server step that halves from round to round:

    >>> import fairlead as fl
    >>> from fairlead.methods.fedavg import Server
    >>> class Halving(fl.FedAvg):
    ...     def round(self, s: Server, cohort: Cohort) -> Server:
    ...         up = cohort.run(self.local_steps, x=s.x)
    ...         return Server(x=s.x + cohort.rate(lambda k: 0.5**k) * up.mean.dy, slots={})
    >>> task = fl.problems.random_quadratics(clients=4)
    >>> first, second = (fl.train(task, m(lr=0.1), rounds=1, steps=5).x for m in (Halving, fl.FedAvg))
    >>> torch.equal(first, second)
    True
    """

    round: int
    """The number of rounds finished before this one."""
    first: bool
    """Whether no round has taken place yet."""

    @abstractmethod
    def run(
        self, program: Callable[..., U | tuple[U, Memory]], **broadcast: Broadcast
    ) -> Replies[U]:
        """One exchange: send `broadcast`, let every client run `program(client, **broadcast)`,
        collect. The program is a method of the algorithm; it returns its upload, or the upload and what
        the client keeps. A vector that was already sent in this round is not sent again."""

    @abstractmethod
    def noise(self, like: Tensor) -> Tensor:
        """Standard normal numbers for the server, a function of (seed, round, call): the same on every
        process of a run. Use it instead of `torch.randn_like`."""

    def rate(self, rate: Rate) -> Any:
        """A server step size in this round. Prefer it to reading `round`: a program that does not
        depend on the round's number can be captured once and replayed."""
        return rate_at(rate, self.round, self.round)


class Algorithm(ABC, Generic[S, M]):
    """A federated method. Subclasses are frozen dataclasses of hyper-parameters.

    >>> import fairlead as fl
    >>> method = fl.Scaffold(lr=0.1)
    >>> method.with_lr(0.3).lr, method.sees_each(), method.rates()
    (0.3, False, {'lr': 0.1, 'server_lr': 1.0})
    """

    paper: ClassVar[str] = ""
    """The key of the paper in `fairlead.methods.citations`."""
    refuses: ClassVar[Mapping[str, str]] = {}
    """Settings that other methods have and the mathematics of this one does not allow, and why."""

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        for name, why in cls.refuses.items():
            default = getattr(cls, name, None)
            if name in settings and settings[name] not in (None, default):
                raise FairleadError(f"{cls.__name__} does not support {name}: {why}")
        return super().__new__(cls)

    def bind(self, layers: Mapping[str, slice], domain: Simplex | None = None) -> Self:
        """The method for a model with these parameters, by name and position in the vector, and for
        points of a set; most methods only know the whole space."""
        if domain is not None:
            raise FairleadError(
                f"the steps of {type(self).__name__} leave the simplex: use MirrorDescent or MirrorProx"
            )
        return self

    def settled(self, constants: Constants | None) -> Self:
        """The method with the settings that it takes from the task's constants; most take none."""
        return self

    def to(self, device: torch.device) -> Self:
        """The method with the tensors among its settings on a device."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(cast(Any, self))}
        moved = {n: v.to(device) for n, v in fields.items() if isinstance(v, Tensor)}
        return dataclasses.replace(cast(Any, self), **moved) if moved else self

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

    def program(self, name: str) -> Callable[..., Any]:
        """The client program with this name. An exchange is described by the name, so that any process
        that has the method can run it."""
        return getattr(self, name)

    def sees_each(self) -> bool:
        """Whether `round` looks at single uploads: at `replies.each`, or at more than the mean of them. They
        are then kept, and gathered from all processes of a run."""
        return False

    def communications(self) -> int:
        """How many communication rounds the paper counts per round."""
        return 1

    def rates(self) -> dict[str, Rate]:
        """The step sizes to check before training, by the name of their setting."""
        return {name: getattr(self, name) for name in ("lr", "server_lr") if hasattr(self, name)}


def program_name(program: Callable[..., Any]) -> str:
    """The name of a client program; refuses anything that is not a method of an algorithm.

    >>> program_name(lambda client: None)
    Traceback (most recent call last):
    ...
    fairlead.errors.FairleadError: cohort.run got <lambda>: pass a method of the algorithm, and what it \
needs as broadcast values
    """
    owner = getattr(program, "__self__", None)
    name = getattr(program, "__name__", type(program).__name__)
    if not isinstance(owner, Algorithm):
        raise FairleadError(
            f"cohort.run got {name}: pass a method of the algorithm, and what it needs as broadcast values"
        )
    return name


def is_own(method: Algorithm[Any, Any]) -> bool:
    """Whether a method, and one it is wrapped around, come with fairlead."""
    inner = getattr(method, "method", None)
    own = type(method).__module__.startswith("fairlead.methods.")
    return own and (not isinstance(inner, Algorithm) or is_own(inner))
