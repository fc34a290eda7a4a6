"""The simulate engine: stores, chunks, threads, the debug engine and the choice between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import toy, uneven
from hypothesis import given, settings
from hypothesis import strategies as st

import fairlead as fl
from fairlead.engine import autotune as choose
from fairlead.engine import measurements
from fairlead.engine.state.store import ClientStore
from fairlead.gradients.form import Form


class Kept(fl.Memory):
    c: torch.Tensor
    v: torch.Tensor


@given(st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=8, unique=True), max_size=8))
@settings(max_examples=60, deadline=None)
def test_store_behaves_as_a_full_table(cohorts: list[list[int]]) -> None:
    store = ClientStore(20, Kept(c=torch.zeros(3), v=torch.full((2,), 7.0)))
    table = {"c": torch.zeros(20, 3), "v": torch.full((20, 2), 7.0)}
    for turn, ids in enumerate(map(np.array, cohorts)):
        kept = store.read(ids)
        for name, rows in kept.tensors().items():
            assert torch.equal(rows, table[name][ids])
        new = kept.map(lambda t, turn=turn: t + turn + 1)
        store.write(ids, new)
        for name, rows in new.tensors().items():
            table[name][ids] = rows
    assert set(store.touched) == {i for ids in cohorts for i in ids}


def test_store_grows_with_clients_used_not_with_clients() -> None:
    store = ClientStore(10_000_000, Kept(c=torch.zeros(100), v=torch.zeros(1)))
    store.write(np.array([5, 9_999_999]), Kept(c=torch.ones(2, 100), v=torch.ones(2, 1)))
    assert store.nbytes <= 4 * 101 * 4
    assert store.touched.tolist() == [5, 9_999_999]


@pytest.mark.parametrize("memory", [1, 20_000, 100_000])
def test_chunks_do_not_change_the_run(memory: int) -> None:
    whole = fl.train(uneven(), fl.Scaffold(lr=0.2), rounds=3, batch_size=4, engine="vmap")
    parts = fl.train(
        uneven(),
        fl.Scaffold(lr=0.2),
        rounds=3,
        batch_size=4,
        engine=fl.Simulate("vmap", memory=memory),
    )
    torch.testing.assert_close(parts.x, whole.x, rtol=0, atol=1e-13)
    if memory == 1:
        assert "1 of 5 clients at a time" in parts.engine


@pytest.mark.parametrize("engine", ["vmap", "loop", "debug"])
def test_noise_is_counter_based(engine: str) -> None:
    task = toy(noise=0.5)
    run = fl.train(task, fl.FedAvg(lr=0.1), rounds=3, steps=4, cohort=2, seed=4, engine=engine)
    other = fl.train(task, fl.FedAvg(lr=0.1), rounds=3, steps=4, cohort=2, seed=4, engine="debug")
    quiet = fl.train(toy(), fl.FedAvg(lr=0.1), rounds=3, steps=4, cohort=2, seed=4, engine=engine)
    torch.testing.assert_close(run.x, other.x, rtol=0, atol=1e-14)
    assert abs(run.x.item() - quiet.x.item()) > 1e-3


def test_debug_names_round_client_and_step_of_a_bad_value() -> None:
    def f(x: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
        return (x * x).sum() / 2 + (bad * torch.sqrt(x)).sum()  # not defined below zero

    data = [torch.tensor([[0.0], [0.0], [1.0]], dtype=torch.float64)]
    task = fl.Task.from_function(f, data, torch.tensor([0.4], dtype=torch.float64))
    with pytest.raises(
        fl.FairleadError, match=r"round 0, client 2, step 2: the gradient holds NaN"
    ):
        # client 2 goes from 0.4 by −0.3·(x + 1/(2√x)) to 0.04 and then to −0.7
        fl.train(task, fl.FedAvg(lr=0.3), rounds=2, steps=4, engine="debug")


def test_debug_names_where_a_method_fails() -> None:
    @dataclass(frozen=True)
    class Broken(fl.FedAvg):
        def local_steps(self, client, x):
            for k, step in enumerate(client.steps(self.lr)):
                step.grad(x if k < 1 else x[:-1])
            raise AssertionError

    with pytest.raises(fl.FairleadError, match=r"^round 0, client 0, step 1: "):
        fl.train(uneven(), Broken(lr=0.1), rounds=1, steps=3, engine="debug")


def test_programs_that_return_the_wrong_thing_are_told() -> None:
    @dataclass(frozen=True)
    class Wrong(fl.FedAvg):
        def local_steps(self, client, x):
            return x

    with pytest.raises(fl.FairleadError, match="return an Upload"):
        fl.train(uneven(), Wrong(lr=0.1), rounds=1, engine="vmap")


def test_auto_measures_larger_work_reports_and_remembers(monkeypatch) -> None:
    monkeypatch.setattr(measurements, "_busy", lambda: False)
    x, y = torch.randn(400, 200), torch.randint(5, (400,))
    task = fl.Task(fl.models.mlp(200, 100, 5), "cross_entropy", (x, y), fl.splits.iid(y, 4))
    measurements._KNOWN.clear()
    run = fl.train(task, fl.FedAvg(lr=0.1), rounds=1, batch_size=50)
    assert "measured for the first local steps" in run.engine
    assert "vmap" in run.engine
    assert "loop" in run.engine
    again = fl.train(task, fl.FedAvg(lr=0.1), rounds=1, batch_size=50)
    assert again.engine == run.engine
    assert torch.equal(run.x, again.x)
    measurements._KNOWN.clear()  # as in a new process: read from the file
    assert fl.train(task, fl.FedAvg(lr=0.1), rounds=1, batch_size=50).engine == run.engine


def test_auto_falls_back_where_vmap_cannot_go() -> None:
    class Branching(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y if float(y.detach().sum()) > 0 else 2 * y  # needs a number: no vmap

    x, y = torch.randn(400, 300), torch.randint(40, (400,))
    task = fl.Task(Branching(300, 40), "cross_entropy", (x, y), fl.splits.iid(y, 4))
    run = fl.train(task, fl.FedAvg(lr=0.1), rounds=1, batch_size=100)
    assert run.engine.startswith("loop")
    assert "vmap inf ms" in run.engine


def test_unknown_engines_are_refused() -> None:
    with pytest.raises(fl.FairleadError, match="did you mean 'vmap'"):
        fl.train(toy(), fl.FedAvg(lr=0.1), rounds=1, engine="vmapp")


def test_counters_count_what_was_computed() -> None:
    task = uneven()  # 7, 4, 6, 1 and 11 samples
    run = fl.train(
        task, fl.Scaffold(lr=0.1, option="I"), rounds=1, epochs=2, batch_size=4, cohort=[[0, 3]]
    )
    assert run.counters.gradients == (2 * 7 + 7) + (2 * 1 + 1)
    assert run.counters.exchanges == 1
    assert run.counters.steps == 2 * 2
    assert run.history["gradients"].tolist() == [0, 24]


def test_auto_tries_vmap_on_small_models_too() -> None:
    class Branching(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y if float(y.detach().sum()) > 0 else 2 * y

    x, y = torch.randn(8, 3), torch.randint(2, (8,))
    task = fl.Task(Branching(3, 2), "cross_entropy", (x, y), [range(4), range(4, 8)])
    run = fl.train(task, fl.Scaffold(lr=0.1), rounds=2)
    assert run.engine.startswith("loop: vmap cannot run the model")


def test_dropout_layers_repeat_for_a_seed_whether_or_not_the_choice_is_remembered() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 40), torch.nn.Dropout(0.5))
    x, y = torch.randn(400, 300), torch.randint(40, (400,))
    task = fl.Task(model, "cross_entropy", (x, y), fl.splits.iid(y, 4))
    measurements._KNOWN.clear()
    runs = [
        fl.train(task, fl.FedAvg(lr=0.1), rounds=1, batch_size=90, engine="auto") for _ in range(3)
    ]
    assert torch.equal(runs[1].x, runs[2].x)
    assert torch.equal(runs[0].x, runs[1].x)


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_numbers_can_be_uploaded_and_lost_axes_are_told(engine: str) -> None:
    class Moved(fl.Upload):
        m: torch.Tensor

    class Server(fl.State):
        x: torch.Tensor

    @dataclass(frozen=True)
    class Sends(fl.Algorithm):
        keep: bool

        def init(self, x):
            return Server(x=x)

        def round(self, s, cohort):
            m = cohort.run(self.local, x=s.x).mean.m
            assert m.shape == (1,)
            return Server(x=s.x + m)

        def local(self, client, x):
            y = x
            for step in client.steps(0.5):
                y = y - step.lr * step.grad(y)
            return Moved(m=client.moved if self.keep else (y - x).norm(dim=-1))

    run = fl.train(uneven(), Sends(True), rounds=1, steps=[1, 2, 3, 4, 5], engine=engine)
    torch.testing.assert_close(run.x, run.task.start(0)[0] + 1.5)
    with pytest.raises(fl.FairleadError, match="keepdim=True"):
        fl.train(uneven(), Sends(False), rounds=1, engine=engine)


def test_warm_start_works_with_replayed_batches_and_missing_ones_are_named() -> None:
    table = {(0, 1): [[0]], (0, 3): [[0], [0]]}
    run = fl.train(
        uneven(), fl.Scaffold(lr=0.1, warm_start=True), rounds=1, cohort=[[1, 3]], batches=table
    )
    assert run.counters.exchanges == 2
    with pytest.raises(
        fl.FairleadError, match=r"replay has no batches for \(round, client\) \(0, 0\)"
    ):
        fl.train(uneven(), fl.FedAvg(lr=0.1), rounds=1, batches=table)


def test_the_mode_that_was_measured_to_be_faster_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one changes results by rounding only."""
    x = torch.rand(24, 2, 8, 8, dtype=torch.float64)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 1, 1), fl.models.femnist_cnn(3, side=8)())
    split = [np.arange(k, 24, 3) for k in range(3)]
    task = fl.Task(model, "cross_entropy", (x, torch.arange(24) % 3), split, dtype=torch.float64)
    work = {"rounds": 2, "steps": 3, "batch_size": 4}
    plain = fl.train(task, fl.Scaffold(lr=0.1), engine="debug", **work)
    monkeypatch.setattr(choose, "is_small", lambda *_: False)
    for best, other in (("loop", "vmap"), ("vmap", "loop")):
        seconds = {best: 2.0, other: 2.1}
        monkeypatch.setattr(choose, "remembered", lambda key, measure, found=seconds: found)
        run = fl.train(task, fl.Scaffold(lr=0.1), **work)
        assert run.session.mode == best
        torch.testing.assert_close(run.x, plain.x, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("alone", "layers", "way"),
    [(1.0, 0.9, "stacked"), (1.0, 1.1, "stacked"), (1.0, 1.2, "vmap"), (1.0, math.inf, "vmap")],
)
def test_of_nearly_equal_ways_layers_are_compiled(alone: float, layers: float, way: str) -> None:
    forms = [Form("vmap"), Form("stacked")]
    made = choose._to_compile(forms, {"vmap": alone, "stacked": layers})
    assert made == Form(way, compiled=True)
