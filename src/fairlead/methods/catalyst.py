"""Catalyst: any method on f_i + θ/2·‖x − x̄‖² (for saddle points: G_i + θ(z − z̄)), whose centre z̄ moves to
the result after some inner rounds. With SCAFFOLD-S it is SCAFFOLD-Catalyst-S, Algorithm 3 of Hou et al.
2021; θ(z − z̄) has a plus sign for both players (the minus in the paper is a misprint).

z̄: centre     inner_rounds: rounds of the inner method between two centres
theta: θ, or "theory" for the β − μ of Theorems 8 and 9, from the task's constants before the first round
decrease: move the centre earlier, as soon as a round moves z by less than this share of the first move after
    the last centre: the paper's "sufficient decrease" (appendix F), measured by moves because these need no
    extra exchange and shrink with ‖G(z) + θ(z − z̄)‖
extrapolation: β in z̄ ← z + β(z − z_before), Nesterov's acceleration for minimization; 0 in the paper
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fairlead.core.method import Algorithm, Broadcast, Client, Cohort, Lasting, Replies, Step
from fairlead.core.records import Memory, State
from fairlead.errors import FairleadError
from fairlead.schedules import Rate
from fairlead.theory.bound import Constants
from fairlead.theory.saddle import catalyst_theta


class Centred(State):
    """The inner method's state, the centre, the result before it, the rounds since the centre moved, the
    first move after that, and how often the centre has moved."""

    x: Tensor
    inner: State
    centre: Tensor
    before: Tensor
    age: Tensor
    first: Tensor
    version: Tensor


@dataclass(frozen=True)
class Catalyst(Algorithm[Centred, Memory]):
    """Another method with a proximal term around a centre that moves every few rounds.

    >>> import fairlead as fl
    >>> game = fl.problems.quadratic_game(clients=4, mu=0.1)
    >>> run = fl.train(game, fl.Catalyst(fl.ScaffoldS(lr=0.05), theta="theory"), rounds=5, steps=5)
    >>> known = game.constants
    >>> round(run.algorithm.theta - (known.beta - known.mu), 9)  # θ = β − μ
    0.0
    """

    paper: ClassVar[str] = "saddle"
    method: Algorithm[Any, Any]
    theta: float | Literal["theory"] = 1.0
    inner_rounds: int = 5
    extrapolation: float = 0.0
    decrease: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.method, Catalyst):
            raise FairleadError(
                "Catalyst cannot wrap another Catalyst: use one with the sum of their thetas"
            )
        unknown = self.theta != "theory" if isinstance(self.theta, str) else self.theta < 0
        if unknown or self.inner_rounds < 1 or not 0 <= self.decrease < 1:
            raise FairleadError(
                'theta must be at least 0 or "theory", inner_rounds at least 1, and decrease in [0, 1)'
            )

    @property
    def lr(self) -> Rate:
        """The inner method's step size."""
        return self.method.rates()["lr"]

    def settled(self, constants: Constants | None) -> Self:
        method = self.method.settled(constants)
        if not isinstance(self.theta, str):
            return replace(self, method=method)
        if constants is None or not constants.knows("mu", "beta"):
            raise FairleadError(
                'Catalyst(theta="theory") needs μ and β of the task, which are not known: measure them and use '
                "task.replace(constants=fl.theory.Constants(mu=…, beta=…)), or set theta to a number"
            )
        return replace(self, method=method, theta=catalyst_theta(constants))

    def bind(self, layers: Any, domain: Any = None) -> Self:
        return replace(self, method=self.method.bind(layers, domain))

    def with_lr(self, lr: Rate) -> Self:
        return replace(self, method=self.method.with_lr(lr))

    def to(self, device: torch.device) -> Self:
        return replace(self, method=self.method.to(device))

    def program(self, name: str) -> Callable[..., Any]:
        inner, theta = self.method.program(name), self.theta
        if isinstance(theta, str):
            raise FairleadError('theta is "theory": call settled(task.constants) first')

        def held(client: Client[Any], centre: Tensor, **down: Any) -> Any:
            return inner(_HeldClient(client, theta, centre), **down)

        return held

    def sees_each(self) -> bool:
        return self.method.sees_each()

    def communications(self) -> int:
        return self.method.communications()

    def rates(self) -> dict[str, Rate]:
        return self.method.rates()

    def init(self, x: Tensor) -> Centred:
        zero = x.new_zeros(())
        inner = self.method.init(x)
        return Centred(x=x, inner=inner, centre=x, before=x, age=zero, first=zero, version=zero)

    def memory(self, x: Tensor) -> Memory | None:
        return self.method.memory(x)

    def start(self, s: Centred, everyone: Cohort) -> Centred:
        inner = self.method.start(s.inner, _Held(everyone, s))
        return replace(s, x=inner.x, inner=inner)

    def round(self, s: Centred, cohort: Cohort) -> Centred:
        inner = self.method.round(s.inner, _Held(cohort, s))  # Algorithm 3: SCAFFOLD-S on f_i^θ
        z, age, move = inner.x, s.age + 1, (inner.x - s.x).norm()
        first = torch.where(age == 1, move, s.first)
        on = (age >= self.inner_rounds) | ((age > 1) & (move < self.decrease * first))
        centre = torch.where(on, z + self.extrapolation * (z - s.before), s.centre)
        return Centred(
            x=z, inner=inner, centre=centre, before=torch.where(on, z, s.before),
            age=torch.where(on, 0, age), first=first, version=s.version + on,
        )  # fmt: skip


class _Held(Cohort):
    """A cohort whose clients also receive the centre, whenever it has moved."""

    def __init__(self, cohort: Cohort, s: Centred) -> None:
        self.cohort, self.centre = cohort, Lasting(s.centre, s.version)
        self.first, self.rate = cohort.first, cohort.rate

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cohort, name)  # the round's number, only if it is read

    def noise(self, like: Tensor) -> Tensor:
        return self.cohort.noise(like)

    def run(self, program: Callable[..., Any], **broadcast: Broadcast) -> Replies[Any]:
        return self.cohort.run(program, **broadcast, centre=self.centre)


class _HeldClient(Client[Any]):
    def __init__(self, client: Client[Any], theta: float, centre: Tensor) -> None:
        self.client, self.theta, self.centre = client, theta, centre
        self.memory = client.memory

    def pulled(self, g: Tensor, z: Tensor) -> Tensor:
        return g + self.theta * (z - self.centre)  # Algorithm 3: the mapping of f_i^θ

    @property
    def moved(self) -> Any:
        return self.client.moved

    def steps(self, lr: Rate) -> Iterator[Step]:
        for step in self.client.steps(lr):
            yield _HeldStep(step, self)

    def grad(self, x: Tensor, batch: int | None = None) -> Tensor:
        return self.pulled(self.client.grad(x, batch), x)

    def encode(self, upload: Any, by: Any) -> Any:
        return self.client.encode(upload, by)

    def noise(self, like: Tensor) -> Tensor:
        return self.client.noise(like)


class _HeldStep(Step):
    def __init__(self, step: Step, client: _HeldClient) -> None:
        self.step, self.client, self.lr = step, client, step.lr

    def grad(self, y: Tensor) -> Tensor:
        return self.client.pulled(self.step.grad(y), y)

    def at(self, y: Tensor) -> Tensor:
        return self.step.at(y)
