"""Blocks of code in pages, run as a reader would paste them."""

from __future__ import annotations

import code
import re
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parent.parent


def blocks(page: Path, *kinds: str) -> list[tuple[str, str]]:
    """The kind and the text of every block of these kinds, in order."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.S | re.M)
    return [(kind, body) for kind, body in found if kind in kinds]


class Prompt(code.InteractiveConsole):
    """Python's prompt, which takes a line at a time; an error ends the test."""

    def __init__(self) -> None:
        super().__init__({"__name__": "__main__"})

    def paste(self, text: str) -> None:
        """Type all lines; a block of code must be complete when they end."""
        more = False
        for line in text.splitlines():
            more = self.push(line)
        assert not more, f"the prompt waits for more after:\n{text}"

    def showtraceback(self) -> NoReturn:
        raise

    def showsyntaxerror(self, *given: Any, **named: Any) -> NoReturn:
        raise
