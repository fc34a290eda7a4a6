"""The result of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

Verdict: TypeAlias = Literal["holds", "in part", "does not hold", "open"]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, our numbers, and whether they support it.

    change: what might change the verdict. "open" is a claim that the numbers cannot decide.
    """

    text: str
    verdict: Verdict
    evidence: str = ""
    change: str = ""

    @property
    def holds(self) -> bool:
        """Whether it holds without restriction."""
        return self.verdict == "holds"

    def __str__(self) -> str:
        change = f" What might change it: {self.change}." if self.change else ""
        return f"{self.verdict}: {self.text}: {self.evidence}.{change}"


def judged(
    text: str, good: Sequence[bool], evidence: str, change: str = "", void: str = ""
) -> Claim:
    """A claim that holds if all comparisons do, in part if most do. void: why they decide nothing.

    >>> judged("b is larger", [True, True, False], "3 cases").verdict
    'in part'
    """
    if void or not good:
        return Claim(text, "open", evidence, void or "no case has run")
    share = sum(good) / len(good)
    verdict: Verdict = "holds" if share == 1 else "in part" if share > 0.5 else "does not hold"
    counted = f"{evidence} ({sum(good)} of {len(good)} comparisons)" if len(good) > 1 else evidence
    return Claim(text, verdict, counted, change)


@dataclass(frozen=True)
class Outcome:
    """An experiment's table, claims, figure and numbers."""

    rows: list[dict[str, str]]
    claims: list[Claim]
    draw: Callable[[Path], Any] | None = None
    """Writes the figure."""
    notes: list[str] = field(default_factory=list)
    """What the paper leaves open, and how it was interpreted."""

    def to_markdown(self, title: str) -> str:
        """The table, the claims and the notes."""
        head = list(dict.fromkeys(key for row in self.rows for key in row))
        lines = [f"# {title}", ""]
        if self.rows:
            lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
            lines += [
                "| " + " | ".join(row.get(key, "") for key in head) + " |" for row in self.rows
            ]
        lines += ["", *(f"- **{c.verdict}** {str(c)[len(c.verdict) + 2 :]}" for c in self.claims)]
        return "\n".join(lines + [f"- note: {note}" for note in self.notes]) + "\n"
