"""Every method × every engine × uneven clients, sampling, schedules, dropouts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from conformance import METHODS
from conftest import shared

import fairlead as fl

SETTINGS = {"rounds": 5, "cohort": 3, "batch_size": 4, "epochs": 2, "dropout": 0.25, "seed": 11}
RAGGED = {**SETTINGS, "epochs": None, "steps": [1, 5, 3, 4, 2], "weighting": "size"}


def _final(method: fl.Algorithm, engine: str | fl.Simulate, device: str, **settings) -> fl.Run:
    return fl.train(shared(device), method, engine=engine, progress=False, **settings)


def _memory(run: fl.Run) -> dict[str, torch.Tensor]:
    store = run.session.states.store
    return {} if store is None else store.read(np.arange(run.task.clients)).tensors()


@pytest.mark.parametrize("settings", [SETTINGS, RAGGED], ids=["epochs", "steps"])
@pytest.mark.parametrize("name", METHODS)
def test_engines_agree(name: str, settings: dict, device: str) -> None:
    reference = _final(METHODS[name], "debug", "cpu", **settings)
    engines = ["vmap", "loop", fl.Simulate("vmap", memory=1)]
    for engine in engines:
        run = _final(METHODS[name], engine, device, **settings)
        for key, value in run.state.tensors().items():
            other = reference.state.tensors()[key]
            torch.testing.assert_close(value.cpu(), other, rtol=0, atol=1e-10)
        for key, value in _memory(run).items():
            torch.testing.assert_close(value.cpu(), _memory(reference)[key], rtol=0, atol=1e-10)
        assert dataclasses.asdict(run.counters) == dataclasses.asdict(reference.counters)
        assert (run.ledger.up, run.ledger.down) == (reference.ledger.up, reference.ledger.down)


@pytest.mark.parametrize("engine", ["vmap", "loop"])
@pytest.mark.parametrize("name", METHODS)
def test_equal_seeds_are_bitwise_equal_and_others_are_not(
    name: str, engine: str, device: str
) -> None:
    one = _final(METHODS[name], engine, device, **SETTINGS)
    two = _final(METHODS[name], engine, device, **SETTINGS)
    other = _final(METHODS[name], engine, device, **{**SETTINGS, "seed": 12})
    assert torch.equal(one.x, two.x)
    assert not torch.equal(one.x, other.x)


@pytest.mark.parametrize("name", METHODS)
def test_float32_stays_float32_and_follows_float64(name: str, device: str) -> None:
    exact = _final(METHODS[name], "vmap", device, **SETTINGS)
    run = fl.train(shared(device, torch.float32), METHODS[name], engine="vmap", **SETTINGS)
    for value in [*run.state.tensors().values(), *_memory(run).values()]:
        if value.dim():
            assert value.dtype == torch.float32
    torch.testing.assert_close(run.x.double(), exact.x, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_a_round_without_answers_changes_nothing(name: str) -> None:
    lost = [[0, 1, 2, 3, 4]] * 3
    run = _final(METHODS[name], "vmap", "cpu", rounds=3, steps=2, dropout=lost)
    assert torch.equal(run.x, run.task.start(0)[0])
    assert run.counters.lost == 15


LAYERS = shared().layers
REMEMBERS = [n for n, m in METHODS.items() if m.bind(LAYERS).memory(torch.zeros(57)) is not None]


@pytest.mark.parametrize("name", REMEMBERS)
def test_only_sampled_clients_keep_something_new(name: str) -> None:
    run = _final(METHODS[name], "vmap", "cpu", rounds=2, steps=2, cohort=[[1, 3], [3, 4]])
    assert run.session.states.store is not None
    expected = range(5) if getattr(METHODS[name], "warm_start", False) else [1, 3, 4]
    assert run.session.states.store.touched.tolist() == list(expected)


@pytest.mark.parametrize("name", METHODS)
def test_the_method_is_registered_or_a_variant(name: str) -> None:
    assert type(METHODS[name]) in {*fl.METHODS.values(), fl.Catalyst}


def test_every_registered_method_has_a_row() -> None:
    assert {*fl.METHODS.values(), fl.Catalyst} == {type(m) for m in METHODS.values()}


@pytest.mark.parametrize("engine", ["vmap", "loop"])
@pytest.mark.parametrize("name", ["scaffold-momentum", "fedglomo-qsgd", "catalyst-decrease"])
def test_a_run_goes_on_from_its_state_to_the_same_bytes(name: str, engine: str) -> None:
    whole = _final(METHODS[name], engine, "cpu", **SETTINGS)
    part = _final(METHODS[name], engine, "cpu", **{**SETTINGS, "rounds": 2})
    rest = _final(METHODS[name], engine, "cpu", **SETTINGS, resume=part)
    for key, value in whole.state.tensors().items():
        assert torch.equal(rest.state.tensors()[key], value)
    for key, value in _memory(whole).items():
        assert torch.equal(_memory(rest)[key], value)
    assert rest.counters == whole.counters
    assert (rest.ledger.up, rest.ledger.down) == (whole.ledger.up, whole.ledger.down)
    assert rest.history["loss"].tolist() == whole.history["loss"].tolist()
    assert part.rounds == 2  # the first part is left as it was
    assert len(part.history.rows) == 3
