"""The whole benchmark: workloads × contestants, as one report that JSON can hold."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from bench.busy import last_core, spinning
from bench.machine import Machine
from bench.peers import PEERS, contestants
from bench.scaling import scaling
from bench.turns import Contestant, Say, Times, own, take_turns
from bench.workloads import Workload, chosen
from fairlead.errors import FairleadError, unknown

Report = dict[str, Any]
ENGINES = ("auto", "vmap", "loop", "distributed")


def bench(
    names: Sequence[str] = (),
    *,
    device: str = "cpu",
    peers: bool = False,
    repeats: int = 5,
    engine: str = "auto",
    precision: str = "float32",
    compile: bool | str = False,
    curves: bool = False,
    rounds: int | None = None,
    seconds: float = 1.0,
    busy: bool = False,
    say: Say = lambda _: None,
    each: Callable[[Report], object] = lambda _: None,
) -> Report:
    """Time workloads and report.

    peers: whether to install and time other libraries, on a CPU.
    curves: whether to time the scaling curves too, or alone if no workload is named.
    rounds: for shorter whole runs; seconds: about how long a turn is.
    busy: keep one core busy with other work while rounds are timed; one process with a thread per core, which then waits for
        the busy one in every operator, is left out.
    say: is told what goes on; each: is given the report so far after each workload.
    """
    if repeats < 1:
        raise FairleadError(f"repeats is {repeats}: take at least 1")
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    todo = [] if curves and not names else chosen(names, device, rounds)
    say("measuring the machine")
    machine = Machine.measured(device)
    how: dict[str, Any] = {"precision": precision, "compile": compile}
    report: Report = {
        "repeats": repeats, "engine": engine, "busy": busy, **how, "workloads": [], "scaling": []
    }  # fmt: skip
    for work in todo:
        others = peers and device == "cpu"
        with spinning(last_core() if busy else None):
            row = _row(work, machine, others, repeats, engine, how, seconds, busy, say)
        report["workloads"].append(row)
        report["machine"] = machine.about()
        each(report)
    if curves:
        report["scaling"] = scaling(machine, min(repeats, 3), engine, say)
        report["machine"] = machine.about()
        each(report)
    return report


def _row(
    work: Workload,
    machine: Machine,
    peers: bool,
    repeats: int,
    engine: str,
    how: dict[str, Any],
    seconds: float,
    busy: bool,
    say: Say,
) -> Report:
    """One workload."""
    known: list[Contestant] = [own("bare loop", machine.device)]
    cores = os.cpu_count() or 1
    for group, method in (("fairlead", "FedAvg"), ("SCAFFOLD", "SCAFFOLD")):
        known.append(own(group, machine.device, method, engine, **how))
        if machine.device == "cpu" and engine == "auto" and cores > 1:
            form = f"{cores} workers"
            known.append(own(group, "cpu", method, engine, workers=cores, form=form, **how))
    failed: list[Times] = []
    for peer in PEERS.values() if peers else ():
        try:
            known += contestants(peer, work, say)
        except FairleadError as error:
            failed.append(Times(peer.name, "", failed=str(error)))
    if busy:
        known = [contestant for contestant in known if contestant.form != "1 process"]
    arithmetic, memory = machine.floor(work)
    with ExitStack() as stack:
        for contestant in known:
            stack.enter_context(contestant)
        times = take_turns(
            known, work.asked(), repeats, seconds, lambda t: say(f"{work.name}: {t}")
        )
    return {
        "name": work.name, "title": work.title, "rounds": work.rounds, "parameters": work.dim,
        **asdict(work.count), "flops": work.count.flops,
        "floor": max(arithmetic, memory), "floor_arithmetic": arithmetic, "floor_memory": memory,
        "contestants": [
            {**asdict(t), "median": None if math.isinf(t.median) else t.median}
            for t in [*times, *failed]
        ],
    }  # fmt: skip


def by_turn(row: Report, group: str) -> list[float]:
    """How long fairlead takes as a share of another's time, both in their fastest forms, turn by turn."""
    ours, theirs = best(row, "fairlead"), best(row, group)
    if not ours or not theirs or None in (ours["median"], theirs["median"]):
        return []
    return [mine / other for mine, other in zip(ours["turns"], theirs["turns"], strict=False)]


def best(row: Report, group: str) -> Report | None:
    """The fastest form of a contestant; one that failed if none did not, None if it did not take part."""
    forms = [c for c in row["contestants"] if c["group"] == group]
    return min(forms, key=lambda c: math.inf if c["median"] is None else c["median"], default=None)
