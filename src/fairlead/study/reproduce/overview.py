"""The page that says what became of every algorithm, theorem, table and figure of the papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairlead.errors import FairleadError
from fairlead.study.reproduce.catalog import recipes
from fairlead.study.reproduce.contents import CITED, ENTRIES, STATUSES, Entry, items
from fairlead.study.reproduce.page import Concluded, anchor, concluded, of
from fairlead.study.reproduce.papers import ITEMS, Item

HEAD = """---
hide: [toc]
---

# The papers, item by item

<!-- made by `fairlead reproduce page` from src/fairlead/study/reproduce: change that, not this page -->

Every algorithm box, theorem, table and figure of the five papers: what it is called here, how it was read, what became of it,
which recipe repeats it (`fairlead reproduce NAME`) and with what verdict. Numbers and pictures are on the
page of [results](results.md), proofs and bounds on that of [theory](theory.md), misprints on that of [errata](errata.md).
"""


def papers_page(results: Path) -> str:
    """The page as text; an item of a paper for which there is no entry is an error."""
    found = concluded(results)
    lines = [HEAD, *_legend()]
    for paper, cited in CITED.items():
        table = ['<div class="evidence" markdown>', "", *_table(paper, found), "", "</div>"]
        lines += ["", f"## {paper}", "", f"{cited}.", "", *table]
    return "\n".join(lines) + "\n"


def _legend() -> list[str]:
    rows = [f"| {status} | {meaning} |" for status, meaning in STATUSES.items()]
    return ["| status | meaning |", "|---|---|", *rows]


def _table(paper: str, found: Sequence[Concluded]) -> list[str]:
    lines = [
        "| item | name here | reading | status | recipe | verdict |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    known = {item.item: item for item in ITEMS if item.paper == paper}
    more = [name for name in known if name not in items(paper)]
    for name in [*items(paper), *more]:
        entry, item = ENTRIES.get((paper, name)), known.get(name)
        if entry is None and item is None:
            raise FairleadError(
                f"{name} of {paper} has no entry: add one to ENTRIES in contents.py or to ITEMS in papers.py"
            )
        cells = _cells(entry, item, found)
        lines.append(f"| {name} | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def _cells(
    entry: Entry | None, item: Item | None, found: Sequence[Concluded]
) -> tuple[str, str, str, str, str]:
    """Name, reading, status, recipe and verdict."""
    made = recipes().get(item.recipe) if item else None
    mine = of(item.recipe, found) if item else []
    recipe = ", ".join(f"[{f.heading}](results.md#{anchor(f.heading)})" for f in mine)
    verdict = "; ".join(f"{f.form.name}: {f.verdicts}" if mine[1:] else f.verdicts for f in mine)
    if entry is not None:
        shown = f"`{entry.test}`"
        names = ", ".join(f"`{name}`" for name in entry.names)
        return names, entry.reading, entry.status, recipe, f"{verdict}; {shown}".lstrip("; ")
    assert item is not None
    if not item.recipe:
        return "", "", item.why, "", ""
    name = "" if made is None else made.title
    if not mine:
        yet = "not run yet" if made else "not written yet"
        return name, item.why, yet, item.recipe, ""
    return name, item.why, "run, " + " and ".join(f.how for f in mine), recipe, verdict
