"""Very many clients: rows exist for those that took part, and a round costs what its cohort costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from programs import PATHS

import fairlead as fl
from fairlead.data import sampling
from fairlead.data.splits import Split
from fairlead.engine import autotune

MANY = 100_000


def crowd(clients: int, each: int = 3, samples: int = 500) -> fl.Task:
    """Clients that hold a few of the same samples each."""
    rng = np.random.default_rng(0)
    x, y = torch.tensor(rng.normal(size=(samples, 4))), torch.tensor(rng.integers(0, 3, samples))
    order = rng.integers(0, samples, each * clients)
    split = Split(order, np.arange(0, each * clients + 1, each))
    return fl.Task(
        torch.nn.Linear(4, 3), "cross_entropy", (x, y), split, test=(x, y), dtype=torch.float64
    )


@pytest.mark.parametrize("tier", ["device", "disk"])
def test_only_those_who_took_part_have_a_row_and_c_is_the_mean_of_all(tier: Any) -> None:
    rounds, cohort = 12, 30
    task, engine = crowd(MANY), fl.Simulate("vmap", memories=tier)
    run = fl.train(
        task, fl.Scaffold(lr=0.3), rounds=rounds, cohort=cohort, steps=2, batch_size=2, seed=3,
        objective=False, engine=engine,
    )  # fmt: skip
    store: Any = run.session.states.store
    server: Any = run.state
    cohorts = fl.Uniform(cohort).cohorts(3, range(rounds), MANY)
    assert store.touched.tolist() == sorted(set(np.concatenate(cohorts).tolist()))
    row = 8 * task.dim
    assert len(store.touched) * row <= store.nbytes <= 2 * rounds * cohort * row
    kept = store.export()["c"]
    assert (kept.norm(dim=1) > 0).all()
    torch.testing.assert_close(server.c, kept.sum(0) / MANY, rtol=0, atol=1e-15)
    assert run.needs.memories == rounds * cohort * row


def test_far_and_near_memories_end_in_the_same_bytes_among_many() -> None:
    task = crowd(MANY)
    found = [
        fl.train(
            task, fl.Scaffold(lr=0.3), rounds=6, cohort=0.001, steps=2, batch_size=2,
            objective=False, dropout=0.3, engine=fl.Simulate("vmap", memories=tier),
        )
        for tier in ("device", "disk")
    ]  # fmt: skip
    assert torch.equal(found[0].x, found[1].x)


def test_a_round_allocates_nothing_per_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what one number per client would need, at most."""
    monkeypatch.setattr(autotune, "FEW_CALLS", 10**9)  # capturing allocates
    clients = 1_000_000

    class Watch(fl.Callback):
        most = 0

        def row(self, row: Any) -> None:
            if row["round"] == 10:
                tracemalloc.start()
            elif row["round"] == 40:
                self.most = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()

    watch = Watch()
    fl.train(
        crowd(clients), fl.Scaffold(lr=0.1), rounds=40, cohort=20, steps=2, batch_size=2,
        objective=False, dropout=0.1, callbacks=[watch], engine="vmap", weighting="size",
    )  # fmt: skip
    assert 0 < watch.most < 4 * clients


def test_a_cohort_takes_as_many_random_numbers_whatever_the_number_of_clients(monkeypatch) -> None:
    drawn: list[int] = []

    def counted(*given: Any) -> torch.Tensor:
        found = words(*given)
        drawn.append(found.numel())
        return found

    words = sampling.words
    monkeypatch.setattr(sampling, "words", counted)
    for clients in (10**5, 10**6, 10**8):
        fl.Uniform(100).cohort(0, 0, clients)
    assert len(drawn) == 3
    assert max(drawn) == min(drawn) < 200


def test_checkpoints_hold_those_who_took_part(tmp_path: Path) -> None:
    settings: Any = {
        "cohort": 20, "steps": 2, "batch_size": 2, "objective": False,
        "engine": fl.Simulate("vmap", memories="disk"),
    }  # fmt: skip
    keep = fl.Checkpoints(tmp_path, every=3)
    task, method = crowd(MANY), fl.Scaffold(lr=0.3)
    whole = fl.train(task, method, rounds=6, **settings)
    fl.train(task, method, rounds=3, checkpoints=keep, **settings)
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) < 60 * 8 * task.dim + 40_000
    again = fl.train(task, method, rounds=6, checkpoints=keep, resume=tmp_path, **settings)
    assert torch.equal(again.x, whole.x)


def test_a_million_clients_are_told_in_a_sentence() -> None:
    order = np.arange(3_000_000) % 1000
    split = Split(order, np.arange(0, 3_000_001, 3))
    assert split.describe(np.arange(1000) % 10) == (
        "1,000,000 clients hold 3,000,000 samples: 3 each, from 3 of 10 classes."
    )


SCRIPT = """
import json, resource, sys
import numpy as np, torch
import fairlead as fl
from fairlead.data.splits import Split

clients, rounds, cohort = 1_000_000, 80, 100
x, y = torch.randn(1000, 784), torch.randint(62, (1000,))
split = Split(np.arange(2 * clients) % 1000, np.arange(0, 2 * clients + 1, 2))
task = fl.Task(torch.nn.Linear(784, 62), "cross_entropy", (x, y), split)
peak = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
run = fl.train(
    task, fl.Scaffold(lr=0.1), rounds=rounds, cohort=cohort, steps=2, batch_size=2, objective=False,
    eval_every=rounds, engine=fl.Simulate("vmap", memories="disk"),
)
store = run.session.states.store
found = {"before": before, "peak": peak(), "rows": store.nbytes, "touched": len(store.touched)}
some = store.touched[:5]
found["finite"] = bool(torch.isfinite(store.read(some).c).all())
found["told"] = str(run.needs)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_million_clients_of_softmax_regression_in_bounded_memory() -> None:
    """What is resident at the peak is far below what clients keep."""
    env = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    row = 4 * (784 * 62 + 62)
    assert found["touched"] >= 7900  # of 8000 draws among a million, hardly any comes twice
    assert found["rows"] >= found["touched"] * row > 1_500_000_000
    assert found["peak"] - found["before"] < 800_000_000
    assert found["finite"]
    assert "client memories up to 1.6 GB on disk" in found["told"]
