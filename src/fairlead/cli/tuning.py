"""The tuning command: fairlead tune."""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.build import build_methods, build_task, with_flags
from fairlead.cli.common import app, fail, out, say_split, table, title
from fairlead.cli.settings import (
    DEFAULTS,
    METHOD_SETTINGS,
    OPTIONS,
    local,
    numbers,
    pairs,
    read_settings,
    target,
)
from fairlead.cli.write import folder_for
from fairlead.compress import parse as parse_compressor
from fairlead.errors import FairleadError
from fairlead.figures.style import figure_path
from fairlead.study.tuning import Tuning, tune
from fairlead.study.tuning.space import Values, fields_of

LEFT_OUT = {"method", "seed", "checkpoint_every", "track", "overwrite", "timeout", "workers", "x"}
"""Flags of `compare` and `run` that `tune` does not have."""

NOT_COPIED = {*LEFT_OUT, "methods", "grid", "seeds", "target", "lr", "set", "out", *METHOD_SETTINGS}
"""Settings of a tuning that are not copied to its best run."""

FLAGS: dict[str, tuple[Any, str]] = {
    "space": (str, "other settings: mu=0.01|0.1|1,server_lr=0.1:3:log; lr=0.001:1:log for a range"),
    "by": (str, "the objective: rounds or bits to the target, final or best metric"),
    "papers": (bool, "the papers' protocol: only step sizes, the same for all methods, by rounds"),
    "sampler": (str, "grid, tpe or random; by default tpe for a range, else grid"),
    "trials": (int, "number of trials for tpe or random [20]"),
    "sampler_seed": (int, "seed of tpe and random [0]"),
    "prune": (bool, "stop trials that can no longer win"),
    "together": (bool, "run full trials at once, without pruning"),
    "storage": (str, "an Optuna database URL, which several machines can share"),
}


def tune_command(s: dict[str, Any], own: dict[str, Any]) -> None:
    """Find the best step size and other settings of each method. Rerun it to continue."""
    built = build_task(s)
    names = s["methods"] if isinstance(s["methods"], list) else s["methods"].split(",")
    names = [str(name) for name in names]
    space = read_space(own.pop("space", None))
    if s["lr"] is None and "lr" not in space:
        space["lr"] = _grid(s["grid"])
    if not space:
        raise FairleadError("there is nothing to search: give --grid instead of --lr, or --space")
    start: Any = _first(space["lr"]) if "lr" in space else s["lr"]
    methods = build_methods(names, s, start)
    if len(methods) < len(names):
        raise FairleadError(f"the methods are {', '.join(names)}: give each of them once")
    if s["out"] is not None:
        figure_path(s["out"], "sensitivity", s["figure"])  # fail before tuning, not after
        shown = {
            name: value for name, value in own.items() if name != "storage"
        }  # may hold a password
        folder_for(Path(s["out"]), {**s, **shown, "space": space})
    if own.pop("papers", None):
        own["protocol"] = "papers"
    result = tune(
        built, methods, rounds=s["rounds"], space=space, seeds=s["seeds"], target=target(s["target"], built),
        out=s["out"], **own, **local(s),
    )  # fmt: skip
    out.print(table(result.table(), title(built, s)))
    say_split(built, s)
    for note in result.notes():
        out.print(note, highlight=False)
    if s["out"] is not None:
        best = {
            label: best_settings(result, label, name, s)
            for label, name in zip(methods, names, strict=True)
        }
        written = result.write(Path(s["out"]), best, s["figure"])
        out.print(f"written: {s['out']}/{', '.join(written)}", highlight=False)


def best_settings(result: Tuning, label: str, name: str, s: dict[str, Any]) -> dict[str, Any]:
    """The settings for `fairlead run` to train a method's best trial."""
    entry, trial = result.entries[label], result.best_trial(label)
    known = with_flags(fields_of(entry.method))
    found = {key: s[key] for key in DEFAULTS if key not in NOT_COPIED and s[key] is not None}
    own = {key: s[key] for key in METHOD_SETTINGS if s[key] is not None and key in known}
    rest = {key: value for key, value in pairs(s["set"]).items() if key in known}
    for key, value in entry.plain(trial).items():
        if key != "lr":
            (own if key in METHOD_SETTINGS else rest)[key] = value
    more = ",".join(f"{key}={json.dumps(value)}" for key, value in rest.items())
    return {"method": name, "lr": entry.lr(trial), **own, **found, "set": more or None}


def read_space(text: str | None) -> dict[str, Values]:
    """The search space from its command-line form.

    >>> read_space("mu=0.01|0.1|1,server_lr=0.1:3:log")
    {'mu': [0.01, 0.1, 1], 'server_lr': (0.1, 3, 'log')}
    """
    found: dict[str, Values] = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, written = part.partition("=")
        if not equals or not name or name in found:
            raise FairleadError(
                f"cannot parse '{part}': write each setting once, as name=1|2|3 or name=0.1:3:log"
            )
        words = written.split("|")
        ends = written.split(":")
        if name == "server":
            raise FairleadError("the server's optimizer cannot be searched: give it as --server")
        if name == "compressor":
            found[name] = {word: parse_compressor(word) for word in words}
        elif len(words) == 1 and len(ends) > 1:
            found[name] = tuple(map(_value, ends))
        else:
            found[name] = [_value(word) for word in words if word]
    return found


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except json.JSONDecodeError:
        return word


def _grid(given: Any) -> list[float]:
    tried = numbers(given)
    if not (tried and all(lr > 0 for lr in tried)):
        raise FairleadError(f"the grid is '{given}': give positive step sizes, such as 1,0.3,0.1")
    return tried


def _first(values: Values) -> Any:
    return next(iter(values), 1.0)


def register(command: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Register the command, with the settings of a comparison and its own as flags."""

    def run(**given: Any) -> None:
        config = given.pop("config")
        own = {name: given.pop(name) for name in FLAGS}
        try:
            settings = read_settings(given, config, comparing=True)
            command(settings, {name: value for name, value in own.items() if value is not None})
        except FairleadError as error:
            fail(error)

    flags = []
    for key, (kind, text) in {**OPTIONS, **FLAGS}.items():
        if key not in LEFT_OUT:
            default = DEFAULTS.get(key)
            shown = text if default is None else f"{text} [{default}]"
            word = key.replace("_", "-")
            flag = f"--{word}/--no-{word}" if kind is bool else f"--{word}"
            option = typer.Option(flag, help=shown.replace("[", "\\["), show_default=False)
            hint = Annotated[kind | None, option]
            flags.append(Parameter(key, Parameter.KEYWORD_ONLY, default=None, annotation=hint))
    run.__dict__["__signature__"] = Signature(flags)
    run.__annotations__ = {flag.name: flag.annotation for flag in flags}
    run.__doc__ = command.__doc__
    app.command("tune")(run)


register(tune_command)
