"""Pages that say how something is tested name tests and recipes that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairlead.study.reproduce import recipes

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEST = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")
RECIPE = re.compile(r"fairlead reproduce ([\w-]+)")
WORDS = {"list", "all", "page"}


def missing(text: str) -> list[str]:
    """The tests and recipes in a text that do not exist."""
    found = []
    for file, name in TEST.findall(text):
        path = ROOT / file
        if not path.exists() or (name and f"def {name}(" not in path.read_text()):
            found.append(f"{file}::{name}")
    known = {*recipes(), *WORDS}
    return found + [name for name in RECIPE.findall(text) if name not in known and name != "NAME"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path) -> None:
    assert missing(page.read_text()) == []


def test_a_name_that_does_not_exist_is_found() -> None:
    here = "tests/docs/test_evidence.py"
    text = f"{here}, {here}::test_nothing, tests/none.py, `fairlead reproduce nothing --quick`"
    assert missing(text) == [f"{here}::test_nothing", "tests/none.py::", "nothing"]


@pytest.mark.parametrize("name", ["errata", "pitfalls"])
def test_every_row_has_evidence(name: str) -> None:
    rows = re.findall(r"^\|(?!---).*\|$", (ROOT / "docs" / f"{name}.md").read_text(), re.M)
    told = [row for row in rows if not row.endswith(("| evidence |", "| test |"))]
    assert len(told) > 15
    for row in told:
        last = row.rstrip("|").rpartition("|")[2]
        assert TEST.search(last) or RECIPE.search(last), row
