"""Programs as loops: which steps become a body, what is carried, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from conformance import METHODS, ROWS
from conftest import shared
from torch import Tensor

import fairlead as fl
from fairlead.core.method import Client
from fairlead.core.records import Memory, State, Upload
from fairlead.engine import captured
from fairlead.engine.captured import CapturedExecutor, Take
from fairlead.gradients import cuda_graph
from fairlead.methods.fedavg import Drift, FedAvg

CAPTURED = fl.Simulate("vmap", capture=True)
LONG = {"rounds": 3, "cohort": 3, "batch_size": 4, "seed": 11, "weighting": "size"}


@pytest.fixture(autouse=True)
def _graphs(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, programs are run again in the place of graphs."""
    monkeypatch.setattr(cuda_graph, "captures", lambda place: place.type == device)
    if device == "cpu":
        monkeypatch.setattr(cuda_graph, "record", lambda perform, pool=None: perform() or perform)


def _takes(run: fl.Run) -> list[Take]:
    executor: Any = run.session.executor
    executor = getattr(executor, "executor", executor)
    assert isinstance(executor, CapturedExecutor)
    return [take for take in executor.takes.known.values() if isinstance(take, Take)]


def _close(run: fl.Run, other: fl.Run) -> None:
    torch.testing.assert_close(run.x.cpu(), other.x.cpu(), rtol=0, atol=1e-10)
    assert run.counters == other.counters
    assert (run.ledger.up, run.ledger.down) == (other.ledger.up, other.ledger.down)


@pytest.mark.parametrize("name", ROWS)
def test_many_uneven_steps_are_replayed_in_blocks(name: str, device: str) -> None:
    most = 300 if device == "cuda" or name in ("scaffold", "fedpvr", "fedlomo") else 60
    steps = [1, 45, 33, most, 50]
    method = METHODS[name]
    if not isinstance(method, fl.Catalyst):  # large steps make much of what is rounded
        method = method.with_lr(0.002)
    run = fl.train(shared(device), method, engine=CAPTURED, steps=steps, **LONG)
    _close(run, fl.train(shared(), method, engine="debug", steps=steps, **LONG))
    for take in _takes(run):
        parts = set(take.replays)
        assert parts <= {"start", captured.BLOCK, 1, "end", "all"}
        if take.program.loops:  # what is captured does not grow with the steps
            assert parts >= {"start", "end"}


@pytest.mark.parametrize("local", [fl.local.Adam(clip=0.5), fl.local.RMSprop(keep=True)])
def test_the_first_step_of_an_optimizer_is_like_the_others(local: Any, device: str) -> None:
    """Its state starts as tensors, so that the loop begins with it."""
    method = FedAvg(0.002, local=local, aggregate=fl.aggregate.Median())
    steps = [1, 30, 12, 26, 40]
    run = fl.train(shared(device), method, engine=CAPTURED, steps=steps, **LONG)
    assert {(take.program.loops, take.program.first) for take in _takes(run)} == {(True, 0)}
    _close(run, fl.train(shared(), method, engine="debug", steps=steps, **LONG))


def test_what_is_traced_does_not_depend_on_the_number_of_steps(device: str) -> None:
    sizes = set()
    for steps in (3, 30, 200):
        run = fl.train(
            shared(device),
            fl.Scaffold(lr=0.1),
            engine=CAPTURED,
            rounds=2,
            steps=steps,
            batch_size=2,
        )
        (take,) = _takes(run)
        program = take.program
        sizes.add((len(program.start), len(program.body), len(program.end)))
        blocks = ["start", captured.BLOCK, 1, "end"]
        assert list(take.replays) == (["all"] if steps == 3 else blocks)
    assert len(sizes) == 1


@pytest.mark.parametrize(("steps", "rounds"), [(3, 1), (captured.WHOLE + 1, 0)])
def test_long_exchanges_are_captured_at_once(steps: int, rounds: int, device: str) -> None:
    """Run as they are they would take as long as the steps are many."""
    work = {"engine": "vmap", "steps": steps, "batch_size": 2}
    if rounds:
        (take,) = _takes(fl.train(shared(device), fl.Scaffold(lr=0.1), rounds=rounds, **work))
        assert not take.replays
    (take,) = _takes(fl.train(shared(device), fl.Scaffold(lr=0.1), rounds=rounds + 1, **work))
    assert take.replays


def test_augmented_images_are_a_loop_too(device: str) -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 3, 40))
    owners = [np.arange(0, 20), np.arange(20, 27), np.arange(27, 40)]
    task = fl.Task(
        fl.models.mlp(64, 5, 3), "cross_entropy", (x, y), owners, dtype=torch.float64, device=device,
        transform=fl.Images.of(x, flip=True, crop=2),
    )  # fmt: skip
    work = {"rounds": 2, "epochs": 6, "batch_size": 3, "seed": 5}
    run = fl.train(task, fl.Scaffold(lr=0.01), engine=CAPTURED, **work)
    assert [take.program.loops for take in _takes(run)] == [True]
    _close(run, fl.train(task, fl.Scaffold(lr=0.01), engine="debug", **work))


class _Halved(FedAvg):
    """Each step makes the same number anew."""

    def local_steps(self, client: Client[Any], x: Tensor) -> Drift:
        y = x
        for step in client.steps(self.lr):
            y = y - step.lr * step.grad(y) * torch.tensor(0.5, dtype=y.dtype)
        return Drift(dy=y - x)


def test_numbers_made_anew_in_every_step_are_constants(device: str) -> None:
    work = {"steps": 30, **LONG}
    run = fl.train(shared(device), _Halved(lr=0.01), engine=CAPTURED, **work)
    assert all(take.program.loops for take in _takes(run))
    _close(run, fl.train(shared(), fl.FedAvg(lr=0.005), engine="debug", **work))


class _TwoBack(FedAvg):
    """Each step uses the points of the two steps before it."""

    def local_steps(self, client: Client[Any], x: Tensor) -> Drift:
        y, before, earlier = x, x, x
        for step in client.steps(self.lr):
            y, before, earlier = (
                y - step.lr * step.grad(y) + 0.3 * (before - earlier), y, before,
            )  # fmt: skip
        return Drift(dy=y - x + 0.1 * (before - x))


class _SumOfAll(FedAvg):
    """What is sent uses all points, which no loop carries."""

    def local_steps(self, client: Client[Any], x: Tensor) -> Drift:
        y, points = x, []
        for step in client.steps(self.lr):
            y = y - step.lr * step.grad(y)
            points.append(y)
        return Drift(dy=sum(points[1:], points[0]) / len(points) - x)


class _Alternating(FedAvg):
    """Every second step is another one."""

    def local_steps(self, client: Client[Any], x: Tensor) -> Drift:
        y = x
        for k, step in enumerate(client.steps(self.lr)):
            y = y - step.lr * step.grad(y) * (2.0 if k % 2 else 1.0)
        return Drift(dy=y - x)


class _InPlace(FedAvg):
    """A step changes its own copy in place, which is carried."""

    def local_steps(self, client: Client[Any], x: Tensor) -> Drift:
        y = x
        for step in client.steps(self.lr):
            g = step.grad(y).clone()
            g[..., 0] *= 0.5
            y = y - step.lr * g
        return Drift(dy=y - x)


@pytest.mark.parametrize("kind", [_TwoBack, _InPlace])
def test_loops_of_other_shapes(kind: type[FedAvg], device: str) -> None:
    settings = {**LONG, "steps": 9}
    run = fl.train(shared(device), kind(lr=0.05), engine=CAPTURED, **settings)
    assert all(take.program.loops for take in _takes(run))
    _close(run, fl.train(shared(), kind(lr=0.05), engine="debug", **settings))


@pytest.mark.parametrize("kind", [_SumOfAll, _Alternating])
def test_steps_that_differ_are_captured_one_by_one_if_they_are_few(
    kind: type[FedAvg], device: str
) -> None:
    settings = {**LONG, "steps": 9}
    run = fl.train(shared(device), kind(lr=0.05), engine=CAPTURED, **settings)
    assert all(not take.program.loops for take in _takes(run))
    assert "captured as" in run.engine
    _close(run, fl.train(shared(), kind(lr=0.05), engine="debug", **settings))
    settings["steps"] = captured.UNROLLED + 1
    run = fl.train(shared(device), kind(lr=0.05), engine=CAPTURED, **settings)
    assert "not captured: its local steps differ" in run.engine
    _close(run, fl.train(shared(), kind(lr=0.05), engine="debug", **settings))


class _Greedy(FedAvg):
    def local_steps(self, client: Client[Any], x: Tensor) -> Drift:
        x = x.mul_(1.0)
        return super().local_steps(client, x)


def test_a_program_that_writes_to_what_it_was_given_is_run_as_it_is(device: str) -> None:
    run = fl.train(shared(device), _Greedy(lr=0.05), engine=CAPTURED, steps=3, **LONG)
    assert "not captured: its client program changes a vector in place" in run.engine


class _Pair(Upload):
    y: Tensor
    count: Tensor


@dataclass(frozen=True)
class _Counting(fl.Algorithm[State, Memory]):
    """Carries a number of its own, which begins as a plain number."""

    def init(self, x: Tensor) -> State:
        return State(x=x)

    def round(self, s: State, cohort: fl.Cohort) -> State:
        up = cohort.run(self.local, x=s.x).mean
        return State(x=s.x + up.y / up.count)

    def local(self, client: Client[Any], x: Tensor) -> _Pair:
        y, count = x, 0
        for step in client.steps(0.05):
            y = y - step.lr * step.grad(y)
            count = count + step.lr / 0.05
        return _Pair(y=y - x, count=torch.as_tensor(count).to(x).reshape(*y.shape[:-1], 1))


@pytest.mark.parametrize("steps", [25, 27, 32, 41])
def test_points_of_several_steps_ago_are_carried_over_single_steps(steps: int, device: str) -> None:
    settings = {**LONG, "steps": steps}
    run = fl.train(shared(device), _TwoBack(lr=0.05), engine=CAPTURED, **settings)
    assert any(1 in take.replays or captured.BLOCK in take.replays for take in _takes(run))
    _close(run, fl.train(shared(), _TwoBack(lr=0.05), engine="debug", **settings))


def test_a_first_step_of_its_own_comes_before_the_loop(device: str) -> None:
    settings = {**LONG, "steps": 30}
    run = fl.train(shared(device), _Counting(), engine=CAPTURED, **settings)
    assert {take.program.first for take in _takes(run)} == {1}
    _close(run, fl.train(shared(), _Counting(), engine="debug", **settings))


def test_rounds_of_different_length_share_what_is_captured(device: str) -> None:
    steps = fl.Geometric(0.05)
    settings = {"rounds": 12, "batch_size": 2, "seed": 4, "steps": steps}
    run = fl.train(shared(device), fl.Scaffold(lr=0.05), engine=CAPTURED, **settings)
    _close(run, fl.train(shared(), fl.Scaffold(lr=0.05), engine="debug", **settings))
    lengths = {steps.draw(4, k) for k in range(12)}
    assert len(lengths) > 6
    assert np.mean([len(take.replays) for take in _takes(run)]) <= 4
