"""Tables for a terminal of any width, in which no number or name is broken."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from rich import box
from rich.table import Table

from fairlead.cli.common import out


def table(
    rows: Sequence[Mapping[str, str]],
    title: str | None = None,
    *,
    paths: str = "",
    width: int | None = None,
) -> Table:
    """Rows as a compact table. Lines break only between words, and in the column `paths` after slashes. Where
    even that is too wide, there is a block per row, with a line per column.

    >>> table([{"a": "x" * 9, "b": "y" * 9}], width=80).row_count
    1
    >>> table([{"a": "x" * 9, "b": "y" * 9}], width=15).row_count  # a block of two lines
    2
    """
    names = [name.replace("_", " ") for name in rows[0]]
    columns = [[row[name] for row in rows] for name in rows[0]]
    width = out.width if width is None else width
    room = width - 2 * len(names) - 1  # for the space between
    for word in (SPREAD, WORD):
        patterns = [PATH if name == paths else word for name in rows[0]]
        words = [
            [re.findall(p, text) for text in c] for p, c in zip(patterns, columns, strict=True)
        ]
        least = [
            max(_longest(chain(*c)), _longest(name.split()))
            for c, name in zip(words, names, strict=True)
        ]
        if sum(least) <= room:
            break
    else:
        return _blocks(names, columns, title, width)
    found = widths(least, [_longest(c) for c in columns], [len(name) for name in names], room)
    shown = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), collapse_padding=True)
    for name, wide in zip(names, found, strict=True):
        shown.add_column(name, width=wide, overflow="fold")
    for row in zip(*([lines(text, wide) for text in c] for c, wide in zip(words, found, strict=True)),
                   strict=True):  # fmt: skip
        shown.add_row(*row)
    return shown


WORD, SPREAD, PATH = r"\S+\s*", r"\S+(?: ± \S+)?\s*", r"[^\s/]*/\s*|[^\s/]+\s*"
"""What stays on one line, with the spaces after it."""


def lines(words: Sequence[str], width: int) -> str:
    """Words on lines of at most a width.

    >>> lines(["out/", "compare/", "FedAvg-0"], 12)
    'out/compare/\\nFedAvg-0'
    """
    found = [""]
    for word in words:
        if found[-1] and len(found[-1]) + len(word.rstrip()) > width:
            found.append("")
        found[-1] += word
    return "\n".join(line.rstrip() for line in found)


def widths(
    least: Sequence[int], cells: Sequence[int], names: Sequence[int], room: int
) -> list[int]:
    """The width of each column: first for its longest word, then for whole cells, last for whole headings, and
    the columns that lack least come first.

    >>> widths([3, 3], [9, 5], [3, 8], 12)
    [7, 5]
    """
    found, spare = list(least), room - sum(least)
    for wanted in (cells, names):
        for index in sorted(range(len(found)), key=lambda i: wanted[i] - found[i]):
            more = max(0, min(spare, wanted[index] - found[index]))
            found[index] += more
            spare -= more
    return found


def _blocks(
    names: Sequence[str], columns: Sequence[Sequence[str]], title: str | None, room: int
) -> Table:
    """A line per name and cell; the cells come first where there is little room."""
    sides = (names, list(chain(*columns)))
    least = [_longest(word for text in side for word in text.split()) for side in sides]
    name, cell = widths(least, [least[0], _longest(sides[1])], [_longest(names), 0], room - 7)
    shown = Table(title=title, box=box.SIMPLE, show_header=False)
    for wide in (name, cell):
        shown.add_column(width=wide, overflow="fold")
    for row in zip(*columns, strict=True):
        for index, (heading, text) in enumerate(zip(names, row, strict=True)):
            shown.add_row(heading, text, end_section=index == len(row) - 1)
    return shown


def _longest(texts: Iterable[str]) -> int:
    return max((len(text.rstrip()) for text in texts), default=1)
