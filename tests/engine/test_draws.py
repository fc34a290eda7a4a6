"""What models draw is a function of (seed, round, client, step): the same in every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conformance import METHODS
from torch import Tensor, nn
from torch.nn import functional as F

import fairlead as fl
from fairlead.engine.captured import CapturedExecutor
from fairlead.gradients import cuda_graph
from fairlead.gradients.draws import Draws

SIZES = (13, 4, 9, 7, 22)


class Noisy(nn.Module):
    """Draws of several kinds, none of them by a module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(torch.tanh(self.first(x)), 0.4, self.training)
        if self.training:
            x = x + 0.1 * torch.randn_like(x) + 0.1 * torch.rand(8, dtype=x.dtype, device=x.device)
        return self.last(x)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        pair = torch.stack([x, x.flip(-1)], 1)
        return self.last(self.attention(pair, pair, pair, need_weights=False)[0].mean(1))


class Recurs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.GRU(2, 4, 2, dropout=0.5, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells(x.unflatten(1, (3, 2)))[0][:, -1])


def layered(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 3))


MODELS = {
    "Dropout": lambda: layered(nn.Tanh(), nn.Dropout(0.5)),
    "AlphaDropout": lambda: layered(nn.SELU(), nn.AlphaDropout(0.2)),
    "functional": Noisy,
    "attention": Attends,
    "GRU": Recurs,
}
ALONE = {"RReLU": lambda: layered(nn.RReLU())}
WORK = {"rounds": 3, "cohort": 4, "batch_size": 5, "epochs": 1, "seed": 7, "eval_every": 3}


def task_of(model: str) -> fl.Task:
    rng = np.random.default_rng(5)
    n = sum(SIZES)
    x, y = torch.tensor(rng.normal(size=(n, 6))), torch.tensor(rng.integers(0, 3, n))
    ends = np.cumsum(SIZES)
    owners = [np.arange(e - s, e) for s, e in zip(SIZES, ends, strict=True)]
    make = {**MODELS, **ALONE}[model]
    return fl.Task(make, "cross_entropy", (x, y), owners, dtype=torch.float64)


@pytest.mark.parametrize("model", MODELS)
def test_every_engine_draws_the_same(model: str) -> None:
    task, method = task_of(model), fl.Scaffold(lr=0.3)
    assert task.draws_masks
    expected = fl.train(task, method, engine="loop", **WORK)
    other = fl.train(task, method, engine="loop", **{**WORK, "seed": 8})
    assert float((other.x - expected.x).abs().max()) > 1e-3
    few = fl.Simulate("vmap", memory=1)  # one client at a time
    for how in ("vmap", "debug", "auto", few):
        run = fl.train(task, method, engine=how, **WORK)
        assert float((run.x - expected.x).abs().max()) < 1e-10, (how, run.engine)


@pytest.mark.parametrize("model", ["functional", "attention"])
def test_full_gradients_and_large_batches_draw_the_same(model: str) -> None:
    task = task_of(model)
    methods = (fl.Scaffold(lr=0.3, warm_start=True), fl.Mime(lr=0.3))
    large = (METHODS["fedlomo"], METHODS["fedglomo-qsgd"])
    for method in (*methods, *large):
        one, many = (fl.train(task, method, engine=e, **WORK) for e in ("loop", "vmap"))
        assert float((one.x - many.x).abs().max()) < 1e-10


def test_runs_at_once_draw_as_single_ones() -> None:
    task = task_of("functional")
    pairs = [(fl.FedAvg(lr=lr), seed) for lr in (0.3, 0.1) for seed in (0, 5)]
    work = {k: v for k, v in WORK.items() if k != "seed"}
    found = fl.train_many(task, pairs, engine="vmap", together=True, **work)
    for (method, seed), run in zip(pairs, found, strict=True):
        alone = fl.train(task, method, engine="vmap", seed=seed, **work)
        assert float((run.x - alone.x).abs().max()) < 1e-10


def test_workers_draw_the_same() -> None:
    task, method = task_of("Dropout"), fl.Scaffold(lr=0.3)
    one, two = (fl.train(task, method, engine="loop", workers=n, **WORK) for n in (1, 2))
    assert float((one.x - two.x).abs().max()) < 1e-10


@pytest.mark.parametrize("model", ALONE)
def test_what_vmap_cannot_draw_is_drawn_one_client_at_a_time(model: str) -> None:
    task, method = task_of(model), fl.FedAvg(lr=0.3)
    torch.manual_seed(1)
    one = fl.train(task, method, engine="auto", **WORK)
    torch.manual_seed(2)
    again = fl.train(task, method, engine="debug", **WORK)
    assert one.session.mode == "loop"
    assert torch.equal(one.x, again.x)


def test_masks_have_their_share_and_clients_their_own() -> None:
    keys = torch.tensor([[1, 2], [3, 4]])
    with Draws(keys, together=True):
        kept = F.dropout(torch.ones(2, 400, 50), 0.3)
        again = F.dropout(torch.ones(2, 400, 50), 0.3)
        noise = torch.randn(2, 400, 50)
    assert abs(float((kept > 0).double().mean()) - 0.7) < 0.01
    assert abs(float(noise.mean())) < 0.02
    assert abs(float(noise.std()) - 1) < 0.02
    for other in (again[0], kept[1]):
        assert abs(float(((kept[0] > 0) == (other > 0)).double().mean()) - 0.58) < 0.02


def test_masks_do_not_depend_on_padding() -> None:
    keys = torch.tensor([[5, 6]])
    with Draws(keys, together=False):
        short = torch.rand(3, 4, 5)
    with Draws(keys, together=False):
        long = torch.rand(7, 6, 5)
    with Draws(keys, together=False, first=2):
        late = torch.rand(1, 4, 5)
    assert torch.equal(short, long[:3, :4])
    assert torch.equal(short[2:], late)


@pytest.mark.parametrize("compile", [False, True])
def test_captured_rounds_draw_the_same(compile: bool, device: str, monkeypatch) -> None:
    monkeypatch.setattr(cuda_graph, "captures", lambda place: place.type == device)
    if device == "cpu":
        monkeypatch.setattr(cuda_graph, "record", lambda perform, pool=None: perform() or perform)
        monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    task, method = task_of("functional"), fl.Scaffold(lr=0.3, warm_start=True)
    work = {**WORK, "rounds": 5}
    expected = fl.train(task, method, engine="loop", **work)
    how = fl.Simulate("vmap", capture=True, compile=compile)
    run = fl.train(task.to(device), method, engine=how, **work)
    assert isinstance(run.session.executor, CapturedExecutor)
    assert float((run.x.cpu() - expected.x).abs().max()) < 1e-10
