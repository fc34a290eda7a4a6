"""Writing a tuning's files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.errors import FairleadError
from fairlead.figures.style import figure_path
from fairlead.methods import METHODS
from fairlead.run.folder import write_json


def write(
    tuning: Any, folder: Path, settings: Mapping[str, Mapping[str, Any]], figure: str
) -> list[str]:
    """Write the table, trials, numbers, figure and best settings."""
    picture = figure_path(folder, "sensitivity", figure)
    texts = {"table.md": tuning.to_markdown(), "trials.csv": tuning.to_csv()}
    for label in tuning.entries:
        if tuning.best_trial(label).state != "diverged":
            known = settings.get(label) or searched_settings(tuning, label)
            word = re.sub(r"[^\w.+-]+", "-", label)
            texts[f"best-{word}.toml"] = toml(known)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        tuning.plot(picture)
    except OSError as error:
        raise FairleadError(f"cannot write to {folder}: {error.strerror}") from error
    write_json(folder / "tuning.json", tuning.to_json())
    return [*texts, picture.name, "tuning.json"]


def searched_settings(tuning: Any, label: str) -> dict[str, Any]:
    """The method, its step size and other searched settings, by command-line name; the task and all
    other settings are not known here."""
    entry, trial = tuning.entries[label], tuning.best_trial(label)
    names = {kind: name for name, kind in METHODS.items()}
    method = names.get(type(entry.method), label)
    others = {k: v for k, v in entry.plain(trial).items() if k != "lr"}
    return {"method": method, "lr": entry.lr(trial), "rounds": tuning.rounds, **others}


def toml(settings: Mapping[str, Any]) -> str:
    """Settings as TOML lines, without those that are None.

    >>> print(toml({"method": "fedprox", "mu": 0.1, "warm_start": True, "cohort": None}), end="")
    method = "fedprox"
    mu = 0.1
    warm_start = true
    """
    lines = [f"{name} = {_line(value)}" for name, value in settings.items() if value is not None]
    return "\n".join(lines) + "\n"


def _line(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_line(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_line, value)) + "]"
    return json.dumps(
        value if isinstance(value, bool | int | float) else str(value), ensure_ascii=False
    )
