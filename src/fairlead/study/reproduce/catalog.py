"""The recipes by name."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from fairlead.errors import unknown
from fairlead.study.reproduce import experiments
from fairlead.study.reproduce.papers import order
from fairlead.study.reproduce.recipe import Recipe


@cache
def recipes() -> dict[str, Recipe]:
    """All recipes by name, in the order of the papers."""
    found: dict[str, Recipe] = {}
    for module in pkgutil.iter_modules(experiments.__path__):
        members = vars(importlib.import_module(f"{experiments.__name__}.{module.name}")).values()
        kinds = [m for m in members if isinstance(m, type) and issubclass(m, Recipe) and m.name]
        found.update({kind.name: kind() for kind in kinds})
    return {name: found[name] for name in sorted(found, key=lambda name: order(name))}


def recipe(name: str) -> Recipe:
    """A recipe by name."""
    if name not in recipes():
        raise unknown("experiment", name, recipes())
    return recipes()[name]
