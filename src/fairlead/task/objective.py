"""What an objective computes, as text that is the same in every process: the code of the model and of the loss, and
the values that it holds. Code of torch, numpy, Python and fairlead counts by its name."""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairlead.describe import described

DEEP = 30
UNKNOWN = "cannot be compared"
LIBRARIES = ("torch", "numpy", "fairlead", "builtins", *sys.stdlib_module_names)
OWN = {"training", "call_super_init", "dump_patches"}
"""Attributes of modules that are not the user's."""


def portrait(model: nn.Module, loss: Callable[..., Any], transform: Any) -> dict[str, str]:
    """A digest of the model's code, of the loss and of the transform, or why there is none."""
    parts = {"model": model, "loss": loss, "transform": transform}
    return {name: _digest(part) for name, part in parts.items() if part is not None}


def _digest(thing: Any) -> str:
    seen = _Seen()
    text = json.dumps(seen.of(thing, 0), sort_keys=True)
    if seen.unknown:
        return f"{UNKNOWN}: it holds a {seen.unknown[0]}"
    return f"{_name(thing)} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _name(thing: Any) -> str:
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def _is_library(thing: Any) -> bool:
    module = getattr(thing, "__module__", None) or ""
    return module.partition(".")[0] in LIBRARIES and module != "__main__"


class _Seen:
    """One look at an objective: what was met before counts by its number."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.kept: list[Any] = []
        self.unknown: list[str] = []

    def of(self, thing: Any, depth: int) -> Any:
        if thing is None or isinstance(thing, bool | int | float | str):
            return thing
        if isinstance(thing, complex | bytes | torch.dtype | torch.device | range | slice):
            return repr(thing)
        if isinstance(thing, Tensor | np.ndarray | np.generic):
            return described(thing if isinstance(thing, Tensor) else np.asarray(thing))
        if isinstance(thing, enum.Enum):
            return str(thing)
        if isinstance(thing, types.ModuleType):
            return thing.__name__
        if id(thing) in self.numbers:
            return ["again", self.numbers[id(thing)]]
        self.numbers[id(thing)] = len(self.numbers)
        self.kept.append(thing)  # so that no other gets its id
        if depth > DEEP:
            self.unknown.append(type(thing).__qualname__)
            return None
        return self._compound(thing, depth + 1)

    def _compound(self, thing: Any, depth: int) -> Any:
        if isinstance(thing, Mapping):
            return [[self.of(k, depth), self.of(v, depth)] for k, v in thing.items()]
        if isinstance(thing, set | frozenset):
            return sorted(json.dumps(self.of(part, depth)) for part in thing)
        if isinstance(thing, list | tuple):
            return [self.of(part, depth) for part in thing]
        if isinstance(thing, functools.partial):
            return [self.of(part, depth) for part in (thing.func, thing.args, thing.keywords)]
        if isinstance(thing, types.MethodType):
            return [self.of(thing.__func__, depth), self.of(thing.__self__, depth)]
        if isinstance(thing, types.FunctionType):
            return self._function(thing, depth)
        if isinstance(thing, type):
            return self._class(thing, depth)
        if isinstance(thing, torch.jit.ScriptModule | torch.jit.ScriptFunction):
            return str(thing.code)
        if isinstance(thing, nn.Module):
            return self._module(thing, depth)
        if callable(thing) and not hasattr(thing, "__dict__"):  # written in C
            name = getattr(thing, "__name__", None)
            return f"{getattr(thing, '__module__', '')}.{name}" if name else self._opaque(thing)
        return self._object(thing, depth)

    def _function(self, f: types.FunctionType, depth: int) -> Any:
        cells = [self.of(_contents(cell), depth) for cell in f.__closure__ or ()]
        held = [cells, self.of(f.__defaults__, depth), self.of(f.__kwdefaults__, depth)]
        if _is_library(f):
            return [f"{f.__module__}.{f.__qualname__}", held]
        known = [name for name in _names(f.__code__) if name in f.__globals__]
        used = {name: self.of(f.__globals__[name], depth) for name in known}
        return [_code(f.__code__), held, used]

    def _class(self, kind: type, depth: int) -> Any:
        if _is_library(kind):
            return f"{kind.__module__}.{kind.__qualname__}"
        parts = {
            name: self.of(getattr(value, "__func__", value), depth)
            for name, value in sorted(vars(kind).items())
            if isinstance(value, types.FunctionType | classmethod | staticmethod)
            or (not name.startswith("__") and isinstance(value, int | float | str | tuple | Tensor))
        }
        return [kind.__qualname__, parts, [self.of(base, depth) for base in kind.__bases__]]

    def _module(self, module: nn.Module, depth: int) -> Any:
        own = {
            name: self.of(value, depth)
            for name, value in sorted(vars(module).items())
            if not name.startswith("_") and name not in OWN
        }
        trained = {n for n, p in module.named_parameters(recurse=False) if p.requires_grad}
        fixed = {
            n: self.of(p, depth)
            for n, p in module.named_parameters(recurse=False)
            if n not in trained
        }
        hooks = [self.of(h, depth) for h in module._forward_hooks.values()]
        hooks += [self.of(h, depth) for h in module._forward_pre_hooks.values()]
        inner = {name: self.of(child, depth) for name, child in module.named_children()}
        return [self.of(type(module), depth), own, sorted(trained), fixed, hooks, inner]

    def _object(self, thing: Any, depth: int) -> Any:
        if not hasattr(thing, "__dict__"):
            return self._opaque(thing)
        return [self.of(type(thing), depth), self.of(dict(sorted(vars(thing).items())), depth)]

    def _opaque(self, thing: Any) -> None:
        self.unknown.append(type(thing).__qualname__)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _names(code: types.CodeType) -> list[str]:
    """The names that code may look up among globals, those of functions inside it included."""
    inner = [name for c in code.co_consts if isinstance(c, types.CodeType) for name in _names(c)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _code(code: types.CodeType) -> list[Any]:
    """What code does, without where it was written and how its variables are called."""
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    doc = 1 if code.co_consts and isinstance(code.co_consts[0], str) else 0
    return [code.co_code.hex(), constants[doc:], list(code.co_names)]
