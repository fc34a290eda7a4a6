"""Every public name has a docstring with an example that runs."""

from __future__ import annotations

import doctest
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fairlead as fl
from fairlead import api

VALUES = {"METHODS", "PRESETS", "__version__"}
"""Public names that are plain values; a comment beside each says what it is."""
NAMES = [name for name in api.__all__ if name not in VALUES]
SOURCE = Path(fl.__file__ or "").parent


def collected(thing: Any) -> doctest.DocTest | None:
    """The doctest that pytest collects for a class, a function or a module, wherever it is defined."""
    if isinstance(thing, ModuleType):
        module, name = thing, thing.__name__
    else:
        module, name = sys.modules[thing.__module__], f"{thing.__module__}.{thing.__qualname__}"
    found = doctest.DocTestFinder(recurse=True).find(module, module.__name__, module=module)
    return next((test for test in found if test.name == name), None)


@pytest.mark.parametrize("name", NAMES)
def test_it_has_an_example_that_pytest_collects(name: str) -> None:
    thing = getattr(fl, name)
    test = collected(thing)
    assert test is not None, f"fl.{name} has no docstring"
    assert test.examples, f"the docstring of fl.{name} has no example"
    assert any(example.want for example in test.examples), f"fl.{name} shows no result"
    file = Path(inspect.getsourcefile(thing) or "")
    assert file.is_relative_to(SOURCE), file
    first = (inspect.getdoc(thing) or "").splitlines()[0]
    assert len(first) > 10, f"fl.{name}: {first!r} says too little"
    assert not first.startswith(">>>"), f"fl.{name} begins with its example"


def test_values_are_values() -> None:
    for name in VALUES:
        assert isinstance(getattr(fl, name), dict | str)
