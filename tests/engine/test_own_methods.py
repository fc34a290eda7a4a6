"""Methods of users cannot go wrong silently: noise, forgotten axes, different processes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from conftest import uneven
from torch import Tensor

import fairlead as fl

WORK = {"rounds": 3, "cohort": 3, "batch_size": 4, "steps": 2, "seed": 5}
linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forks")


@dataclass(frozen=True)
class Noisy(fl.FedAvg):
    """Noise at the server and at the clients."""

    def round(self, s: Any, cohort: fl.Cohort) -> Any:
        s = super().round(s, cohort)
        return type(s)(x=s.x + 0.1 * cohort.noise(s.x) + 0.1 * cohort.noise(s.x), slots=s.slots)

    def local_steps(self, client: fl.Client[Any], x: Tensor) -> Any:
        return type(super().local_steps(client, x))(
            dy=0.1 * client.noise(x) + 0.1 * client.noise(x)
        )


@linux
def test_noise_is_the_same_in_every_engine() -> None:
    reference = fl.train(uneven(), Noisy(lr=0.1), engine="debug", **WORK)
    for how in (
        {"engine": "vmap"}, {"engine": "loop"}, {"engine": fl.Simulate("vmap", memory=1)},
        {"engine": "vmap", "workers": 2}, {"engine": "loop", "workers": 3},
    ):  # fmt: skip
        run = fl.train(uneven(), Noisy(lr=0.1), **how, **WORK)
        torch.testing.assert_close(run.x, reference.x, rtol=0, atol=1e-12)
    other = fl.train(uneven(), Noisy(lr=0.1), **{**WORK, "seed": 6})
    assert not torch.allclose(other.x, reference.x)
    many = fl.train_many(
        uneven(), [(Noisy(lr=0.1), 5), (Noisy(lr=0.1), 6)], **{k: v for k, v in WORK.items() if k != "seed"}
    )  # fmt: skip
    torch.testing.assert_close(many[0].x, reference.x, rtol=0, atol=1e-12)
    torch.testing.assert_close(many[1].x, other.x, rtol=0, atol=1e-12)


def test_noise_is_standard_normal_and_every_call_is_new() -> None:
    drawn: list[Tensor] = []

    @dataclass(frozen=True)
    class Drawing(fl.FedAvg):
        def round(self, s: Any, cohort: fl.Cohort) -> Any:
            drawn.extend(cohort.noise(torch.zeros(4000)) for _ in range(2))
            return s

    fl.train(uneven(), Drawing(lr=0.1), rounds=2)
    flat = torch.stack(drawn)
    assert flat.shape == (4, 4000)
    assert abs(float(flat.mean())) < 0.03
    assert abs(float(flat.std()) - 1) < 0.03
    assert float((torch.corrcoef(flat) - torch.eye(4)).abs().max()) < 0.07


@dataclass(frozen=True)
class Different(fl.FedAvg):
    """Draws from the process's own generator."""

    def round(self, s: Any, cohort: fl.Cohort) -> Any:
        import os

        s = super().round(s, cohort)
        torch.manual_seed(os.getpid())
        return type(s)(x=s.x + 1e-9 * torch.randn_like(s.x), slots=s.slots)


@linux
def test_processes_with_different_models_stop_with_a_sentence() -> None:
    with pytest.raises(fl.FairleadError, match=r"different models: .* cohort\.noise"):
        fl.train(uneven(), Different(lr=0.1), workers=2, **WORK)


@dataclass(frozen=True)
class Forgetful(fl.FedAvg):
    """Clips by the norm of all clients' vectors together."""

    def local_steps(self, client: fl.Client[Any], x: Tensor) -> Any:
        sent = super().local_steps(client, x)
        return type(sent)(dy=sent.dy / (1 + sent.dy.norm()))


def test_a_forgotten_axis_is_found_in_the_first_round() -> None:
    with pytest.raises(fl.FairleadError, match=r"the upload dy of Forgetful\.local_steps .*dim=-1"):
        fl.train(uneven(), Forgetful(lr=0.1), engine="vmap", **WORK)
    fl.train(uneven(), Forgetful(lr=0.1), engine="loop", **WORK)
    found = fl.testing.check_method(Forgetful(lr=0.1))
    assert any("engines agree: the run failed" in sentence for sentence in found)


@dataclass(frozen=True)
class FirstAxis(fl.FedAvg):
    """Right for one client and for a matrix of clients, but not for several runs at once."""

    def local_steps(self, client: fl.Client[Any], x: Tensor) -> Any:
        sent = super().local_steps(client, x)
        return type(sent)(dy=sent.dy + 0.1 * x[0])  # the first coordinate, unless x has rows


@dataclass(frozen=True)
class LastAxis(fl.FedAvg):
    def local_steps(self, client: fl.Client[Any], x: Tensor) -> Any:
        sent = super().local_steps(client, x)
        return type(sent)(dy=sent.dy + 0.1 * x[..., :1])


@pytest.mark.parametrize("method", [FirstAxis, LastAxis])
def test_several_runs_at_once_or_one_after_another(method: type[fl.FedAvg]) -> None:
    settings = {k: v for k, v in WORK.items() if k != "seed"}
    runs = [(method(lr=0.1), 0), (method(lr=0.2), 1)]
    for (own, seed), run in zip(runs, fl.train_many(uneven(), runs, **settings), strict=True):
        alone = fl.train(uneven(), own, seed=seed, **settings)
        torch.testing.assert_close(run.x, alone.x, rtol=0, atol=1e-12)


def test_a_good_method_of_ones_own_passes_all_checks() -> None:
    assert fl.testing.check_method(LastAxis(lr=0.1)) == []


@dataclass(frozen=True)
class Unsteady(fl.FedAvg):
    """Another model each time."""

    def round(self, s: Any, cohort: fl.Cohort) -> Any:
        s = super().round(s, cohort)
        return type(s)(x=s.x.float().to(s.x), slots={"when": torch.tensor(id(s) % 1000.0)})


def test_checks_say_what_fails() -> None:
    found = fl.testing.check_method(Unsteady(lr=0.1), ["repeats", "resumes"])
    assert found
    assert all(sentence.startswith(("two runs of one seed", "resumed from")) for sentence in found)
    with pytest.raises(fl.FairleadError, match="did you mean 'repeats'"):
        fl.testing.check_method(Unsteady(lr=0.1), ["repeat"])
    with pytest.raises(fl.FairleadError, match="Unsteady fails: two runs"):
        fl.testing.require(Unsteady(lr=0.1), properties=["repeats"])


@dataclass(frozen=True)
class InPlace(fl.Scaffold):
    """Writes to what it was given."""

    def local_steps(self, client: fl.Client[Any], x: Tensor, c: Tensor) -> Any:
        sent, kept = super().local_steps(client, x, c)
        client.memory.c.fill_(7.0)
        return sent, kept


def test_a_program_that_writes_to_its_memory_does_no_harm() -> None:
    for engine in ("vmap", "loop"):
        run = fl.train(uneven(), InPlace(lr=0.1), engine=engine, **WORK)
        plain = fl.train(uneven(), fl.Scaffold(lr=0.1), engine=engine, **WORK)
        torch.testing.assert_close(run.x, plain.x, rtol=0, atol=1e-12)
        torch.testing.assert_close(run.client_states().c, plain.client_states().c)
