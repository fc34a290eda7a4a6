"""Errors. Every message is one sentence: what is wrong, which value, what to do."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


class FairleadError(ValueError):
    """An invalid setting, task or run, explained in one sentence.

    >>> import fairlead as fl
    >>> fl.FedProx(lr=0.1, mu=-1.0)
    Traceback (most recent call last):
    ...
    fairlead.errors.FairleadError: mu is -1.0: must be at least 0
    """


class Diverged(FairleadError):
    """A run whose iterates are no longer finite.

    >>> import fairlead as fl
    >>> run = fl.train(fl.problems.theorem2(), fl.FedAvg(lr=50.0), rounds=200, steps=10)
    >>> run.stopped, isinstance(run.error, Diverged)
    ('diverged', True)
    """


class Lost(FairleadError):
    """Another process of the run no longer answers."""


class Absent(FairleadError):
    """Some of the clients of an exchange did not answer; `left` are those that did."""

    def __init__(self, left: Any) -> None:
        super().__init__("some clients did not answer: take the measure again with the others")
        self.left = left


def unknown(kind: str, name: str, options: Iterable[str]) -> FairleadError:
    """The error for an unknown name, suggesting the closest known one.

    >>> print(unknown("method", "scafold", ["fedavg", "scaffold"]))
    there is no method 'scafold': did you mean 'scaffold'?
    """
    known = sorted(options)
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'?" if close else f"choose one of {', '.join(known)}"
    return FairleadError(f"there is no {kind} '{name}': {hint}")


def needed(module: str, package: str | None = None) -> Any:
    """Import an optional dependency, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = package or module.split(".")[0]
        raise FairleadError(f"{name} is needed for this: pip install {name}") from error


def positive(name: str, value: float) -> None:
    """Raise unless the number is positive and finite."""
    if not (value > 0 and value < float("inf")):
        raise FairleadError(f"{name} is {value}: it must be positive and finite")
