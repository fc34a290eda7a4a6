"""Building tasks and methods from settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from fairlead.cli.names import name_and_settings, own_file, pairs, same_name
from fairlead.cli.own import own_method, own_model
from fairlead.cli.settings import METHOD_SETTINGS, plain
from fairlead.compress import parse as parse_compressor
from fairlead.engine.processes.ranks import local_device
from fairlead.errors import FairleadError, unknown
from fairlead.methods import METHODS, PRESETS
from fairlead.methods.aggregate import AGGREGATES
from fairlead.methods.local import OPTIMIZERS
from fairlead.schedules import Rate, parse
from fairlead.task.catalog import TASKS, make_task
from fairlead.task.task import Task

SERVERS: dict[str, Callable[..., Any]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
}

OTHER_NAMES = {"first_batch": "batch"}
"""Flags that also set a setting with another name."""


def with_flags(names: Iterable[str]) -> set[str]:
    """The names of a method's settings, and of the flags that set them.

    >>> sorted(with_flags(["lr", "batch"]))
    ['batch', 'first_batch', 'lr']
    """
    known = set(names)
    return known | {flag for flag, own in OTHER_NAMES.items() if own in known}


def build_task(s: dict[str, Any]) -> Task:
    """The task described by the settings."""
    if s["task"] not in TASKS:
        raise unknown("task", s["task"], TASKS)
    if s["dtype"] not in (None, "float32", "float64"):
        raise unknown("dtype", s["dtype"], ["float32", "float64"])
    given = {
        **{
            key: s[key] for key in ("split", "split_value", "clients", "weighting", "data", "valid")
        },
        "model": _model(s["model"]),
        "device": local_device(s["device"]),
        "dtype": None if s["dtype"] is None else getattr(torch, s["dtype"]),
    }
    return make_task(s["task"], given, pairs(s["task_set"]))


def _model(text: str) -> Any:
    """A model's name, or a user's own model from a file."""
    file = own_file(text)
    return text if file is None else own_model(*file)


def build_method(name: str, s: dict[str, Any], lr: float) -> Any:
    """A method by its name, a preset's or that of a class in a file, with those of the settings that it has."""
    file, more = own_file(name), {}
    if file is not None:
        kind: Any = own_method(*file)
    else:
        name = same_name(name, [*METHODS, *PRESETS])
        base, more = PRESETS.get(name, (name, {}))
        if base not in METHODS:
            raise unknown("method", name, [*METHODS, *PRESETS])
        kind = METHODS[base]
    given = {**more, **{k: s[k] for k in METHOD_SETTINGS if s[k] is not None}}
    fields = {field.name for field in dataclasses.fields(kind)}
    for flag, name_of in OTHER_NAMES.items():
        if flag in given and flag not in fields:
            given[name_of] = given.pop(flag)
    own = pairs(s["set"])
    if "lr" in own:
        raise FairleadError("the step size cannot be set with --set: give it as --lr or --grid")
    given.update({key: value for key, value in own.items() if key in fields})
    if "method" in fields:  # a wrapper: the step size and other settings are the inner method's
        rest = _written({k: v for k, v in own.items() if k not in fields})
        inner = build_method(str(given.pop("method", "scaffold-s")), {**s, "set": rest}, lr)
        return _construct(kind, {k: v for k, v in given.items() if k in fields} | {"method": inner})
    if "server" in fields and isinstance(given.get("server"), str):
        rate = float(given.pop("server_lr", 1.0))
        given["server"] = partial(_server(given["server"]), lr=rate)
    if "compressor" in given:
        given["compressor"] = parse_compressor(given["compressor"])
    if isinstance(given.get("local"), str):
        given["local"] = _with_settings("local optimizer", given["local"], OPTIMIZERS)
    if isinstance(given.get("aggregate"), str):
        given["aggregate"] = _with_settings("aggregation", given["aggregate"], AGGREGATES)
    if isinstance(given.get("layers"), str):
        given["layers"] = _layers(given["layers"])
    if isinstance(given.get("beta"), str):
        given["beta"] = _beta(given["beta"], s["rounds"])
    rate = parse(lr, s["schedule"] or more.get("schedule"), s["rounds"])
    return _construct(kind, {k: v for k, v in given.items() if k in fields} | {"lr": rate})


def _with_settings(what: str, text: str, kinds: dict[str, Any]) -> Any:
    """An object from a name and its settings: adam:beta2=0.99,clip=1."""
    name, _, rest = text.partition(":")
    if name not in kinds:
        raise unknown(what, name, kinds)
    own = pairs(rest)
    if "lr" in own:
        raise FairleadError("the step size of clients cannot be set with --local: give it as --lr")
    return _construct(kinds[name], own)


def _server(text: str) -> Callable[..., Any]:
    """A server optimizer from its name, with momentum:0.7 for another momentum."""
    name, colon, momentum = text.partition(":")
    if name not in SERVERS:
        raise unknown("server optimizer", name, SERVERS)
    if not colon:
        return SERVERS[name]
    try:
        if name == "momentum" and 0 <= (value := float(momentum)) < 1:
            return partial(SERVERS[name], momentum=value)
    except ValueError:
        pass
    raise FairleadError(f"server is '{text}': write momentum:0.7, with a number in [0, 1)")


def _layers(text: str) -> int | str | list[str]:
    if text.startswith("from:"):
        return text
    return int(text) if text.lstrip("-").isdigit() else text.split(",")


def _beta(text: str, rounds: int) -> Rate:
    """A number, or a schedule over rounds: 0.2:exponential:0.99."""
    number, _, schedule = text.partition(":")
    try:
        value = float(number)
    except ValueError as error:
        raise FairleadError(f"beta is '{text}': give a number, or 0.2:exponential:0.99") from error
    return parse(value, schedule or None, rounds)


def _construct(kind: Any, settings: dict[str, Any]) -> Any:
    try:
        return kind(**settings)
    except (TypeError, ValueError) as error:
        if isinstance(error, FairleadError):
            raise
        raise FairleadError(f"{kind.__name__} does not accept these settings: {error}") from error


def build_methods(
    names: list[str], s: dict[str, Any], lr: float, tuned: bool = False
) -> dict[str, Any]:
    """Methods by label; a method may have settings of its own after a colon, even its step size unless that is
    tuned. A setting that no method has is an error."""
    methods: dict[str, Any] = {}
    for text in names:
        name, own = name_and_settings(text)
        if tuned and "lr" in own:
            raise FairleadError(
                f"the step size of {name} is chosen from the grid: leave out its lr, or give --lr for the others"
            )
        method, label = _with_own(name, own, s, lr)
        if label in methods:
            raise FairleadError(
                f"{label} is listed twice: give one of them other settings, such as fedavg:momentum=0.9"
            )
        methods[label] = method
    for key in METHOD_SETTINGS:
        if s[key] is not None:
            _check_setting(key, methods)
    known = set().union(*map(setting_names, methods.values()))
    for key in pairs(s["set"]):
        if key not in known:
            raise unknown(f"setting of {' and '.join(methods)}", key, known)
    return methods


def _with_own(name: str, own: dict[str, Any], s: dict[str, Any], lr: float) -> tuple[Any, str]:
    """A method with settings of its own, and its label."""
    flags = {
        key: plain(key, value)
        for key, value in own.items()
        if key in (*METHOD_SETTINGS, "schedule")
    }
    rest = {key: value for key, value in own.items() if key not in flags and key != "lr"}
    given = {**s, **flags, "set": _written({**pairs(s["set"]), **rest})}
    lr = own.get("lr", lr)
    if not isinstance(lr, int | float):
        raise FairleadError(f"the step size of {name} is {lr!r}: give a number")
    method = build_method(name, given, lr)
    preset = same_name(name, PRESETS)
    label = preset if preset in PRESETS else type(method).__name__
    for key in own:
        if key in METHOD_SETTINGS:
            _check_setting(key, {label: method})
        elif key not in (known := setting_names(method)) and key != "schedule":
            raise unknown(f"setting of {label}", key, known)
    words = ", ".join(f"{key}={_word(value)}" for key, value in own.items())
    return method, f"{label} {words}" if words else label


def _check_setting(key: str, methods: Mapping[str, Any]) -> None:
    """Raise unless one of the methods has the setting, with the reason why they do not."""
    known = set().union(*map(setting_names, methods.values()))
    if key not in with_flags(known):
        reasons = (m.refuses[key] for m in methods.values() if key in m.refuses)
        why, labels = next(reasons, "leave it out"), " and ".join(methods)
        raise FairleadError(f"{key.replace('_', ' ')} is not supported by {labels}: {why}")


def setting_names(method: Any) -> set[str]:
    """The names of a method's settings, with those of the method that it wraps."""
    inner = getattr(method, "method", None)
    own = {field.name for field in dataclasses.fields(method)}
    return own if inner is None else own | setting_names(inner)


def _written(settings: dict[str, Any]) -> str:
    return ",".join(f"{key}={json.dumps(value)}" for key, value in settings.items())


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
