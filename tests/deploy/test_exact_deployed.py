"""A deployed federation computes what the simulation does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_federation import Federation
from torch import nn

import fairlead as fl

pytestmark = pytest.mark.usefixtures("quick_files")
ROUNDS = 4
METHODS = {
    "FedAvg": fl.FedAvg(lr=0.2),
    "SCAFFOLD": fl.Scaffold(lr=0.2),
    "SCAFFOLD, warm": fl.Scaffold(lr=0.2, warm_start=True),
    "FedPVR": fl.FedPVR(lr=0.2, momentum=0.9),
    "FedGLOMO": fl.FedGLOMO(lr=0.1, compressor=fl.QSGD(bits=4)),
    "FedGLOMO, elias": fl.FedGLOMO(lr=0.1, compressor=fl.QSGD(bits=4, wire="elias")),
    "Mime": fl.Mime(lr=0.1),
    "Mime, MVR": fl.Mime(lr=0.1, optimizer="mvr"),
    "Catalyst": fl.Catalyst(fl.ScaffoldS(lr=0.1), theta=0.5, inner_rounds=2),
    "FedDyn": fl.FedDyn(lr=0.1),
    "error feedback": fl.FedAvg(lr=0.2, compressor=fl.ErrorFeedback(fl.TopK(0.3))),
    "median": fl.FedAvg(lr=0.2, aggregate=fl.aggregate.Median()),
}


@pytest.mark.parametrize("name", METHODS)
def test_same_trajectory_and_same_bits_as_the_simulation(name: str, tmp_path: Path) -> None:
    here = Federation(tmp_path, METHODS[name])
    seen, expected = [], []
    server = here.server()
    run = server.run(ROUNDS, callbacks=[lambda view: seen.append(view.x.clone())])
    there = here.simulated(ROUNDS, callbacks=[lambda view: expected.append(view.x.clone())])
    assert len(seen) == ROUNDS
    for x, y in zip(seen, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-10)
    for column in ("bits_up", "bits_down", "nominal_up", "gradients", "exchanges", "clients"):
        assert run.history.last(column) == there.history.last(column), column
    assert server.roster.refused == []
    assert server.remote is not None
    assert server.remote.payload_up == run.history.last("bits_up")
    assert server.remote.payload_down == run.history.last("bits_down")


def test_client_states_are_those_of_the_simulation(tmp_path: Path) -> None:
    here = Federation(tmp_path, fl.Scaffold(lr=0.2))
    server = here.server()
    server.run(ROUNDS, cohort=2)
    kept = here.simulated(ROUNDS, cohort=2).session.states.read(np.arange(4)).c
    for client, state in enumerate(here.states(server)):
        c = state.get("memory/c", torch.zeros_like(kept[client]))
        torch.testing.assert_close(c, kept[client], rtol=0, atol=1e-10)


@pytest.mark.parametrize("batches", [fl.Batches(4, steps=[1, 5, 2, 3]), fl.Batches(3, epochs=2)])
def test_clients_with_different_work(batches: fl.Batches, tmp_path: Path) -> None:
    here = Federation(
        tmp_path, fl.Scaffold(lr=fl.schedules.Exponential(0.2, 0.9, per="step")), batches
    )
    run = here.server().run(ROUNDS, cohort=3, weighting="size", dropout=0.2)
    there = here.simulated(ROUNDS, cohort=3, weighting="size", dropout=0.2)
    torch.testing.assert_close(run.state.x, there.state.x, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_clients_with_one_to_twenty_steps_reach_the_optimum(tmp_path: Path) -> None:
    """Of the stated objective, the mean over all clients. FedNova up to the drift of its local steps; FedAvg is drawn
    towards clients with more steps."""
    steps = fl.Batches(steps=[1, 20, 7, 13])
    convex = {"model": nn.Linear(4, 3), "l2": 0.5}

    def distance(method: fl.Algorithm[Any, Any]) -> float:
        here = Federation(tmp_path / str(method), method, steps, **convex)
        best = fl.minimize(here.whole())
        return float((here.server().run(60).state.x - best).norm() / best.norm())

    assert distance(fl.Scaffold(lr=0.05)) < 1e-6
    assert distance(fl.FedPVR(lr=0.05, layers="from:0")) < 1e-6
    assert distance(fl.FedNova(lr=0.02)) < 0.3 * distance(fl.FedAvg(lr=0.02))


def test_buffers_travel(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    here = Federation(tmp_path, fl.FedAvg(lr=0.2), fl.Batches(3, steps=2), model=model)
    server = here.server()
    run, there = server.run(ROUNDS), here.simulated(ROUNDS)
    torch.testing.assert_close(run.state.x, there.state.x, rtol=0, atol=1e-10)
    torch.testing.assert_close(run.session.buffers, there.session.buffers, rtol=0, atol=1e-10)
    assert run.history.last("bits") == there.history.last("bits")
