"""THE RULE: which configurations are raced, in which order, and why. Everything else only carries it out.

R: planned rounds     S: clients per round     N: clients     K: local steps     η: local step size     β: curvature

1. *Step size first*, for FedAvg with few local steps, because every other choice depends on it. Step sizes are 1 or 3
   times a power of ten: a short race cannot tell finer ones apart. The ladder starts near 1/β, the largest step that is
   safe for the measured curvature, runs for two rounds and is extended while its best rung is at an end. The two best
   go on for six: fewer rounds depend on who took part in them.
2. *Then the method*, all with few local steps and the step size found. Momentum multiplies a step, so it starts a rung
   lower. FedSGD takes one step as long as FedAvg's few together, but at most 1.5/L, as 2/L diverges; where a pass over
   the data is dearer than many local steps, minibatch SGD stands in for it, with the few batches of the others. One of
   these and FedAvg are always in: the answers are relative to them. Momentum is always in: sometimes the largest lever.
3. *A favourite, unless the race speaks clearly.* A race of a few rounds favours what is fast at first, such as momentum
   with a step that is too large in the long run; control variates pay only once clients have come back. So SCAFFOLD is
   the favourite where rounds or hours count, which on the development pairs was near the best of the grid more often
   than the winner of a short race, and FedAvg in 4 bits where bits count, as control variates double what is sent, unless the clients' gradients
   are so different that FedAvg stops short of the optimum.
   Another method is taken only if it gets as far in half the rounds, of two at least, or if the favourite is lost.
4. *Control variates only if clients return*: a client's correction is as old as its last visit, and with fewer than
   three visits (R·S/N) most corrections are those of the start. FedAvg is the favourite then. FedPVR only for networks:
   with one layer it is SCAFFOLD.
5. *Then more local steps* for the method taken, as they save rounds more often than not, with a step size a rung lower:
   drift grows with K·η, and a few rounds would choose one that is too large in the long run, or, where few of many
   clients take part, one that is too small. So it stays between a third of 1/β and 1/β. A rung lower again if few local
   steps get as far at half the cost; the better of all in the race if they still do.
6. *One compressed method*, as whether it pays depends on the task. It saves bits, not rounds, so where rounds count it
   runs only as long as it takes to tell.
7. Configurations are compared at the same cost (rounds, bits or hours), in the mean over the later half of the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
MARGIN = 2.0
"""How many times faster than the favourite another method must be to be taken instead."""
UNLIKE = 4.0
"""Clients whose gradients differ more, as mean‖∇f_i‖²/‖∇f‖², hold FedAvg back."""
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
    different: float | None = None
    """mean‖∇f_i‖²/‖∇f‖² at the start, one if all clients agree."""

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
        lambda lr: FedAvg(lr, server=MOMENTUM), {"method": "fedavg", "server": "momentum"}, 1 / LADDER
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


def rung(lr: float) -> float:
    """The nearest step size that is 1 or 3 times a power of ten (rule 1).

    >>> [rung(lr) for lr in (0.0123, 0.09, 0.2, 2.5)]
    [0.01, 0.1, 0.3, 3.0]
    """
    power = math.floor(math.log10(lr))
    near = [float(f"{digit}e{power}") for digit in (1, 3, 10)]
    return min(near, key=lambda one: abs(math.log(one / lr)))


def first_step(facts: Facts) -> float:
    """Where the ladder of step sizes starts: 1/β (rule 1)."""
    return UNMEASURED if facts.beta is None else rung(1 / facts.beta)


def step_sizes(facts: Facts) -> list[Candidate]:
    """FedAvg with three step sizes (rule 1)."""
    lr = first_step(facts)
    return [Candidate("FedAvg", facts.few, rung(lr * LADDER**k)) for k in (1, 0, -1)]


def extended(tried: Sequence[Candidate], best: Candidate) -> Candidate | None:
    """The next step size if the best is at an end of those tried (rule 1)."""
    rates = sorted(one.lr for one in tried)
    if best.lr == rates[-1]:
        return replace(best, lr=rung(best.lr * LADDER))
    if best.lr == rates[0]:
        return replace(best, lr=rung(best.lr / LADDER))
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
            found.append(Candidate(name, facts.few, rung(rate)))
    return found, reasons


def large_batch(facts: Facts) -> str:
    """FedSGD, or minibatch SGD where a pass over the data costs more than many local steps (rule 2)."""
    return "FedSGD" if facts.per_pass <= facts.many else "minibatch SGD"


def one_step(facts: Facts, lr: float) -> float:
    """FedSGD's step size: FedAvg's few steps together, but not beyond what is stable (rule 2)."""
    return facts.few * lr if facts.smooth is None else min(facts.few * lr, 1.5 / facts.smooth)


def favourite(facts: Facts, by: str) -> str:
    """The method to take unless the race speaks clearly against it (rules 3 and 4)."""
    if by == "bits" and (facts.different is None or facts.different < UNLIKE):
        return "FedAvg in 4 bits"
    return "SCAFFOLD" if facts.visits >= VISITS else "FedAvg"


def taken(savings: Mapping[Candidate, float], first: Candidate) -> Candidate:
    """The favourite, or the one that saves most if it saves enough (rule 3). savings: how many times the rounds of each
    the favourite needs to get as far."""
    most = max(savings, key=lambda one: savings[one], default=first)
    return most if savings.get(most, 1.0) >= MARGIN else first


def more_steps(facts: Facts, best: Candidate) -> list[Candidate]:
    """A method with more local steps, and with a yet smaller step size (rule 5)."""
    lr = best.lr / LADDER
    if facts.beta is not None:
        most = FAMILIES[best.family].factor / facts.beta
        lr = min(max(lr, most / LADDER), most)
    return [Candidate(best.family, facts.many, rate) for rate in (rung(lr), rung(lr / LADDER))]
