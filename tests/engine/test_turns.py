"""Processes that take turns: a slow one runs fewer clients, and the bytes of a run do not depend on it."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance import METHODS
from programs import LIMIT
from test_local_processes import same, same_bytes

import fairlead as fl
from fairlead.engine.processes.local import LocalProcesses
from fairlead.engine.processes.shares import FINEST, SUMS, chunks, most_chunks
from fairlead.engine.processes.turns import TurnGroup, Turns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forks")

WORK = {"rounds": 2, "cohort": 6, "batch_size": 12, "steps": [2, 1, 2, 1, 3, 1, 2], "seed": 5}
FEW = ("scaffold-qsgd", "fedavg-topk-ef", "fedglomo-qsgd")


def wide(dropout: float = 0.0, normed: bool = False) -> fl.Task:
    """More than 32,768 parameters, so that one client's vectors are deferred sums."""
    x = torch.randn(168, 1200, generator=torch.Generator().manual_seed(0))
    more = [torch.nn.Dropout(dropout)] if dropout else []
    more += [torch.nn.BatchNorm1d(28)] if normed else []
    first = [torch.nn.Flatten(), torch.nn.Linear(1200, 28), *more]
    net = torch.nn.Sequential(*first, torch.nn.Tanh(), torch.nn.Linear(28, 3))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.linspace(-0.03, 0.02, p.numel()).reshape(p.shape))
    parts = [np.arange(k, 168, 7) for k in range(7)]
    return fl.Task(net, "cross_entropy", (x, torch.arange(168) % 3), parts, dtype=torch.float64)


@contextlib.contextmanager
def slowed(slow: int | None) -> Iterator[list[list[int]]]:
    """One of two processes waits in its first chunk until the other has run all others. Gives the chunks that
    this process ran, by exchange."""
    ran: list[list[int]] = []
    plain, (source, end) = Turns._answer, os.pipe()

    def answer(self: Turns, request: Any, chunk: int, places: Any) -> Any:
        if chunk < self.group.size:
            ran.append([])
        ran[-1].append(chunk)
        if self.group.ranks.rank == slow:
            assert len(ran[-1]) == 1, "the other process runs all other chunks"
            for _ in range(len(self._cut[2]) - 1):
                assert select.select([source], [], [], LIMIT)[0]
                os.read(source, 1)
        found = plain(self, request, chunk, places)
        if slow is not None and self.group.ranks.rank != slow:
            os.write(end, b".")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Turns, "_answer", answer)
        yield ran
    os.close(source)
    os.close(end)


def trained(task: fl.Task, method: Any, slow: int | None, **more: Any) -> fl.Run:
    """A run of two processes of which one is slow."""
    with slowed(slow) as ran:
        run = fl.train(
            task, method, workers=2, engine=more.pop("engine", "loop"), **{**WORK, **more}
        )
    counts = [len(some) for some in ran]
    assert counts
    if slow == 0:
        assert set(counts) == {1}
    if slow == 1:
        assert min(counts) > 2
    return run


def check(task: fl.Task, method: Any, **more: Any) -> None:
    """Two processes give what one gives, and the same bytes whoever is slow."""
    alone = fl.train(task, method, engine="loop", workers=1, **{**WORK, **more})
    runs = [trained(task, method, slow, **more) for slow in (None, 0, 1)]
    assert isinstance(runs[0].session.group, TurnGroup)
    assert runs[0].session.settled.form.deferred
    same(runs[0], alone)
    for run in runs[1:]:
        same_bytes(run, runs[0])
        assert torch.equal(run.session.buffers, runs[0].session.buffers)
        assert run.counters == runs[0].counters
        assert len(run.session.stores()) == len(runs[0].session.stores())
        for store, other in zip(run.session.stores(), runs[0].session.stores(), strict=True):
            rows, expected = store.export(), other.export()
            assert rows.keys() == expected.keys()
            assert all(torch.equal(rows[name], t) for name, t in expected.items())


@pytest.mark.parametrize("name", FEW)
def test_who_runs_a_client_changes_no_byte(name: str) -> None:
    check(wide(), METHODS[name], dropout=0.2, weighting="size", drift=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if name not in FEW])
def test_who_runs_a_client_changes_no_byte_with_any_method(name: str) -> None:
    check(wide(), METHODS[name], dropout=0.2, weighting="size", drift=True)


def test_statistics_travel() -> None:
    check(wide(normed=True), METHODS["scaffold"])


def test_masks_of_dropout_layers_belong_to_a_chunk() -> None:
    runs = [trained(wide(dropout=0.5), METHODS["scaffold"], slow) for slow in (None, 0, 1)]
    same_bytes(runs[1], runs[0])
    same_bytes(runs[2], runs[0])


def test_memories_on_disk_are_shared_too() -> None:
    task, method = wide(), METHODS["scaffold"]
    disk = fl.Simulate("loop", memories="disk")
    runs = [trained(task, method, slow, engine=disk) for slow in (0, 1)]
    assert runs[0].session.states.store.tier == "disk"
    same_bytes(runs[1], runs[0])
    same_bytes(runs[1], trained(task, method, None))


@pytest.mark.parametrize("name", ["scaffold", "fedavg-topk-ef"])
def test_going_on_with_another_slow_process_ends_in_the_same_bytes(
    name: str, tmp_path: Path
) -> None:
    task, method = wide(), METHODS[name]
    whole = trained(task, method, None, rounds=4)
    half = trained(task, method, 0, out=tmp_path)
    same_bytes(trained(task, method, 1, rounds=4, resume=half), whole)
    same_bytes(trained(task, method, 1, rounds=4, out=tmp_path, resume=tmp_path), whole)


def test_a_callback_sees_the_states_of_all_clients() -> None:
    seen: list[torch.Tensor] = []

    class Look(fl.Callback):
        def round(self, view: fl.RoundView) -> None:
            seen.append(view.client_states().c)

    for slow in (0, 1):
        trained(wide(), METHODS["scaffold"], slow, cohort=7, callbacks=[Look()])
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert bool((seen[0] != 0).any(1).all())


@pytest.mark.parametrize("processes", [2, 3, 16])
@pytest.mark.parametrize("clients", [1, 7, 25, 1000])
def test_chunks_hold_everyone_once_and_end_small(clients: int, processes: int) -> None:
    cost = np.random.default_rng(clients).pareto(1.0, clients) + 0.1
    found = chunks(cost, processes, 1)
    assert sorted(np.concatenate(found).tolist()) == list(range(clients))
    assert processes <= len(found) <= most_chunks(processes)
    fair = cost.sum() / processes
    for some in found[:processes]:  # a process begins with at most half of its share, or one client
        assert len(some) <= 1 or cost[some].sum() <= 0.5 * fair + cost[some].min() * 1.001
    last = found[-1] if len(found) > processes else []
    assert len(last) <= 1 or cost[last].sum() <= fair / FINEST + cost[last].max()
    assert len(chunks(cost, processes, SUMS)) <= max(processes + 1, most_chunks(processes) // 3)


def test_numbers_are_taken_once() -> None:
    with LocalProcesses(3) as crew:
        mine = [[crew.take(turn) for _ in range(5)] for turn in (1, 2) if crew.wait() is None]
        data = np.array(mine, np.int64).tobytes()
        found = np.stack([np.frombuffer(d, np.int64).reshape(2, 5) for d in crew.gather(data)])
    for turn in (0, 1):
        assert sorted(found[:, turn].reshape(-1).tolist()) == list(range(3, 18))


def test_sums_are_in_the_order_of_chunks() -> None:
    given = [torch.randn(700_000, generator=torch.Generator().manual_seed(k)) for k in range(7)]
    with LocalProcesses(2) as crew:
        own = (0, 3, 5) if crew.first else (1, 2, 4, 6)
        total = crew.sum_in_order({k: given[k] for k in own}, 7)
    expected = given[0] + given[1]
    for t in given[2:]:
        expected += t
    assert torch.equal(total, expected)
