"""Methods and models from a user's file: my.py:MyMethod, my.py:net."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from fairlead.core.method import Algorithm
from fairlead.errors import FairleadError, unknown
from fairlead.task.model import made


def own_method(path: Path, name: str) -> type[Algorithm[Any, Any]]:
    """The class of a method in a file."""
    found = _named(path, name)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise FairleadError(f"{name} in {path} is not a method: give a subclass of fl.Algorithm")
    if not dataclasses.is_dataclass(found) or "lr" not in {
        f.name for f in dataclasses.fields(found)
    }:
        raise FairleadError(
            f"{name} in {path} has no setting lr: make it a @dataclass(frozen=True) with a field lr"
        )
    return found


def own_model(path: Path, name: str) -> Any:
    """A module in a file, or what makes one: a function or a class without arguments."""
    found = _named(path, name)
    if isinstance(found, nn.Module):
        return found
    what = f"{name} in {path} is not a model: give a module, or a function without arguments that returns one"
    try:
        module = made(found, 0)
    except TypeError as error:
        raise FairleadError(f"{what} ({error})") from error
    if not isinstance(module, nn.Module):
        raise FairleadError(what)
    return found


def _named(path: Path, name: str) -> Any:
    known = vars(_loaded(path.resolve()))
    if name not in known:
        raise unknown(f"name in {path}", name, [key for key in known if not key.startswith("_")])
    return known[name]


@cache
def _loaded(path: Path) -> ModuleType:
    """The file as a module, which can import others from its folder."""
    if not path.is_file():
        raise FairleadError(f"there is no file {path}: give the path of a Python file")
    word = f"own_{path.stem}"
    spec = importlib.util.spec_from_file_location(word, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[word] = module  # dataclasses look there
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[word]
        raise FairleadError(
            f"{path} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return module
