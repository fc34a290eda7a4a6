"""The command line: fairlead run | compare | list."""

from __future__ import annotations

import dataclasses
import json
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

import fairlead
from fairlead.algorithms import METHODS, PRESETS
from fairlead.citations import PAPERS, cite
from fairlead.compare import Comparison, compare
from fairlead.compress import COMPRESSORS
from fairlead.compress import parse as parse_compressor
from fairlead.data.splits import SPLITS
from fairlead.errors import FairleadError, unknown
from fairlead.schedules import SCHEDULES, parse
from fairlead.task import Task
from fairlead.tasks import TASKS, one_line
from fairlead.train import Run, train

app = typer.Typer(
    help="Federated optimization when clients' data differ.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console()

METHOD_SETTINGS = ("server_lr", "server", "mu", "option", "warm_start", "compressor", "momentum",
                   "beta", "alpha", "damping", "first_batch", "gamma", "layers")  # fmt: skip

DEFAULTS: dict[str, Any] = {
    "task": "digits", "split": "similarity", "split_value": None, "clients": None, "model": "softmax",
    "rounds": 60, "cohort": None, "batch_size": 0.2, "steps": None, "epochs": None, "lr": None,
    "grid": "10,3,1,0.3,0.1", "schedule": None, "weighting": "uniform", "dropout": 0.0, "seed": 0,
    "seeds": 3, "target": None, "engine": "auto", "device": "cpu", "dtype": "float32",
    "eval_every": 1, "out": None, "methods": "fedsgd,fedavg,fedprox,scaffold", "method": "scaffold",
    "x": "round", "set": None, **dict.fromkeys(METHOD_SETTINGS),
}  # fmt: skip

AXES = ("round", "bits", "bits_up", "bits_down", "nominal_up", "gradients", "exchanges", "seconds")

SERVERS: dict[str, Callable[..., Any]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
}


def _settings(given: dict[str, Any], config: Path | None) -> dict[str, Any]:
    """Defaults, then the TOML file, then flags."""
    settings = dict(DEFAULTS)
    if config is not None:
        try:
            read = tomllib.loads(config.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise FairleadError(f"the settings in {config} cannot be read: {error}") from error
        for name, value in read.items():
            key = name.replace("-", "_")
            if key not in DEFAULTS:
                raise unknown("setting", name, DEFAULTS)
            kind = OPTIONS[key][0]
            lists = {"methods": list, "grid": list, "target": dict}
            allowed = {int: int, float: float | int, bool: bool, str: str | int | float, Path: str}[
                kind
            ]
            if key in (
                "task",
                "split",
                "model",
                "compressor",
                "schedule",
                "method",
                "methods",
                "server",
            ):
                allowed = str
            if not isinstance(value, allowed) and not isinstance(value, lists.get(key, ())):
                raise FairleadError(f"{name} is {value!r} in {config}: give a {kind.__name__}")
            settings[key] = value
    settings.update({k: v for k, v in given.items() if v is not None})
    return settings


def _number(text: Any) -> Any:
    """A count or a fraction: '20' is a count, '0.2' a fraction."""
    if text is None or isinstance(text, int | float):
        return text
    try:
        return int(text) if str(text).isdigit() else float(text)
    except ValueError as error:
        raise FairleadError(f"'{text}' is no number: write a count or a fraction") from error


def _numbers(text: Any) -> list[float]:
    parts = text if isinstance(text, list) else [p for p in str(text).split(",") if p]
    try:
        return [float(p) for p in parts]
    except ValueError as error:
        raise FairleadError(
            f"'{text}' is no list of numbers: write for example 1,0.3,0.1"
        ) from error


def _target(text: Any) -> dict[str, float] | None:
    if not text or isinstance(text, dict):
        return text or None
    name, _, value = str(text).partition("=")
    try:
        return {name: float(value)}
    except ValueError as error:
        raise FairleadError(f"the target '{text}' cannot be read: write accuracy=0.9") from error


def _task(s: dict[str, Any]) -> Task:
    if s["task"] not in TASKS:
        raise unknown("task", s["task"], TASKS)
    if s["dtype"] not in ("float32", "float64"):
        raise unknown("dtype", s["dtype"], ["float32", "float64"])
    more = {} if s["clients"] is None else {"clients": s["clients"]}
    return TASKS[s["task"]](
        split=s["split"], split_value=s["split_value"], model=s["model"],
        dtype=getattr(torch, s["dtype"]), device=s["device"], **more,
    )  # fmt: skip


def _method(name: str, s: dict[str, Any], lr: float) -> Any:
    """A method by the name of its class or of a preset, with the settings that it takes."""
    base, more = PRESETS.get(name, (name, {}))
    if base not in METHODS:
        raise unknown("method", name, [*METHODS, *PRESETS])
    kind = METHODS[base]
    given = {**more, **{k: s[k] for k in METHOD_SETTINGS if s[k] is not None}}
    given.update(_own(s["set"], kind))
    takes = {field.name for field in dataclasses.fields(kind)}
    if "server" in takes and isinstance(given.get("server"), str):
        if given["server"] not in SERVERS:
            raise unknown("server optimizer", given["server"], SERVERS)
        rate = float(given.pop("server_lr", 1.0))
        given["server"] = partial(SERVERS[given["server"]], lr=rate)
    if "compressor" in given:
        given["compressor"] = parse_compressor(given["compressor"])
    if isinstance(given.get("layers"), str):
        text = given["layers"]
        given["layers"] = int(text) if text.lstrip("-").isdigit() else text.split(",")
    made = {k: v for k, v in given.items() if k in takes}
    return kind(lr=parse(lr, s["schedule"], s["rounds"]), **made)


def _own(text: str | None, kind: Any) -> dict[str, Any]:
    """Settings of a method without a flag, written name=value with commas between."""
    found: dict[str, Any] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, value = part.partition("=")
        fields = {f.name for f in dataclasses.fields(kind)}
        if name not in fields:
            raise unknown(f"setting of {kind.__name__}", name, fields)
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def _methods(names: list[str], s: dict[str, Any], lr: float) -> dict[str, Any]:
    """Methods by label. A setting that none of them takes is refused."""
    made: dict[str, Any] = {}
    for name in names:
        method = _method(name, s, lr)
        made[name if name in PRESETS else type(method).__name__] = method
    takes = {field.name for method in made.values() for field in dataclasses.fields(method)}
    for key in METHOD_SETTINGS:
        if s[key] is not None and key not in takes:
            why = next((m.refuses[key] for m in made.values() if key in m.refuses), "leave it out")
            raise FairleadError(f"{' and '.join(made)} takes no {key.replace('_', ' ')}: {why}")
    return made


def _local(s: dict[str, Any]) -> dict[str, Any]:
    """The settings of `train` that a run and a comparison share."""
    return {
        "cohort": _number(s["cohort"]), "batch_size": _number(s["batch_size"]), "steps": s["steps"],
        "epochs": s["epochs"], "weighting": s["weighting"], "dropout": s["dropout"],
        "engine": s["engine"], "eval_every": s["eval_every"],
    }  # fmt: skip


OPTIONS: dict[str, tuple[Any, str]] = {
    "methods": (str, "names with commas between"),
    "method": (str, "the method; see `fairlead list`"),
    "task": (str, "what to train; see `fairlead list`"),
    "split": (str, "iid, similarity, dirichlet or shards"),
    "split_value": (float, "percent of similarity, alpha of Dirichlet, shards a client"),
    "clients": (int, "how many clients"),
    "model": (str, "softmax or mlp (digits)"),
    "rounds": (int, "communication rounds"),
    "cohort": (str, "clients a round: a number or a fraction; all by default"),
    "batch_size": (str, "samples a step: a number or a fraction of the client's data"),
    "steps": (int, "local steps a round"),
    "epochs": (int, "local epochs a round; 1 by default"),
    "lr": (float, "local step size (compare: instead of a grid)"),
    "grid": (str, "step sizes to try for every method"),
    "schedule": (str, "exponential:0.99, cosine, multistep:50,80 or inverse-sqrt"),
    "server_lr": (float, "the server's step size"),
    "compressor": (str, "of uploads: qsgd:2, qsgd:2:elias, topk:0.01:ef, randk:0.1, bfloat16"),
    "momentum": (float, "in local steps, where the method has it"),
    "beta": (float, "momentum of FedGLOMO, Mime and SCAFFOLD-M"),
    "alpha": (float, "FedDyn's regularization"),
    "damping": (float, "of FedLOMO's and FedGLOMO's local momentum"),
    "first_batch": (int, "samples of FedLOMO's and FedGLOMO's first gradient; all by default"),
    "gamma": (float, "FedCOMGATE's server step"),
    "layers": (str, "FedPVR's part: -3 for the last three layers, or names with commas between"),
    "set": (str, "a method's other settings: a=0.3, p=0.2, tau=0.01, with commas between"),
    "x": (str, "the figure's axis: round, bits, bits_up, gradients, exchanges or seconds"),
    "server": (str, "the server's optimizer: sgd, momentum, adam or adagrad"),
    "mu": (float, "FedProx's proximal weight"),
    "option": (str, "SCAFFOLD's option, I or II"),
    "warm_start": (bool, "start SCAFFOLD from the clients' gradients"),
    "weighting": (str, "uniform or size"),
    "dropout": (float, "share of sampled clients that do not answer"),
    "target": (str, "for example accuracy=0.9"),
    "seed": (int, "seed"),
    "seeds": (int, "how many seeds"),
    "engine": (str, "auto, vmap, loop or debug"),
    "device": (str, "cpu or cuda"),
    "dtype": (str, "float32 or float64"),
    "eval_every": (int, "rounds between evaluations"),
    "config": (Path, "settings from a TOML file; flags win"),
    "out": (Path, "a folder for config, history, table and figure"),
}


def _fail(error: FairleadError) -> None:
    """End with the error's sentence instead of a traceback."""
    console = Console(stderr=True)
    console.print("error: ", style="bold red", end="")
    console.print(str(error), markup=False, highlight=False)
    raise typer.Exit(2) from None


def _settings_command(name: str, leave_out: set[str]) -> Callable[..., Any]:
    """A command whose flags are the settings above; it is called with them, read and merged."""

    def register(command: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            config = given.pop("config")
            try:
                command(_settings(given, config))
            except FairleadError as error:
                _fail(error)

        flags = []
        for key, (kind, text) in OPTIONS.items():
            if key not in leave_out:
                default = DEFAULTS.get(key)
                shown = text if default is None else f"{text} \\[{default}]"
                option = typer.Option(f"--{key.replace('_', '-')}", help=shown, show_default=False)
                hint = Annotated[kind | None, option]
                flags.append(Parameter(key, Parameter.KEYWORD_ONLY, default=None, annotation=hint))
        run.__dict__["__signature__"] = Signature(flags)
        run.__annotations__ = {flag.name: flag.annotation for flag in flags}
        run.__doc__ = command.__doc__
        app.command(name)(run)
        return run

    return register


@_settings_command("run", leave_out={"methods", "grid", "seeds", "x"})
def run_command(s: dict[str, Any]) -> None:
    """Train with one method."""
    built = _task(s)
    lr = 0.1 if s["lr"] is None else s["lr"]
    ((label, chosen),) = _methods([s["method"]], s, lr).items()
    result = train(
        built, chosen, rounds=s["rounds"], seed=s["seed"], target=_target(s["target"]), **_local(s)
    )
    last = {k: v for k, v in result.history.rows[-1].items() if k != "clients"}
    shown = Table(*last, title=f"{label} on {built.name}")
    shown.add_row(*(f"{v:,.5g}" for v in last.values()))
    out.print(shown)
    out.print(f"engine: {result.engine}", highlight=False)
    if s["out"] is not None:
        _write_run(Path(s["out"]), s, result)
    if result.error is not None:
        raise result.error


@_settings_command("compare", leave_out={"method", "seed"})
def compare_command(s: dict[str, Any]) -> None:
    """Compare methods, each tuned on the same step sizes. Without arguments: a demo on digits."""
    built = _task(s)
    if s["target"] is None and s["task"] == "digits":
        s["target"] = "accuracy=0.95"
    names = s["methods"] if isinstance(s["methods"], list) else s["methods"].split(",")
    tried = _numbers(s["grid"]) if s["lr"] is None else None
    if tried is not None and not (tried and all(lr > 0 for lr in tried)):
        raise FairleadError(
            f"the grid is '{s['grid']}': give positive step sizes, such as 1,0.3,0.1"
        )
    if s["seeds"] < 1:
        raise FairleadError(f"seeds is {s['seeds']}: take at least 1")
    start: Any = s["lr"] if tried is None else tried[0]
    if s["x"] not in AXES:
        raise unknown("axis", s["x"], AXES)
    result = compare(
        built, _methods(names, s, start), rounds=s["rounds"], seeds=s["seeds"], grid=tried,
        target=_target(s["target"]), **_local(s),
    )  # fmt: skip
    rows = result.table()
    shown = Table(*rows[0], title=_title(built, s))
    for row in rows:
        shown.add_row(*row.values())
    out.print(shown)
    first = next(iter(result.entries.values())).runs[0]
    out.print(f"engine: {first.engine}", highlight=False)
    for note in result.notes():
        out.print(note, highlight=False)
    if s["out"] is not None:
        _write_comparison(Path(s["out"]), s, result)


@app.command("list")
def list_command() -> None:
    """Methods, compressors, tasks, splits and schedules, a line each."""
    methods = Table("method", "what it is", "paper", title="methods")
    for name, kind in METHODS.items():
        methods.add_row(name, one_line(kind), PAPERS[kind.paper].short)
    for name, (base, more) in PRESETS.items():
        settings = ", ".join(f"{k} {v}" for k, v in more.items())
        methods.add_row(name, f"{base} with {settings}", PAPERS[METHODS[base].paper].short)
    out.print(methods)
    groups: dict[str, dict[str, Any]] = {
        "compressor": COMPRESSORS, "task": TASKS, "split": SPLITS, "schedule": SCHEDULES,
    }  # fmt: skip
    for title, group in groups.items():
        table = Table(title, "what it is", title=f"{title}s")
        for name, thing in group.items():
            table.add_row(name, one_line(thing))
        out.print(table)


@app.command("cite")
def cite_command(method: str) -> None:
    """The BibTeX of the paper behind a method."""
    try:
        out.print(cite(method), markup=False, highlight=False)
    except FairleadError as error:
        _fail(error)


@app.command("version")
def version_command() -> None:
    """The versions of fairlead and of what it computes with."""
    out.print(f"fairlead {fairlead.__version__}, torch {torch.__version__}, numpy {np.__version__}, "
              f"python {sys.version.split()[0]}", highlight=False)  # fmt: skip


def _title(task: Task, s: dict[str, Any]) -> str:
    value = "" if s["split_value"] is None else f" {s['split_value']:g}"
    split = f", {s['split']}{value} split" if s["task"] == "digits" else ""
    cohort = "all" if s["cohort"] is None else s["cohort"]
    return f"{task.name}: {task.clients} clients{split}, cohort {cohort}, {s['rounds']} rounds, {s['seeds']} seeds"


def _folder(path: Path, s: dict[str, Any]) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**s, "out": str(path), "fairlead": fairlead.__version__}, indent=2)
        (path / "config.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise FairleadError(f"cannot write to {path}: {error.strerror}") from error
    return path


def _write_run(path: Path, s: dict[str, Any], run: Run) -> None:
    from fairlead.report.plots import run_figure

    folder = _folder(path, s)
    run.history.to_jsonl(folder / "history.jsonl")
    run.history.to_csv(folder / "history.csv")
    run_figure(run, folder / "run.png")
    out.print(
        f"written: {folder}/config.json, history.jsonl, history.csv, run.png", highlight=False
    )


def _write_comparison(path: Path, s: dict[str, Any], result: Comparison) -> None:
    folder = _folder(path, s)
    for label, entry in result.entries.items():
        for seed, run in enumerate(entry.runs):
            run.history.to_jsonl(folder / f"{label}-{seed}.jsonl")
    (folder / "table.md").write_text(result.to_markdown(), encoding="utf-8")
    (folder / "table.csv").write_text(result.to_csv(), encoding="utf-8")
    result.plot(folder / "compare.png", s["x"])
    out.print(f"written: {folder}/table.md, table.csv, compare.png, *.jsonl", highlight=False)


if __name__ == "__main__":
    app()
