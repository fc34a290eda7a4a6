"""A console that shows control characters instead of obeying them: names in files may hold anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment

SHOWN = {code: "\ufffd" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"}


def plain(text: str) -> str:
    """The text without control characters.

    >>> plain("\x1b[31mred") == "\ufffd[31mred"
    True
    """
    return text.translate(SHOWN)


class Plain(Console):
    """Shows text without control characters; rich's own styles stay."""

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else Segment(plain(part.text), part.style)
