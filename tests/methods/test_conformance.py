"""Every method × every property of `fl.testing`: engines, repeats, resume, chunks, runs at once, also at the
sizes where the fast forms are in use."""

from __future__ import annotations

import pytest
import torch
from conformance import METHODS

import fairlead as fl
from fairlead import testing


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("key", testing.PROPERTIES)
def test_property(key: str, name: str, device: str) -> None:
    if device == "cuda" and "large d" in key:
        pytest.skip("the forms for large models are those of a CPU")
    assert testing.check_method(METHODS[name], [key], device) == []


@pytest.mark.parametrize("name", METHODS)
def test_the_method_is_registered_or_a_variant(name: str) -> None:
    assert type(METHODS[name]) in {*fl.METHODS.values(), fl.Catalyst}


def test_every_registered_method_has_a_row() -> None:
    assert {*fl.METHODS.values(), fl.Catalyst} == {type(m) for m in METHODS.values()}


def test_the_large_task_uses_the_fast_forms() -> None:
    task = testing.large_task()
    assert task.dim > 40_000
    run = fl.train(task, fl.Scaffold(lr=0.1), engine="loop", **testing.LARGE)
    form = run.session.gradients.form
    assert form.deferred == "products"
    assert form.capture
    assert run.session.gradients.captured
    stacked = fl.train(task, fl.Scaffold(lr=0.1), engine="vmap", **testing.LARGE)
    assert stacked.session.gradients.captured
    plain, twice = task.replace(l2=0.0), fl.MimeLite(lr=0.1, optimizer="mvr")
    run = fl.train(plain, twice, engine="loop", **testing.LARGE)
    assert run.session.gradients.form.deferred == "sums"  # it needs gradients twice
    assert torch.isfinite(run.x).all()
