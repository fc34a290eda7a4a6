"""What is written by hand about a method; everything else on its page is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def prose(text: str) -> str:
    """Text whose stars are stars in Markdown too; code stays as it is.

    >>> print(prose("x* of `a*b`"))
    x\\* of `a*b`
    """
    parts = text.split("`")
    return "`".join(part if k % 2 else part.replace("*", r"\*") for k, part in enumerate(parts))


@dataclass(frozen=True, eq=False)
class Picture:
    """Two methods on a problem in the plane: what goes wrong, and what the method does about it.

    problem: a name in `problems.PROBLEMS`     beside, ours: the methods, as expressions
    settings: of both runs     rounds: of the curve     drawn: rounds whose local steps are drawn
    """

    shows: str
    beside: str
    ours: str
    problem: str = "pair"
    settings: dict[str, Any] = field(default_factory=lambda: {"steps": 3})
    rounds: int = 40
    drawn: int = 3
    labels: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Cost:
    """Numbers per client and round, as formulas in d (parameters), p (parameters of the corrected part), K (local steps),
    b (samples per step) and n (samples of a client). up is None where a compressor decides."""

    up: str | None = "d"
    down: str = "d"
    kept: str = "0"
    gradients: str = "K*b"
    exchanges: int = 1
    note: str = ""


@dataclass(frozen=True, eq=False)
class Entry:
    """A method's page.

    source: the module in `fairlead.methods`     programs: what the page shows of its code, `Class.function`
    where: in the paper     call: with the step size of the example     theorems: names in `fl.theory`
    use, avoid: one sentence each per list item
    """

    name: str
    title: str
    where: str
    line: str
    idea: str
    picture: Picture
    use: tuple[str, ...]
    avoid: tuple[str, ...]
    call: str
    programs: tuple[str, ...]
    cost: Cost = field(default_factory=Cost)
    theorems: tuple[str, ...] = ()
    theory_note: str = ""
    model: str = "softmax"
    game: bool = False
    presets: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
