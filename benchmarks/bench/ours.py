"""The same rounds through `fl.train`."""

from __future__ import annotations

import time
from typing import Any

import fairlead as fl
from bench.peers.plain import Runner, Work
from bench.workloads import Workload

SETTLING = 5
"""Rounds after which everything is recorded that will be."""
METHODS = {"FedAvg": fl.FedAvg, "SCAFFOLD": fl.Scaffold}


def begin(work: Work) -> Runner:
    """Task and method; a run is as many rounds as are asked for, and goes on from nothing."""
    workload = Workload.read(work)
    task = workload.task(work["device"])
    method = METHODS[work["method"]](lr=workload.lr)
    engine: Any = fl.Distributed()
    if work["engine"] != "distributed":
        how = {name: work[name] for name in ("precision", "compile") if work.get(name)}
        engine = fl.Simulate(work["engine"], **how)
    local: dict[str, Any] = {"steps": workload.steps, "batch_size": workload.batch}
    if work.get("exact"):
        size = workload.batch
        table = [list(range(k * size, (k + 1) * size)) for k in range(workload.steps)]
        local = {"batches": lambda round, client: table}
    everyone = workload.population == workload.clients
    last: list[fl.Run] = []

    def run(rounds: int) -> list[float]:
        begin = time.perf_counter()
        # the first rounds record and capture: a round is what it takes after them. On a device they are
        # as many, since an evaluation, which has the clock read, makes rounds wait
        first = 0 if workload.test or work.get("exact") else SETTLING
        first = max(first, rounds) if first and work["device"] == "cuda" else first
        done = fl.train(
            task, method, rounds=rounds + first, cohort=None if everyone else workload.clients,
            eval_every=workload.eval_every or first or rounds, objective=False, engine=engine,
            progress=False, workers=work.get("workers"), **local, **work.get("train", {}),
        )  # fmt: skip
        last[:] = [done.raise_if_diverged()]
        seconds = time.perf_counter() - begin if workload.test else done.seconds
        if first:
            seconds -= next(r["seconds"] for r in done.history.rows if r["round"] == first)
        return [seconds / rounds]

    return Runner(run, lambda: last[0].x.tolist(), lambda: last[0].engine)
