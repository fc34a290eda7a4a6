"""Random settings and models give the same in every engine, to 1e-10."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from campaign import FUZZ, Tally, parts, rng_of
from conformance import METHODS
from torch import Tensor, nn
from torch.nn import functional as F

import fairlead as fl

pytestmark = pytest.mark.slow

D, CLASSES = 6, 3


class Odd(nn.Module):
    """Dropout, hooks, unused and tied parameters, each or not."""

    def __init__(self, kinds: frozenset[str], width: int) -> None:
        super().__init__()
        self.kinds = kinds
        self.first, self.last = nn.Linear(D, width), nn.Linear(width, CLASSES)
        self.square = nn.Linear(width, width)
        if "tied" in kinds:
            self.again = nn.Linear(width, width)
            self.again.weight = self.square.weight
        if "unused" in kinds:
            self.idle = nn.Linear(4, 4)
        if "frozen" in kinds:
            self.square.bias.requires_grad_(False)
        if "layernorm" in kinds:
            self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.3 if "dropout" in kinds else 0.0)
        if "hooks" in kinds:
            self.first.register_forward_hook(lambda module, given, output: output * 1.5)
            self.last.register_forward_pre_hook(lambda module, given: (given[0] + 0.1,))

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(torch.tanh(self.first(x)))
        if "noise" in self.kinds and self.training:
            x = F.dropout(x, 0.2) + 0.05 * torch.randn_like(x)
        x = torch.tanh(self.square(x))
        if "tied" in self.kinds:
            x = x + self.again(x)
        if "layernorm" in self.kinds:
            x = self.norm(x)
        return self.last(x)


KINDS = ["dropout", "hooks", "unused", "tied", "frozen", "noise", "layernorm"]


def task_of(rng: random.Random) -> tuple[fl.Task, str]:
    count = rng.randint(2, 7)
    sizes = [rng.randint(2, 15) for _ in range(count)]
    if rng.random() < 0.4:
        sizes = [sizes[0]] * count
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    n = sum(sizes)
    x, y = torch.tensor(numbers.normal(size=(n, D))), torch.tensor(numbers.integers(0, CLASSES, n))
    ends = np.cumsum(sizes)
    parts = [np.arange(e - s, e) for s, e in zip(sizes, ends, strict=True)]
    kinds = frozenset(k for k in KINDS if rng.random() < 0.35)
    width = rng.randint(3, 8)
    seed = rng.randrange(1 << 20)

    def make() -> nn.Module:
        return Odd(kinds, width)

    torch.manual_seed(seed)
    task = fl.Task(
        make if rng.random() < 0.5 else make(), "cross_entropy", (x, y), parts, test=(x, y),
        l2=rng.choice([0.0, 0.01]), noise=rng.choice([0.0, 0.0, 0.05]), dtype=torch.float64,
    )  # fmt: skip
    return task, f"{sorted(kinds)} sizes {sizes}"


def work_of(rng: random.Random, clients: int) -> dict[str, Any]:
    work: dict[str, Any] = {"rounds": rng.randint(1, 3), "seed": rng.randrange(1000)}
    work["cohort"] = rng.choice([None, rng.randint(1, clients), 0.6])
    work["batch_size"] = rng.choice([None, 1, 2, 4, 7, 0.5])
    kind = rng.randrange(3)
    if kind == 0:
        work["steps"] = rng.randint(1, 4)
    elif kind == 1:
        work["epochs"] = rng.randint(1, 2)
    else:
        work["steps"] = fl.Geometric(0.5)
    work["weighting"] = rng.choice(["uniform", "size"])
    work["dropout"] = rng.choice([0.0, 0.0, 0.3])
    work["drift"] = rng.random() < 0.2
    return work


def difference(one: fl.Run, two: fl.Run) -> float:
    """The largest one between two runs: models, histories and accounts."""
    if (one.rounds, one.stopped, one.counters, one.ledger.up) != (
        two.rounds, two.stopped, two.counters, two.ledger.up,
    ):  # fmt: skip
        return float("inf")
    found = float((one.x - two.x).abs().max() / (1 + one.x.abs().max()))
    for a, b in zip(one.history.rows, two.history.rows, strict=True):
        if a.keys() != b.keys():
            return float("inf")
        for name in a.keys() - {"seconds"}:
            if a[name] != b[name]:
                found = max(found, abs(a[name] - b[name]) / (1 + abs(a[name])))
    return found


ENGINES = {
    "vmap": {"engine": "vmap"},
    "auto": {"engine": "auto"},
    "debug": {"engine": "debug"},
    "chunks": {"engine": fl.Simulate("vmap", memory=1)},
    "workers": {"engine": "loop", "workers": 2},
    "disk": {"engine": fl.Simulate("loop", memories="disk")},
}


@pytest.mark.parametrize(("part", "tries"), parts(FUZZ, 15))
def test_fuzz(part: int, tries: int) -> None:
    tally, rng = Tally("fuzz of settings, models and engines"), rng_of("fuzz", part)
    while tally.tries < tries:
        task, about = task_of(rng)
        name, work = rng.choice(sorted(METHODS)), work_of(rng, task.clients)
        about = f"{name} on {about} with {work}"
        try:
            expected = fl.train(task, METHODS[name], engine="loop", workers=1, **work)
        except fl.FairleadError:
            continue  # settings that do not fit together are refused in a sentence
        except Exception as error:
            tally.bad("traceback", f"loop: {about}: {error!r}")
            continue
        engine = rng.choice(["vmap", *ENGINES, "many"])
        tally.tries += 1
        try:
            if engine == "many":
                rest = {k: v for k, v in work.items() if k != "seed"}
                pairs = [(METHODS[name], work["seed"]), (METHODS[name], work["seed"] + 1)]
                run = fl.train_many(task, pairs, engine="vmap", **rest)[0]
            else:
                run = fl.train(task, METHODS[name], **{"workers": 1, **ENGINES[engine]}, **work)
        except Exception as error:
            tally.bad("traceback", f"{engine}: {about}: {error!r}")
            continue
        if not (off := difference(expected, run)) < 1e-10 and expected.stopped != "diverged":
            tally.bad("wrong", f"{engine}: off by {off:.1e}: {about}")
    tally.end()
