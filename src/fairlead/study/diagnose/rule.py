"""THE RULE: which configurations are raced, in which order, and why. Everything else only carries it out.

R: planned rounds     S: clients per round     N: clients     K: local steps     η: local step size     β: curvature

1. *Step size first*, for FedAvg, because every other choice depends on it and it is cheap to see: a step that is too
   large shows in one round. The ladder starts at 1/β, the largest step that is safe for the measured curvature, and is
   extended while its best rung is at an end. The two best go on, as one round favours steps that are too large.
2. *Then the method*, all with the few local steps that are cheap to try, and with the step size found. Local momentum
   multiplies a step, so it starts lower; the server's does so only after some rounds, and starts at half. FedSGD takes
   one step as long as FedAvg's few together, but at most 1.5/L, as 2/L diverges; where a pass over the data is dearer
   than many local steps, minibatch SGD stands in for it, with the few batches of the others. One of these and FedAvg
   are always in: the answers are relative to them. Momentum is always in: often the largest lever.
3. *Then more local steps* for the best method, as they cost most to try: with the same step size, which is often
   right, and if that is worse with a smaller one, because drift grows with K·η. With the server's momentum the smaller
   one comes first: its steps grow tenfold over ten rounds, more than a short race shows.
4. *Control variates only if clients return*: a client's correction is as old as its last visit, and with fewer than
   three visits (R·S/N) most corrections are those of the start. FedPVR only for networks: with one layer it is SCAFFOLD.
5. *One compressed method*, as whether it pays depends on the task. It saves bits, not rounds, so where rounds count it
   runs only as long as it takes to tell.
6. Configurations are compared at the same cost (rounds, bits or hours), and the worse half is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from fairlead.compress import QSGD
from fairlead.core.method import Algorithm
from fairlead.methods import FedAvg, FedPVR, FedSGD, MinibatchSGD, Scaffold

LADDER = 3.0
"""The ratio of neighbouring step sizes."""
VISITS = 3.0
"""How often a client must take part before what it keeps is of use."""
MANY = 4
"""How many times as many local steps are tried."""
UNMEASURED = 0.1
"""The step size to start from if the curvature was not measured."""


@dataclass(frozen=True)
class Facts:
    """What the rule knows of the task and the planned run."""

    clients: int
    cohort: float
    """Clients per round, in the mean."""
    rounds: int
    steps: int
    """The local steps of the planned run."""
    layers: int
    """Layers with parameters."""
    per_pass: float = 1.0
    """The steps of a pass over a client's data, in the mean."""
    beta: float | None = None
    """The largest curvature of a client at the start, β; None if not measured."""
    smooth: float | None = None
    """That of the mean, L."""

    @property
    def visits(self) -> float:
        """How often a client takes part in the planned run."""
        return self.rounds * self.cohort / self.clients

    @property
    def few(self) -> int:
        """The local steps that are raced first."""
        return max(2, math.ceil(self.steps / 2))

    @property
    def many(self) -> int:
        """The local steps that the best method is tried with."""
        return MANY * self.few


@dataclass(frozen=True)
class Family:
    """A method with its settings except for the step size, and how the command line writes it."""

    make: Callable[[float], Algorithm[Any, Any]]
    written: dict[str, Any]
    factor: float = 1.0
    """Its step size to start with, relative to FedAvg's."""
    stateful: bool = False
    layered: bool = False
    builds: bool = False
    """Whether its steps go on growing for rounds, beyond what a short race shows."""


LARGE = ("FedSGD", "minibatch SGD")
"""One large-batch step per round."""
MOMENTUM = partial(torch.optim.SGD, momentum=0.9, lr=1.0)

FAMILIES: dict[str, Family] = {
    "FedSGD": Family(FedSGD, {"method": "fedsgd"}),
    "minibatch SGD": Family(MinibatchSGD, {"method": "minibatch-sgd"}),
    "FedAvg": Family(FedAvg, {"method": "fedavg"}),
    "FedAvg with local momentum": Family(
        lambda lr: FedAvg(lr, momentum=0.9), {"method": "fedavg", "momentum": 0.9}, 1 / LADDER
    ),
    "FedAvg with server momentum": Family(
        lambda lr: FedAvg(lr, server=MOMENTUM), {"method": "fedavg", "server": "momentum"}, 0.5, builds=True
    ),
    "SCAFFOLD": Family(Scaffold, {"method": "scaffold"}, stateful=True),
    "FedPVR": Family(
        lambda lr: FedPVR(lr, momentum=0.9), {"method": "fedpvr", "momentum": 0.9}, 1 / LADDER,
        stateful=True, layered=True,
    ),
    "FedAvg in 4 bits": Family(
        lambda lr: FedAvg(lr, compressor=QSGD(4)), {"method": "fedavg", "compressor": "qsgd:4"}
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """One configuration: a method, its local steps and its step size.

    >>> Candidate("SCAFFOLD", 5, 0.3).written
    {'method': 'scaffold', 'lr': 0.3, 'steps': 5}
    """

    family: str
    steps: int
    lr: float

    def __str__(self) -> str:
        work = "" if self.family == "FedSGD" else f", K = {self.steps}"
        return f"{self.family}{work}, lr {self.lr:.3g}"

    @property
    def method(self) -> Algorithm[Any, Any]:
        """The method with its step size."""
        return FAMILIES[self.family].make(self.lr)

    @property
    def written(self) -> dict[str, Any]:
        """The settings of `fairlead run`."""
        work = {} if self.family == "FedSGD" else {"steps": self.steps}
        return {**FAMILIES[self.family].written, "lr": self.lr, **work}


def two_digits(lr: float) -> float:
    """A step size that can be read: two digits are enough.

    >>> two_digits(0.0123456)
    0.012
    """
    return float(f"{lr:.2g}")


def first_step(facts: Facts) -> float:
    """Where the ladder of step sizes starts: 1/β (rule 1)."""
    return UNMEASURED if facts.beta is None else two_digits(1 / facts.beta)


def step_sizes(facts: Facts) -> list[Candidate]:
    """FedAvg with three step sizes (rule 1)."""
    lr = first_step(facts)
    return [Candidate("FedAvg", facts.few, two_digits(lr * LADDER**k)) for k in (1, 0, -1)]


def extended(tried: Sequence[Candidate], best: Candidate) -> Candidate | None:
    """The next step size if the best is at an end of those tried (rule 1)."""
    rates = sorted(one.lr for one in tried)
    if best.lr == rates[-1]:
        return replace(best, lr=two_digits(best.lr * LADDER))
    if best.lr == rates[0]:
        return replace(best, lr=two_digits(best.lr / LADDER))
    return None


def methods(facts: Facts, lr: float) -> tuple[list[Candidate], list[str]]:
    """Every method with few local steps, and why some are left out (rules 2, 4 and 5). The order is that in which they
    are kept where the budget is short."""
    found, reasons = [], []
    for name, family in FAMILIES.items():
        if family.stateful and facts.visits < VISITS:
            reasons.append(
                f"{name} is left out: a client takes part {facts.visits:.1f} times in {facts.rounds} rounds (R·S/N), "
                f"and what it keeps between visits is of use only from {VISITS:g} on"
            )
        elif family.layered and facts.layers < 2:
            reasons.append(f"{name} is left out: the model has one layer, for which it is SCAFFOLD")
        elif name not in LARGE or name == large_batch(facts):
            rate = one_step(facts, lr) if name in LARGE else lr * family.factor
            found.append(Candidate(name, facts.few, two_digits(rate)))
    return found, reasons


def large_batch(facts: Facts) -> str:
    """FedSGD, or minibatch SGD where a pass over the data costs more than many local steps (rule 2)."""
    return "FedSGD" if facts.per_pass <= facts.many else "minibatch SGD"


def one_step(facts: Facts, lr: float) -> float:
    """FedSGD's step size: FedAvg's few steps together, but not beyond what is stable (rule 2)."""
    return facts.few * lr if facts.smooth is None else min(facts.few * lr, 1.5 / facts.smooth)


def more_steps(facts: Facts, best: Candidate) -> list[Candidate]:
    """The best method with more local steps: with the same step size, and then, if that is worse, with a smaller one
    (rule 3)."""
    start = best.lr / LADDER if FAMILIES[best.family].builds else best.lr
    rates = (two_digits(start), two_digits(start / LADDER))
    return [Candidate(best.family, facts.many, lr) for lr in rates]
