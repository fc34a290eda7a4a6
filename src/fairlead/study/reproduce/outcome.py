"""The result of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A claim of the paper with our numbers, and whether they support it."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Outcome:
    """An experiment's table, claims, figure and numbers."""

    name: str
    title: str
    rows: list[dict[str, str]]
    claims: list[Claim]
    draw: Callable[[Path], Any]
    """Writes the figure."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """The data behind the table and the figure, ready for JSON."""
    notes: list[str] = field(default_factory=list)
    """What the paper leaves open, and how it was interpreted."""

    def to_markdown(self) -> str:
        """The table, the claims and the notes in Markdown."""
        lines = [f"# {self.title}", "", "| " + " | ".join(self.rows[0]) + " |"]
        lines += ["|" + "---|" * len(self.rows[0])]
        lines += ["| " + " | ".join(row.values()) + " |" for row in self.rows]
        lines += [
            "",
            *(f"- {'holds' if c.holds else 'does NOT hold'}: {c.text}" for c in self.claims),
        ]
        lines += [f"- note: {note}" for note in self.notes]
        return "\n".join(lines) + "\n"
