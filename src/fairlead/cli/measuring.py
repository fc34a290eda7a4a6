"""What `fairlead measure` does: measure a finished run, or a task at its starting point."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any, TypeAlias

from rich import box
from rich.table import Table

from fairlead.cli.build import build_methods, build_task
from fairlead.cli.common import out
from fairlead.cli.settings import DEFAULTS, chosen, local, read_settings, target
from fairlead.errors import FairleadError, unknown
from fairlead.measure import PROBES, Against, Coverage, Measured, against, conformal, record, take
from fairlead.measure.conformal import KAPPAS, Conformal
from fairlead.probe import Probe
from fairlead.run import folder as runs
from fairlead.run.train import Run, finished, planned, prepared

SETS = ("threshold", "aps", "raps")
PANELS = {
    "cka": "Clients by pair", "bound": "Bound and measured error", **dict.fromkeys(SETS, "Prediction sets"),
}  # fmt: skip
"""What the report shows of a run that was measured, beside its history."""
LISTENING = ("local", "alpha", "compression", "cka", "control_lag")
"""Measures of a method's rounds."""
Finding: TypeAlias = Measured | Coverage | Against


def measure_command(folder: Path | None, own: dict[str, Any], given: dict[str, Any]) -> None:
    """Measure, and print tables or JSON. own: what to measure and its budget; given: settings of a task."""
    run = None if folder is None else _read(folder, given)
    s = read_settings(chosen(given, None), comparing=False)
    names = _names(own["measures"], run)
    of = run if run is not None else build_task(s)
    found = [_one(name, of, s, own) for name in names]
    panels = [] if folder is None else _kept(folder, dict(zip(names, found, strict=True)))
    if own["as_json"]:
        text = json.dumps([_plain(one, own["kappa"] or 0.1) for one in found], indent=1)
        sys.stdout.write(text + "\n")
        return
    for one in found:
        out.print(_table(one, own["kappa"] or 0.1))
        for note in one.notes:
            out.print(f"note: {note}", highlight=False)
        if isinstance(one, Measured):
            cost = f"{one.gradients:,} gradients, {one.bits:,} bits, {one.seconds:.2f} s"
            out.print(f"cost: {cost}; what leaves a client: {one.leaves}", highlight=False)
    if panels:
        shown = " and ".join(f"“{panel}”" for panel in panels)
        out.print(f"fairlead report {folder} shows it under {shown}", highlight=False)


def _kept(folder: Path, found: dict[str, Finding]) -> list[str]:
    """Keep in the run's folder what the report shows; the headings under which it does."""
    shown = [name for name, one in found.items() if name in PANELS and _shows(one)]
    for name in shown:
        record(folder, found[name])
    return list(dict.fromkeys(PANELS[name] for name in shown))


def _shows(one: Finding) -> bool:
    return not isinstance(one, Measured) or "pairs" in one.vectors


def _names(asked: str | None, run: Run | None) -> list[str]:
    saddle = run is not None and run.task.flip is not None
    usual = ["dissimilarity", "curvature", *([] if saddle else ["noise"])]
    names = (
        [n.strip() for n in asked.split(",")] if asked else usual + ["local"] * (run is not None)
    )
    for name in names:
        if name not in PROBES and name not in (*SETS, "bound"):
            raise unknown("measure", name, [*PROBES, *SETS, "bound"])
        if name == "bound" and run is None:
            raise FairleadError("a bound is compared with a run: give its folder")
    return names


def _read(folder: Path, given: dict[str, Any]) -> Run:
    """The run in a folder, at its newest checkpoint."""
    for name, value in given.items():
        if value is not None:
            raise FairleadError(f"the run has its own {name.replace('_', ' ')}: leave it out")
    about = runs.read(folder).about
    settings = about.get("settings")
    if not isinstance(settings, dict) or about.get("command") == "compare":
        raise FairleadError(
            f"the run in {folder} was not started by fairlead run: measure it with fl.measure.take(run, …)"
        )
    s = {**DEFAULTS, **{key: settings[key] for key in DEFAULTS if key in settings}}
    task = build_task(s)
    (method,) = build_methods([s["method"]], s, s["lr"]).values()
    work = local(s)
    engine = work.pop("engine")
    plan, batches = planned(
        rounds=s["rounds"], seed=s["seed"], target=target(s["target"], task), **work
    )
    return finished(prepared(task, method, plan, batches, engine, resume=folder))


def _one(name: str, of: Any, s: dict[str, Any], own: dict[str, Any]) -> Finding:
    if name in SETS:
        return conformal(of, kind=Conformal(name), kappas=sorted({*KAPPAS, own["kappa"] or 0.1}))
    if name == "bound":
        return against(of)
    task = of.task if isinstance(of, Run) else of
    kind = PROBES["saddle_curvature" if name == "curvature" and task.flip is not None else name]
    fields = {field.name for field in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
    budget = {
        "clients": own["use_clients"],
        "samples": own["samples"],
        "steps": own["products"] or 20,
    }
    if name == "cka":
        budget["samples"] = own["samples"] or 128
    probe: Probe = kind(**{n: v for n, v in budget.items() if n in fields})
    if isinstance(of, Run):
        return take(of, probe)
    work: dict[str, Any] = {}
    if name in LISTENING:
        (method,) = build_methods([s["method"]], s, s["lr"]).values()
        known = local(s)
        work = {k: known[k] for k in ("batch_size", "steps", "epochs", "drop_last", "replacement")}
        work["method"] = method
    return take(of, probe, engine=s["engine"], weighting=s["weighting"], seed=s["seed"], **work)


def _table(one: Finding, kappa: float) -> Table:
    if isinstance(one, Against):
        shown = Table(
            title=f"{one.theorem}, after round {one.rounds[-1]}", box=box.SIMPLE, show_header=False
        )
        for name, value in _last(one).items():
            shown.add_row(name, _short(value))
        for condition in one.conditions:
            shown.add_row(condition, "")
        return shown
    if isinstance(one, Coverage):
        title = f"{one.kind} sets, κ = {kappa:g}, {one.calibration} calibration and {one.test} test samples"
        shown = Table(title=title, box=box.SIMPLE, show_header=False)
        for name, value in {"top-1 accuracy": one.accuracy, **one.at(kappa)}.items():
            shown.add_row(name.replace("_", " "), f"{value:.4f}")
        return shown
    title = f"{one.name} at {one.where}: {one.clients} clients, {one.samples:,} samples"
    shown = Table("", "value", "range", title=title, box=box.SIMPLE_HEAD, min_width=60)
    for name, value in one.values.items():
        low, high = one.ranges.get(name, (value, value))
        known = "" if _short(low) == _short(high) else f"{_short(low)} … {_short(high)}"
        shown.add_row(name or one.name, _short(value), known)
    return shown


def _short(value: float) -> str:
    return "?" if math.isinf(value) else f"{value:.5g}"


def _last(one: Against) -> dict[str, float]:
    """A bound and what it bounds, after the last round."""
    names = {f"bound on {one.of}": one.bound, "measured mean": one.mean, "f − f*": one.error}
    return {name: float(values[-1]) for name, values in names.items()}


def _plain(one: Finding, kappa: float) -> dict[str, Any]:
    if isinstance(one, Against):
        bound, mean, error = _last(one).values()
        about = {"theorem": one.theorem, "rounds": int(one.rounds[-1]), "broken": list(one.broken)}
        last = {"bound": bound if math.isfinite(bound) else None, "mean": mean, "error": error}
        return {"measure": "bound", **about, **last, "notes": list(one.notes)}
    if isinstance(one, Coverage):
        return {"measure": one.kind, "kappa": kappa, "accuracy": one.accuracy, **one.at(kappa)}
    return one.to_json()
