"""Catalyst: any method on f_i + θ/2·‖x − x̄‖² (for saddle points: G_i + θ(z − z̄)), whose centre z̄ moves to
the result after some inner rounds. Around SCAFFOLD-S it is SCAFFOLD-Catalyst-S, Algorithm 3 of Hou et al.
2021; the sign of θ(z − z̄) is plus for both players, the paper's display with a minus is a misprint.

z̄: centre     theta: θ     inner_rounds: rounds of the inner method between two centres
extrapolation: β of z̄ ← z + β(z − z_before), Nesterov's way for minimization; 0 in the paper
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from fairlead.algorithm import Algorithm, Client, Cohort, Memory, Replies, State, Step
from fairlead.errors import FairleadError
from fairlead.schedules import Rate


class Centred(State):
    """The inner method's state, the centre, and the result before it."""

    x: Tensor
    inner: State
    centre: Tensor
    before: Tensor


@dataclass(frozen=True)
class Catalyst(Algorithm[Centred, Memory]):
    """Another method, held near a centre that moves on every few rounds."""

    paper: ClassVar[str] = "saddle"
    method: Algorithm[Any, Any]
    theta: float = 1.0
    inner_rounds: int = 5
    extrapolation: float = 0.0

    def __post_init__(self) -> None:
        if self.theta < 0 or self.inner_rounds < 1:
            raise FairleadError("theta is zero or positive, and inner_rounds at least 1")

    @property
    def lr(self) -> Rate:
        """The inner method's step size."""
        return self.method.rates()["lr"]

    def bind(self, layers: Any) -> Self:
        return type(self)(
            self.method.bind(layers), self.theta, self.inner_rounds, self.extrapolation
        )

    def rates(self) -> dict[str, Rate]:
        return self.method.rates()

    def init(self, x: Tensor) -> Centred:
        return Centred(x=x, inner=self.method.init(x), centre=x, before=x)

    def memory(self, x: Tensor) -> Memory | None:
        return self.method.memory(x)

    def start(self, s: Centred, everyone: Cohort) -> Centred:
        inner = self.method.start(s.inner, _Held(everyone, self.theta, s.centre))
        return Centred(x=inner.x, inner=inner, centre=s.centre, before=s.before)

    def round(self, s: Centred, cohort: Cohort) -> Centred:
        inner = self.method.round(s.inner, _Held(cohort, self.theta, s.centre))
        z, centre, before = inner.x, s.centre, s.before
        if (cohort.round + 1) % self.inner_rounds == 0:
            centre, before = z + self.extrapolation * (z - before), z
        return Centred(x=z, inner=inner, centre=centre, before=before)


class _Held(Cohort):
    """A cohort whose clients feel the pull towards the centre."""

    def __init__(self, cohort: Cohort, theta: float, centre: Tensor) -> None:
        self.cohort, self.theta, self.centre = cohort, theta, centre
        self.round, self.first, self.share = cohort.round, cohort.first, cohort.share

    def run(self, program: Callable[..., Any], **broadcast: Tensor) -> Replies[Any]:
        def held(client: Client[Any], centre: Tensor, **down: Tensor) -> Any:
            return program(_HeldClient(client, self.theta, centre), **down)

        return self.cohort.run(held, centre=self.centre, **broadcast)


class _HeldClient(Client[Any]):
    def __init__(self, client: Client[Any], theta: float, centre: Tensor) -> None:
        self.client, self.theta, self.centre = client, theta, centre
        self.memory = client.memory

    def pulled(self, g: Tensor, z: Tensor) -> Tensor:
        return g + self.theta * (z - self.centre)

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


class _HeldStep(Step):
    def __init__(self, step: Step, client: _HeldClient) -> None:
        self.step, self.client, self.lr = step, client, step.lr

    def grad(self, y: Tensor) -> Tensor:
        return self.client.pulled(self.step.grad(y), y)
