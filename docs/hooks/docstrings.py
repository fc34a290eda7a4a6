"""Docstrings as Markdown: doctests become blocks of code, and lines such as “lr: the step size” a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.M)
SETTING = re.compile(r"^((?:[A-Za-z_]\w*, )*[A-Za-z_]\w*): (?=\S)", re.M)


def as_markdown(text: str) -> str:
    """A docstring as Markdown."""
    parts, end = [], 0
    for found in EXAMPLE.finditer(text):
        parts += [_listed(text[end : found.start()]), f"```pycon\n{found.group()}\n```"]
        end = found.end()
    return "".join([*parts, _listed(text[end:])])


def _listed(text: str) -> str:
    """Prose with its settings as a list; further lines of one are indented."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text):
        head, *rest = paragraph.split("\n")
        if not any(SETTING.match(line) for line in (head, *rest)):
            paragraphs.append(paragraph)
            continue
        lines, inside = [], False
        for line in (head, *rest):
            if SETTING.match(line):
                lines += [""] * (not inside and bool(lines))
                lines.append(SETTING.sub(r"- **\1**: ", line))
                inside = True
            else:
                lines.append(f"    {line.strip()}" if inside and line.strip() else line)
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


class Docstrings(griffe.Extension):
    """Changes every docstring that mkdocstrings reads."""

    def on_object(self, *, obj: griffe.Object, **more: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
