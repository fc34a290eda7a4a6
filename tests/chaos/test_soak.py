"""A long run does not grow: memory, descriptors, threads and checkpoints stay what they were."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import pytest
from campaign import MINUTES, Tally
from conftest import uneven

import fairlead as fl

pytestmark = pytest.mark.slow


def memory() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def standing() -> dict[str, int]:
    gc.collect()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "shared memory": Path("/proc/self/maps").read_text().count("memfd:fairlead"),
    }


class Watch(fl.Callback):
    """Notes what the process holds, and ends the run when the time is over."""

    def __init__(self, until: float) -> None:
        self.until, self.seen = until, []
        self.rounds = 0

    def round(self, view) -> bool:
        self.rounds = view.round
        if view.round % 200 == 0:
            self.seen.append((view.round, memory()))
        return time.monotonic() > self.until


def test_one_long_run_and_many_short_ones(tmp_path: Path) -> None:
    tally = Tally("soak")
    begin = time.monotonic()
    watch = Watch(begin + 30 * MINUTES)  # half of it
    task = uneven(sizes=tuple(range(2, 42)))
    work = {"cohort": 8, "batch_size": 4, "epochs": 1, "eval_every": 50, "dropout": 0.3}
    keep = fl.Checkpoints(tmp_path, every=500)
    fl.train(task, fl.Scaffold(lr=0.01), rounds=10**9, checkpoints=keep, callbacks=[watch], **work)
    tally.tries += watch.rounds
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("round-*.safetensors"))]
    if max(sizes) > 1.05 * min(sizes):
        tally.bad("growth", f"checkpoints of {sizes} bytes")
    late = watch.seen[len(watch.seen) // 3 :]
    if len(late) > 2:  # what is recorded of a round costs about a kilobyte of memory
        (first, before), (last, after) = late[0], late[-1]
        if after - before > (last - first) * 4096 + (32 << 20):
            tally.bad("growth", f"{before >> 20} MB at round {first}, {after >> 20} MB at {last}")
    several: list[tuple[dict[str, int], int]] = []
    while time.monotonic() < begin + 60 * MINUTES or len(several) < 8:
        small = uneven(sizes=(13, 4, 9, 1, 22))
        settings = {"rounds": 3, "cohort": 3, "batch_size": 4, "epochs": 1}
        folder = tmp_path / "run"
        fl.train(small, fl.Scaffold(lr=0.1), out=folder, **settings)
        fl.runs.remove(folder)
        fl.train(small, fl.Scaffold(lr=0.1), workers=2, **settings)
        fl.train_many(small, [(fl.FedAvg(lr=0.1), s) for s in range(3)], **settings)
        several.append((standing(), memory()))
        tally.tries += 1
    half = several[len(several) // 2 :]
    for name in half[0][0]:
        if half[-1][0][name] > half[0][0][name]:
            tally.bad("growth", f"{name}: from {half[0][0][name]} to {half[-1][0][name]}")
    grown = half[-1][1] - half[0][1]
    if grown > (48 << 20) + 100_000 * len(half):
        tally.bad("growth", f"{grown >> 20} MB over {len(half)} short runs")
    tally.end()
