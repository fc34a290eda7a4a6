"""Many runs at once in captured rounds. Without a GPU a capture is the program run again over its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conformance import METHODS, ROWS
from conftest import shared
from test_many import _agree, _variants

import fairlead as fl
from fairlead.engine.captured import Take
from fairlead.engine.captured_runs import CapturedRuns
from fairlead.gradients import cuda_graph

CAPTURED = fl.Simulate("vmap", capture=True)
PLAIN = fl.Simulate("vmap", capture=False)
WORK = {"rounds": 5, "cohort": 3, "batch_size": 4, "dropout": 0.25}
EPOCHS = {**WORK, "epochs": 2}
RAGGED = {**WORK, "steps": [1, 5, 3, 4, 2], "weighting": "size"}
EVEN = {"rounds": 6, "batch_size": 4, "steps": 3}


@pytest.fixture(autouse=True)
def replayed(device: str, monkeypatch: pytest.MonkeyPatch) -> list[Take]:
    """The captures of several runs that were replayed."""
    found: list[Take] = []
    monkeypatch.setattr(cuda_graph, "captures", lambda place: place.type == device)
    if device == "cpu":
        monkeypatch.setattr(cuda_graph, "record", lambda perform, pool=None: perform() or perform)
    take = CapturedRuns._take

    def watched(self: CapturedRuns, *given: Any) -> Any:
        one = take(self, *given)
        assert isinstance(one, Take), one
        found.append(one)
        return one

    monkeypatch.setattr(CapturedRuns, "_take", watched)
    return found


@pytest.mark.parametrize("name", ROWS)
def test_captured_runs_at_once_are_the_uncaptured(
    name: str, device: str, replayed: list[Take]
) -> None:
    task, runs = shared(device), _variants(METHODS[name])[2:5]
    few = {**RAGGED, "rounds": 3}
    many = fl.train_many(task, runs, together=True, engine=CAPTURED, **few)
    apart = fl.train_many(shared(), runs, together=True, engine=PLAIN, **few)
    for one, other in zip(many, apart, strict=True):
        _agree(one, other)
    assert any(take.replays for take in replayed)
    assert "3 runs at once; exchanges captured as CUDA graphs" in many[0].engine
    assert apart[0].engine.endswith("3 runs at once")


@pytest.mark.parametrize("name", ["scaffold-qsgd", "fedavg-topk-ef", "fedglomo", "mime-mvr"])
@pytest.mark.parametrize("settings", [EPOCHS, EVEN], ids=["epochs", "even"])
def test_captured_runs_at_once_are_the_single_runs(
    name: str, settings: dict[str, Any], device: str
) -> None:
    task, runs = shared(device), _variants(METHODS[name])[2:5]
    many = fl.train_many(task, runs, together=True, engine=CAPTURED, **settings)
    for (method, seed), run in zip(runs, many, strict=True):
        _agree(run, fl.train(task, method, seed=seed, engine=PLAIN, **settings))


def test_many_steps_noise_and_statistics(device: str, replayed: list[Take]) -> None:
    task = shared(device).replace(noise=0.1)
    rate = fl.schedules.InverseSqrt(0.02, per="step")
    runs = [(fl.Scaffold(lr=rate), seed) for seed in (2**63 + 5, 7)]
    settings = {**WORK, "steps": [1, 45, 33, 50, 2], "rounds": 3}
    many = fl.train_many(task, runs, together=True, engine=CAPTURED, **settings)
    for (method, seed), run in zip(runs, many, strict=True):
        _agree(run, fl.train(task, method, seed=seed, engine=PLAIN, **settings))
    assert any("start" in take.replays for take in replayed)


def test_few_sizes_are_captured_while_runs_end(device: str, replayed: list[Take]) -> None:
    task = fl.problems.random_quadratics(clients=4, gradient=10.0).to(device)
    runs = [(fl.Scaffold(lr=0.01 * k), 0) for k in range(1, 12)]
    work: dict[str, Any] = {"rounds": 400, "steps": 5, "target": {"distance": 1e-2}}
    many = fl.train_many(task, runs, together=True, engine=CAPTURED, **work)
    assert len({run.rounds for run in many}) > 4
    assert {len(take.inputs.parts) for take in replayed} <= {12, 8, 6, 4, 3, 2, 1}
    for (method, seed), run in zip(runs, many, strict=True):
        _agree(run, fl.train(task, method, seed=seed, engine=PLAIN, **work))


def test_few_sizes_are_captured_where_clients_are_lost(device: str, replayed: list[Take]) -> None:
    task = fl.problems.synthetic_logistic(clients=40, samples=12).to(device)
    runs = [(fl.Scaffold(lr=0.1), seed) for seed in range(5)]
    work: dict[str, Any] = {"rounds": 12, "batch_size": 4, "cohort": 24, "dropout": 0.3}
    many = fl.train_many(task, runs, together=True, engine=CAPTURED, **work)
    assert len({take.inputs.parts[0].count for take in replayed}) == len(set(map(id, replayed))) < 6
    for (method, seed), run in zip(runs, many, strict=True):
        _agree(run, fl.train(task, method, seed=seed, engine=PLAIN, **work))


def test_drift_is_measured_by_run(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # a round that is measured is not captured
    monkeypatch.setattr(cuda_graph, "captures", lambda place: place.type == device)
    if device == "cpu":
        monkeypatch.setattr(cuda_graph, "record", lambda perform, pool=None: perform() or perform)
    runs = _variants(METHODS["scaffold"])[2:4]
    settings = {**EVEN, "drift": True, "eval_every": 2}
    many = fl.train_many(shared(device), runs, together=True, engine=CAPTURED, **settings)
    for (method, seed), run in zip(runs, many, strict=True):
        _agree(run, fl.train(shared(device), method, seed=seed, engine=PLAIN, **settings))


@pytest.mark.parametrize("sizes", [[70, 66], [70, 6]], ids=["widths", "steps"])
def test_positions_left_by_other_clients_are_not_used(sizes: list[int], device: str) -> None:
    """They may lie outside of all data."""
    torch.manual_seed(0)
    x, y = torch.randn(sum(sizes), 5), torch.randint(3, (sum(sizes),))
    owners = [np.arange(sizes[0]), np.arange(sizes[0], sum(sizes))]
    task = fl.Task(
        torch.nn.Linear(5, 3), "cross_entropy", (x, y), owners, dtype=torch.float64, device=device
    )
    even = sizes[1] > 10
    settings: dict[str, Any] = {"rounds": 6, "cohort": 1}
    settings |= {"batch_size": 0.5, "steps": 2} if even else {"batch_size": 8, "epochs": 1}
    runs = [(fl.Scaffold(lr=0.1), seed) for seed in (1, 2, 3)]
    many = fl.train_many(task, runs, together=True, engine=CAPTURED, **settings)
    for (method, seed), run in zip(runs, many, strict=True):
        plain = fl.train(task, method, seed=seed, engine=PLAIN, **settings)
        _agree(run, plain)
        _agree(fl.train(task, method, seed=seed, engine=CAPTURED, **settings), plain)
