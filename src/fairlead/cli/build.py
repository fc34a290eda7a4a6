"""Building tasks and methods from settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fairlead.cli.settings import METHOD_SETTINGS, pairs
from fairlead.compress import parse as parse_compressor
from fairlead.engine.processes.ranks import local_device
from fairlead.errors import FairleadError, unknown
from fairlead.methods import METHODS, PRESETS
from fairlead.schedules import parse
from fairlead.task.catalog import TASKS, make_task
from fairlead.task.task import Task

SERVERS: dict[str, Callable[..., Any]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
}


def build_task(s: dict[str, Any]) -> Task:
    """The task described by the settings."""
    if s["task"] not in TASKS:
        raise unknown("task", s["task"], TASKS)
    if s["dtype"] not in (None, "float32", "float64"):
        raise unknown("dtype", s["dtype"], ["float32", "float64"])
    given = {
        **{
            key: s[key]
            for key in ("split", "split_value", "model", "clients", "weighting", "data", "valid")
        },
        "device": local_device(s["device"]),
        "dtype": None if s["dtype"] is None else getattr(torch, s["dtype"]),
    }
    return make_task(s["task"], given, pairs(s["task_set"]))


def build_method(name: str, s: dict[str, Any], lr: float) -> Any:
    """A method by class or preset name, with those of the settings that it has."""
    base, more = PRESETS.get(name, (name, {}))
    if base not in METHODS:
        raise unknown("method", name, [*METHODS, *PRESETS])
    kind = METHODS[base]
    given = {**more, **{k: s[k] for k in METHOD_SETTINGS if s[k] is not None}}
    fields = {field.name for field in dataclasses.fields(kind)}
    own = pairs(s["set"])
    if "lr" in own:
        raise FairleadError("the step size cannot be set with --set: give it as --lr or --grid")
    given.update({key: value for key, value in own.items() if key in fields})
    if "method" in fields:  # a wrapper: the step size and other settings are the inner method's
        rest = ",".join(f"{k}={json.dumps(v)}" for k, v in own.items() if k not in fields)
        inner = build_method(str(given.pop("method", "scaffold-s")), {**s, "set": rest}, lr)
        return _construct(kind, {k: v for k, v in given.items() if k in fields} | {"method": inner})
    if "server" in fields and isinstance(given.get("server"), str):
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
    return _construct(kind, {k: v for k, v in given.items() if k in fields} | {"lr": rate})


def _construct(kind: Any, settings: dict[str, Any]) -> Any:
    try:
        return kind(**settings)
    except (TypeError, ValueError) as error:
        if isinstance(error, FairleadError):
            raise
        raise FairleadError(f"{kind.__name__} does not accept these settings: {error}") from error


def build_methods(names: list[str], s: dict[str, Any], lr: float) -> dict[str, Any]:
    """Methods by label. A setting that none of them has is an error."""
    methods: dict[str, Any] = {}
    for name in names:
        method = build_method(name, s, lr)
        methods[name if name in PRESETS else type(method).__name__] = method
    fields = {field.name for method in methods.values() for field in dataclasses.fields(method)}
    fields |= {f.name for m in methods.values() if "method" in fields for f in _inner_fields(m)}
    labels = " and ".join(methods)
    for key in METHOD_SETTINGS:
        if s[key] is not None and key not in fields:
            reasons = (m.refuses[key] for m in methods.values() if key in m.refuses)
            why = next(reasons, "leave it out")
            raise FairleadError(f"{key.replace('_', ' ')} is not supported by {labels}: {why}")
    for key in pairs(s["set"]):
        if key not in fields:
            raise unknown(f"setting of {labels}", key, fields)
    return methods


def _inner_fields(method: Any) -> Any:
    return dataclasses.fields(method.method) if hasattr(method, "method") else ()
