"""What is timed: S clients × K steps × batch B of a model, on random data.

The floor needs two counts of a round. FLOPs are those of the matrix products and convolutions that
the gradient needs: forward, backward to the weights, and backward to the inputs of every layer but
the first. Bytes are the fewest a step can do with: samples read once; weights read forward and
backward; the gradient written; weights and gradient read and weights written by the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.peers import plain
from fairlead.data.splits import Split
from fairlead.errors import FairleadError, unknown
from fairlead.task import models
from fairlead.task.task import Task


@dataclass(frozen=True)
class Count:
    """The work of one round."""

    products: float
    """FLOPs of matrix products."""
    convolutions: float
    """FLOPs of convolutions."""
    three_passes: float
    """FLOPs if backward cost twice forward, as papers have it."""
    data: float
    """Bytes of samples."""
    weights: float
    """Bytes of weights and gradients."""

    @property
    def flops(self) -> float:
        """All that the gradients need."""
        return self.products + self.convolutions


@dataclass(frozen=True)
class Workload:
    """S clients × K steps × batch B.

    model, arguments: a maker in `fairlead.task.models` and what it is given.
    cpu_batch: the batch on a CPU, where the other would take minutes.
    population: clients of which a round samples S; by default they are S.
    rounds, eval_every, test: for a whole run, timed with its evaluations on `test` samples.

    >>> WORKLOADS["W1"].title
    'softmax 784→62, 20 × 5 × 240'
    >>> WORKLOADS["W1"].count.flops == 2 * 2 * 784 * 62 * 20 * 5 * 240
    True
    """

    name: str
    label: str
    model: str
    arguments: tuple[int, ...]
    shape: tuple[int, ...]
    classes: int
    clients: int
    steps: int
    batch: int
    cpu_batch: int | None = None
    population: int = 0
    rounds: int = 0
    eval_every: int = 0
    test: int = 0
    lr: float = 0.01

    def __post_init__(self) -> None:
        if not self.population:
            object.__setattr__(self, "population", self.clients)

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        whole = f", a run of {self.rounds} rounds" if self.rounds else ""
        return f"{self.label}, {self.clients} × {self.steps} × {self.batch}{whole}"

    @property
    def maker(self) -> models.Maker:
        """Makes the model."""
        return getattr(models, self.model)(*self.arguments)

    @cached_property
    def dim(self) -> int:
        """Parameters."""
        return models.count(self.maker)

    def on(self, device: str) -> Workload:
        """The workload as it is run on a device."""
        small = self.cpu_batch if device == "cpu" else None
        return replace(self, batch=small or self.batch, cpu_batch=None)

    def asked(self, **more: Any) -> plain.Work:
        """The workload as JSON for the process that runs it."""
        return {**asdict(self), **more}

    @classmethod
    def read(cls, work: plain.Work) -> Workload:
        """From what `asked` gives."""
        known = {f.name: work[f.name] for f in fields(cls)}
        known |= {name: tuple(known[name]) for name in ("arguments", "shape")}
        return cls(**known)

    def task(self, device: str = "cpu") -> Task:
        """Random data, for every client as much as its steps use."""
        x, y = (t.flatten(0, 1) for t in plain.data(self.asked()))
        each = self.steps * self.batch
        owners = Split(np.arange(len(y)), np.arange(0, len(y) + 1, each))
        test = plain.held_out(self.asked()) if self.test else None
        return Task(self.maker, "cross_entropy", (x, y), owners, test=test, device=device)

    @cached_property
    def count(self) -> Count:
        """The fewest FLOPs and bytes of a round."""
        with torch.device("meta"):
            model, x = self.maker(), torch.empty(1, *self.shape)
            with FlopCounterMode(display=False) as forward:
                model(x)
            with FlopCounterMode(display=False) as both:
                model(x).sum().backward()
        kinds = both.get_flop_counts()["Global"]
        spent = {"conv": 0, "product": 0}
        for operator, flops in kinds.items():
            spent["conv" if "convolution" in str(operator) else "product"] += flops
        steps = self.clients * self.steps
        sample = 4 * int(np.prod(self.shape)) + 8  # and its label
        return Count(
            products=float(spent["product"] * steps * self.batch),
            convolutions=float(spent["conv"] * steps * self.batch),
            three_passes=float(3 * forward.get_total_flops() * steps * self.batch),
            data=float(sample * steps * self.batch),
            weights=float(6 * 4 * self.dim * steps),
        )


_IMAGE = (3, 32, 32)
_ALL = [
    Workload("W1", "softmax 784→62", "mlp", (784, 62), (784,), 62, 20, 5, 240),
    Workload("W2", "MLP 784-300-300-10", "mlp", (784, 300, 300, 10), (784,), 10, 25, 10, 32),
    Workload("W3", "FEMNIST CNN", "femnist_cnn", (), (1, 28, 28), 62, 10, 5, 20),
    Workload("W4", "ResNet-8 GroupNorm", "resnet8", (), _IMAGE, 10, 10, 5, 256, cpu_batch=64),
    Workload("W5", "VGG-11", "vgg11", (), _IMAGE, 10, 10, 5, 256, cpu_batch=16),
    Workload("W6", "pfl's CIFAR-10 CNN", "cifar_cnn", (), _IMAGE, 10, 50, 5, 10),
    Workload(
        "W6run", "pfl's CIFAR-10 CNN", "cifar_cnn", (), _IMAGE, 10, 50, 5, 10, population=1000,
        rounds=1500, eval_every=10, test=10_000,
    ),
]  # fmt: skip

WORKLOADS: dict[str, Workload] = {w.name: w for w in _ALL}
DEFAULT = ("W1", "W2", "W3")


def chosen(names: Sequence[str], device: str, rounds: int | None = None) -> list[Workload]:
    """Workloads by name, as they are run on a device; `rounds` for shorter whole runs."""
    known = {name.lower(): w for name, w in WORKLOADS.items()}
    for name in names:
        if name.lower() not in known:
            raise unknown("workload", name, WORKLOADS)
    if rounds is not None and rounds < 1:
        raise FairleadError(f"rounds is {rounds}: take at least 1")
    found = [known[name.lower()].on(device) for name in names or DEFAULT]
    return [replace(w, rounds=rounds) if rounds and w.rounds else w for w in found]
