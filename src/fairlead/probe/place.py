"""Probes: measures of a model and its clients at a point, as client programs through the exchange.

probe.take(place) ── place.run(self.program, x=…) ──▶ the engine, as an exchange of a method
    client programs see a `ProbedClient`: full gradients, Hessian-vector products, losses, features
◀── Found: named numbers, ranges, remarks

A probe writes nothing: what its programs return as a client's memory is dropped, and the run goes on as if it
had not been taken. Its bits and gradients stand in the accounts under its own name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Algorithm, Broadcast, Client, Cohort, Replies
from fairlead.core.records import State
from fairlead.errors import FairleadError

Ids = NDArray[np.int64]


class ProbedClient(Client[Any]):
    """What a probe's program sees of its client, or of S clients at once."""

    ids: Tensor
    """The clients' numbers: (S, 1), or (1,) for one client."""
    part: Any
    """The coordinates that the method variance-reduces, see `part_of`."""

    @abstractmethod
    def halves(self, x: Tensor, batch: int | None) -> tuple[Tensor, Tensor]:
        """The gradient g on the large batch of `grad`, and half the difference h of the gradients on its two halves, scaled so
        that ‖g‖² − ‖h‖² has the mean ‖∇f_i(x)‖²; zero where the batch is all local data."""

    @abstractmethod
    def products(self, x: Tensor, v: Tensor, batch: int | None = None) -> Tensor:
        """∇²f_i(x) times every row of v (m, d), or of the client's own (…, m, d), on all local data or on the large batch
        of `grad`."""

    def product(self, x: Tensor, v: Tensor, batch: int | None = None) -> Tensor:
        """∇²f_i(x)·v of one vector (d,), or one for each client."""
        return self.products(x, v.unsqueeze(-2), batch).squeeze(-2)

    @abstractmethod
    def variance(self, x: Tensor, batch: int | None = None, part: Any = None) -> Tensor:
        """E‖g − ∇f_i(x)‖² for a gradient on one sample, on some coordinates: (S, 1) or (1,)."""

    @abstractmethod
    def loss(self, x: Tensor) -> Tensor:
        """f_i(x) with the model in evaluation mode: (S, 1) or (1,)."""

    @abstractmethod
    def tested(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """How many test samples the client has, (S, 1) or (1,), and the sums over them of the loss and of every metric
        that has a value per sample, in the order of `Place.tests`: (S, m) or (m,)."""

    @abstractmethod
    def settled(self, value: Any) -> Any:
        """A vector or record of a method's program, with sums that were put off computed."""

    @abstractmethod
    def features(self, x: Tensor, inputs: Tensor) -> dict[str, Tensor]:
        """The outputs of the layers that have parameters, in evaluation mode: (S, m, …) or (m, …)."""


class Exchanges(ABC):
    """The engine, as a probe sees it."""

    @abstractmethod
    def run(
        self, label: str, program: Callable[..., Any], ids: Ids, broadcast: Mapping[str, Broadcast]
    ) -> Replies[Any]:
        """One exchange with some clients that take no steps. label: the program's name."""

    @abstractmethod
    def trial(
        self, state: State, ids: Ids, hear: Callable[..., Any], sent: Mapping[str, Broadcast]
    ) -> tuple[State, dict[str, Tensor]]:
        """A round of the method with some clients of which nothing is kept: the state that it would lead to, and
        the means (or rows) of what `hear(client, ear, **sent)` returned. See `fairlead.probe.trial`."""

    @abstractmethod
    def noise(self, call: int, like: Tensor) -> Tensor:
        """Standard normal numbers, the same in every process."""


@dataclass(frozen=True)
class Place:
    """Where a probe is taken: a point, the clients, and what is known about the task."""

    x: Tensor
    exchanges: Exchanges = field(repr=False)
    clients: int
    sizes: Ids = field(repr=False)
    weights: NDArray[np.float64] = field(repr=False)
    """The weight of every client in the objective."""
    layers: Mapping[str, slice] = field(repr=False)
    flip: Tensor | None = field(repr=False)
    """The signs of a saddle task's coordinates."""
    optimum: Tensor | None = field(repr=False)
    held_out: Tensor | None = field(repr=False)
    """Inputs that clients do not train on, as the model expects them."""
    state: State = field(repr=False)
    method: Algorithm[Any, Any] = field(repr=False)
    seed: int = 0
    round: int = 0
    tests: tuple[str, ...] = ()
    """What clients measure on their test data, by name."""
    present: Ids | None = field(default=None, repr=False)
    """The clients that answer; None for all."""

    @property
    def part(self) -> Any:
        """The coordinates that the method variance-reduces."""
        return part_of(self.method)

    def some(self, count: int | None) -> Ids:
        """So many clients at random, the same in every process; all if None."""
        there = np.arange(self.clients) if self.present is None else self.present
        if count is None or count >= len(there):
            return there
        rng = np.random.default_rng([self.seed, self.round, count])
        return np.sort(rng.choice(there, count, replace=False))

    def run(self, program: Callable[..., Any], ids: Ids, **broadcast: Broadcast) -> Any:
        """The means over clients of what a program of a probe uploads; fields of `each` have a row per client."""
        return self.exchanges.run(program.__name__, program, ids, broadcast).mean

    def noise(self, call: int, count: int = 1) -> Tensor:
        """Standard normal vectors (count, d)."""
        return self.exchanges.noise(call, self.x.expand(count, -1))


@dataclass(frozen=True)
class Found:
    """What a probe found: numbers, the ranges of those that are estimates, and remarks. The number whose name is
    empty has the probe's own name."""

    values: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    clients: int = 0
    samples: int = 0
    """Samples that it used, over all clients."""
    vectors: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Results that are no single numbers, such as one per client."""


class Probe(ABC):
    """A measure at a point, for `train(measures=[…])` or `fl.measure.take`.

    Subclasses are frozen dataclasses; their client programs are methods that return an `Upload`.
    """

    name: ClassVar[str]
    """The prefix of its columns."""
    leaves: ClassVar[str]
    """What leaves a client, in words."""

    @abstractmethod
    def take(self, at: Place) -> Found:
        """The server's program."""

    def column(self, key: str) -> str:
        """The column of a number.

        >>> from fairlead.probe import Dissimilarity
        >>> Dissimilarity().column("zeta_max"), Dissimilarity().column("")
        ('dissimilarity/zeta_max', 'dissimilarity')
        """
        return f"{self.name}/{key}" if key else self.name


def part_of(method: Algorithm[Any, Any]) -> Any:
    """The coordinates that a method variance-reduces: FedPVR's part; None if it does not say."""
    return getattr(getattr(method, "method", method), "part", None)


def used(at: Place, ids: Ids, batch: int | None) -> int:
    """Samples of some clients, at most `batch` of each."""
    sizes = at.sizes[ids]
    return int(sizes.sum() if batch is None else np.minimum(sizes, batch).sum())


def sampled(at: Place, ids: Ids, batch: int | None) -> list[str]:
    """Remarks about what was left out.

    With m of N clients drawn at random, the largest of their values is above a share q of all clients' values
    with probability 1 − q^m (Wilks 1941); the remark gives q for 95 %.
    """
    notes = []
    if len(ids) < at.clients:
        share = 0.05 ** (1 / len(ids))
        notes.append(
            f"from {len(ids)} of {at.clients} clients: maxima over clients are lower bounds, which with 95 % "
            f"confidence are above the values of {share:.0%} of the clients"
        )
    if batch is not None and batch < int(at.sizes[ids].max()):
        notes.append(
            f"from at most {batch} samples per client: an estimate of the values on all of their data"
        )
    return notes


def coordinates(part: Any, layers: Mapping[str, slice]) -> Any:
    """An index of the last axis from a slice, a mask, indices or names of layers; None for all."""
    if part is None or isinstance(part, slice):
        return part
    if isinstance(part, Tensor):
        return part.nonzero()[:, 0] if part.dtype == torch.bool else part
    names = [part] if isinstance(part, str) else list(part)
    found = [at for key, at in layers.items() if key in names or key.rpartition(".")[0] in names]
    if not found:
        raise FairleadError(f"no layer is named {names[0]}: choose from {', '.join(layers)}")
    return torch.cat([torch.arange(at.start, at.stop) for at in found])


__all__ = [
    "Cohort",
    "Exchanges",
    "Found",
    "Place",
    "Probe",
    "ProbedClient",
    "coordinates",
    "part_of",
    "sampled",
    "used",
]
