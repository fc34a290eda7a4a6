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
   with a step that is too large in the long run; control variates pay only once clients have come back. So SCAFFOLD
   is the favourite: on the development pairs it was near the best of the grid more often than the winner of a short
   race. Another method is taken only if it gets as far in half the rounds, of two at least, or if SCAFFOLD is lost.
   SCAFFOLD goes on with a server momentum of 0.7, which saved rounds there and bears a step size that is a rung off;
   0.9 did not where few of many clients take part, and 0.7 does so with half the step. Momentum needs rounds to build
   up, so the race is run without. Where bits count, 8 bits are sent per number: as many rounds as without, and two
   thirds of the bits.
4. *Control variates only if clients return*: a client's correction is as old as its last visit, and with fewer than
   three visits (R·S/N) most corrections are those of the start. The favourite is FedAvg then, in 4 bits where bits
   count. FedPVR only for networks: with one layer it is SCAFFOLD.
5. *Then more local steps* for the method taken, as they save rounds more often than not, with a step size a rung lower:
   drift grows with K·η. It is held between a quarter and two thirds of 1/β, as a few rounds would choose one that is too
   large in the long run or, where few of many clients take part, far too small. If the loss does not fall, a rung lower
   again. Whether few local steps are ahead after two rounds is not asked: control variates are still those of the start.
6. *One compressed method*, as whether it pays depends on the task: FedAvg in 4 bits. It saves bits, not rounds, so where
   rounds count it runs only as long as it takes to tell.
7. *The rest* goes to a second seed, to runs for the questions about few clients and centralised training, and to the
   recommendation, whose forecast is the better the longer it ran; none of it changes the choice.
8. Configurations are compared at the same cost (rounds, bits or hours), in the mean over the later half of the rounds.
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
    sampled: float = 1.0
    """A further factor where only some of the clients take part in a round."""
    stateful: bool = False
    layered: bool = False


LARGE = ("FedSGD", "minibatch SGD")
"""One large-batch step per round."""
PACKED = "SCAFFOLD with server momentum, 8 bits"
"""The favourite where bits count."""
NINE, SEVEN = (partial(torch.optim.SGD, momentum=m, lr=1.0) for m in (0.9, 0.7))

FAMILIES: dict[str, Family] = {
    "FedSGD": Family(FedSGD, {"method": "fedsgd"}),
    "minibatch SGD": Family(MinibatchSGD, {"method": "minibatch-sgd"}),
    "FedAvg": Family(FedAvg, {"method": "fedavg"}),
    "FedAvg with local momentum": Family(
        lambda lr: FedAvg(lr, momentum=0.9), {"method": "fedavg", "momentum": 0.9}, 1 / LADDER
    ),
    "FedAvg with server momentum": Family(
        lambda lr: FedAvg(lr, server=NINE), {"method": "fedavg", "server": "momentum"}, 1 / LADDER
    ),
    "SCAFFOLD": Family(Scaffold, {"method": "scaffold"}, stateful=True),
    "SCAFFOLD with server momentum": Family(
        lambda lr: Scaffold(lr, server=SEVEN), {"method": "scaffold", "server": "momentum:0.7"},
        sampled=1 / 2, stateful=True,
    ),
    PACKED: Family(
        lambda lr: Scaffold(lr, server=SEVEN, compressor=QSGD(8)),
        {"method": "scaffold", "server": "momentum:0.7", "compressor": "qsgd:8"},
        sampled=1 / 2, stateful=True,
    ),
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


def methods(facts: Facts, lr: float, by: str = "rounds") -> tuple[list[Candidate], list[str]]:
    """Every method with few local steps, and why some are left out (rules 2 to 4). The order is that in which they are
    kept where the budget is short."""
    found, rare, reasons = [], [], []
    spare = "SCAFFOLD with server momentum" if by == "bits" else PACKED  # one of them is enough
    for name, family in FAMILIES.items():
        if name == spare:
            continue
        if family.stateful and facts.visits < VISITS:
            rare.append(name)
        elif family.layered and facts.layers < 2:
            reasons.append(f"{name} is left out: the model has one layer, for which it is SCAFFOLD")
        elif name not in LARGE or name == large_batch(facts):
            rate = one_step(facts, lr) if name in LARGE else lr * relative(name, facts)
            found.append(Candidate(name, facts.few, rung(rate)))
    if rare:
        reasons.append(
            f"left out: {'; '.join(rare)}. A client takes part {facts.visits:.1f} times in {facts.rounds} rounds (R·S/N), "
            f"and what it keeps between visits is of use only from {VISITS:g} on"
        )
    return found, reasons


def large_batch(facts: Facts) -> str:
    """FedSGD, or minibatch SGD where a pass over the data costs more than many local steps (rule 2)."""
    return "FedSGD" if facts.per_pass <= facts.many else "minibatch SGD"


def one_step(facts: Facts, lr: float) -> float:
    """FedSGD's step size: FedAvg's few steps together, but not beyond what is stable (rule 2)."""
    return facts.few * lr if facts.smooth is None else min(facts.few * lr, 1.5 / facts.smooth)


def favourite(facts: Facts, by: str) -> str:
    """The method to take unless the race speaks clearly against it (rules 3 and 4)."""
    if facts.visits >= VISITS:
        return "SCAFFOLD"
    return "FedAvg in 4 bits" if by == "bits" else "FedAvg"


def going_on(one: Candidate, facts: Facts, by: str) -> Candidate:
    """What is taken, as it goes on: SCAFFOLD with momentum at the server (rule 3).

    >>> all_of_them = Facts(clients=10, cohort=10, rounds=50, steps=10, layers=1)
    >>> str(going_on(Candidate("SCAFFOLD", 5, 0.3), all_of_them, "rounds"))
    'SCAFFOLD with server momentum, K = 5, lr 0.3'
    """
    if one.family != "SCAFFOLD":
        return one
    family = PACKED if by == "bits" else "SCAFFOLD with server momentum"
    return replace(one, family=family, lr=rung(one.lr * relative(family, facts)))


def relative(family: str, facts: Facts) -> float:
    """A method's step size relative to FedAvg's (rules 2 and 3)."""
    one = FAMILIES[family]
    return one.factor * (one.sampled if facts.cohort < facts.clients else 1.0)


def taken(savings: Mapping[Candidate, float], first: Candidate) -> Candidate:
    """The favourite, or the one that saves most if it saves enough (rule 3). savings: how many times the rounds of each
    the favourite needs to get as far."""
    most = max(savings, key=lambda one: savings[one], default=first)
    return most if savings.get(most, 1.0) >= MARGIN else first


def more_steps(facts: Facts, best: Candidate) -> list[Candidate]:
    """A method with more local steps, and with a yet smaller step size (rule 5)."""
    lr = best.lr / LADDER
    if facts.beta is not None:
        most = relative(best.family, facts) / facts.beta
        lr = min(max(lr, most / 4), 2 * most / 3)
    return [Candidate(best.family, facts.many, rate) for rate in (rung(lr), rung(lr / LADDER))]
