"""What the tuning command does: fairlead tune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fairlead.cli.build import build_methods, build_task, with_flags
from fairlead.cli.common import out
from fairlead.cli.names import each_method, name_and_settings, pairs
from fairlead.cli.settings import DEFAULTS, METHOD_SETTINGS, local, numbers, target
from fairlead.cli.show import say_split, say_written, title
from fairlead.cli.tables import table
from fairlead.cli.write import folder_for
from fairlead.compress import parse as parse_compressor
from fairlead.errors import FairleadError
from fairlead.figures.style import check_figures
from fairlead.study.tuning import Tuning, tune
from fairlead.study.tuning.space import Values, fields_of

NOT_COPIED = {
    "method", "seed", "checkpoint_every", "track", "overwrite", "timeout", "workers", "x", "methods", "grid",
    "seeds", "target", "lr", "set", "out", *METHOD_SETTINGS,
}  # fmt: skip
"""Settings of a tuning that are not copied to its best run."""


def tune_command(s: dict[str, Any], own: dict[str, Any]) -> None:
    """Find the best settings of each method."""
    built = build_task(s)
    names = each_method(s["methods"])
    space = read_space(own.pop("space", None))
    if s["lr"] is None and "lr" not in space:
        space["lr"] = _grid(s["grid"])
    if not space:
        raise FairleadError("there is nothing to search: give --grid instead of --lr, or --space")
    start: Any = _first(space["lr"]) if "lr" in space else s["lr"]
    for name in names:
        for key in name_and_settings(name)[1].keys() & space.keys():
            raise FairleadError(f"{key} is searched for: leave it out of {name}")
    methods = build_methods(names, s, start)
    if s["out"] is not None:
        check_figures(s["figure"])  # fail before tuning, not after
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
        say_written(f"{s['out']}/{', '.join(written)}")


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
