"""Code of the methods as their files have it, and the comments in it that name a paper's lines."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from types import ModuleType
from typing import Any

import fairlead as fl
from handbook.entry import Entry

NUMBERED = re.compile(r"^\s*(?P<code>\S.*?)  # (?P<where>(?:lines? \d|Algorithm \d|equation).*)$")


def module_of(entry: Entry) -> ModuleType:
    """The file that the method is in."""
    return importlib.import_module(fl.METHODS[entry.name].__module__)


def _named(module: ModuleType, name: str) -> Any:
    """A class in a method's file, or in a file it builds on."""
    return getattr(module, name)


def programs(entry: Entry) -> list[tuple[str, str]]:
    """The name and the source of every function that the page shows, with the file they are in."""
    module, found = module_of(entry), []
    for program in entry.programs:
        owner, _, function = program.partition(".")
        cls = _named(module, owner)
        raw = vars(cls)[function]
        text = inspect.getsource(raw)
        file = inspect.getmodule(cls)
        assert file is not None
        found.append((f"src/{file.__name__.replace('.', '/')}.py", textwrap.dedent(text)))
    return found


def listing(entry: Entry) -> str:
    """The functions as blocks of code, one per file."""
    blocks: dict[str, list[str]] = {}
    for file, text in programs(entry):
        blocks.setdefault(file, []).append(text.rstrip())
    return "\n\n".join(
        f"From `{file}`:\n\n```py\n" + "\n\n".join(texts) + "\n```"
        for file, texts in blocks.items()
    )


def lines(entry: Entry) -> list[tuple[str, str]]:
    """The paper's line and our code, wherever a comment names one."""
    every = (line for _, text in programs(entry) for line in text.splitlines())
    return [(m["where"], m["code"].strip()) for m in map(NUMBERED.match, every) if m]


def symbols(entry: Entry) -> str:
    """The table of symbols at the head of the method's file."""
    text = inspect.getdoc(module_of(entry)) or ""
    _, _, rest = text.partition("\n\n")
    return rest.strip()
