"""Tasks and methods from settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fairlead.methods import METHODS, PRESETS
from fairlead.cli.settings import METHOD_SETTINGS, pairs
from fairlead.compress import parse as parse_compressor
from fairlead.engine.processes.ranks import local_device
from fairlead.errors import FairleadError, unknown
from fairlead.schedules import parse
from fairlead.task.task import Task
from fairlead.task.catalog import TASKS, make_task

SERVERS: dict[str, Callable[..., Any]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
}


def build_task(s: dict[str, Any]) -> Task:
    """The task that the settings name."""
    if s["task"] not in TASKS:
        raise unknown("task", s["task"], TASKS)
    if s["dtype"] not in (None, "float32", "float64"):
        raise unknown("dtype", s["dtype"], ["float32", "float64"])
    given = {
        **{
            key: s[key] for key in ("split", "split_value", "model", "clients", "weighting", "data")
        },
        "device": local_device(s["device"]),
        "dtype": None if s["dtype"] is None else getattr(torch, s["dtype"]),
    }
    return make_task(s["task"], given, pairs(s["task_set"]))


def build_method(name: str, s: dict[str, Any], lr: float) -> Any:
    """A method by the name of its class or of a preset, with the settings that it takes."""
    base, more = PRESETS.get(name, (name, {}))
    if base not in METHODS:
        raise unknown("method", name, [*METHODS, *PRESETS])
    kind = METHODS[base]
    given = {**more, **{k: s[k] for k in METHOD_SETTINGS if s[k] is not None}}
    takes = {field.name for field in dataclasses.fields(kind)}
    own = pairs(s["set"])
    if "lr" in own:
        raise FairleadError("the step size is no setting of --set: give it as --lr or --grid")
    given.update({key: value for key, value in own.items() if key in takes})
    if "method" in takes:  # a wrapper, whose step size and other settings are the inner method's
        rest = ",".join(f"{k}={json.dumps(v)}" for k, v in own.items() if k not in takes)
        inner = build_method(str(given.pop("method", "scaffold-s")), {**s, "set": rest}, lr)
        return _made(kind, {k: v for k, v in given.items() if k in takes} | {"method": inner})
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
    rate = parse(lr, s["schedule"] or more.get("schedule"), s["rounds"])
    return _made(kind, {k: v for k, v in given.items() if k in takes} | {"lr": rate})


def _made(kind: Any, settings: dict[str, Any]) -> Any:
    try:
        return kind(**settings)
    except (TypeError, ValueError) as error:
        if isinstance(error, FairleadError):
            raise
        raise FairleadError(f"{kind.__name__} does not take these settings: {error}") from error


def build_methods(names: list[str], s: dict[str, Any], lr: float) -> dict[str, Any]:
    """Methods by label. A setting that none of them takes is refused."""
    made: dict[str, Any] = {}
    for name in names:
        method = build_method(name, s, lr)
        made[name if name in PRESETS else type(method).__name__] = method
    takes = {field.name for method in made.values() for field in dataclasses.fields(method)}
    takes |= {f.name for m in made.values() if "method" in takes for f in _inner_fields(m)}
    for key in METHOD_SETTINGS:
        if s[key] is not None and key not in takes:
            why = next((m.refuses[key] for m in made.values() if key in m.refuses), "leave it out")
            raise FairleadError(f"{' and '.join(made)} takes no {key.replace('_', ' ')}: {why}")
    for key in pairs(s["set"]):
        if key not in takes:
            raise unknown(f"setting of {' and '.join(made)}", key, takes)
    return made


def _inner_fields(method: Any) -> Any:
    return dataclasses.fields(method.method) if hasattr(method, "method") else ()
