"""docs/papers.md has a row for every item of the papers, is up to date, and names what exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fairlead as fl
from fairlead.study.reproduce import contents, overview
from fairlead.study.reproduce.contents import CITED, CONTENTS, ENTRIES, STATUSES, items
from fairlead.study.reproduce.papers import ITEMS

ROOT = Path(__file__).parents[2]


def test_the_stored_page_is_what_the_command_makes() -> None:
    made = overview.papers_page(ROOT / "results")
    assert (ROOT / "docs" / "papers.md").read_text() == made, "run fairlead reproduce page"
    for paper in CONTENTS:
        for item in items(paper):
            assert f"\n| {item} | " in made


def test_an_item_without_an_entry_fails_the_build(monkeypatch) -> None:
    monkeypatch.setattr(overview, "concluded", lambda results: {})
    monkeypatch.delitem(contents.ENTRIES, ("FedGLOMO", "Theorem 2"))
    with pytest.raises(fl.FairleadError, match="Theorem 2 of FedGLOMO has no entry"):
        overview.papers_page(Path())


def test_entries_belong_to_items_and_have_a_known_status() -> None:
    assert set(CITED) == set(CONTENTS) == {item.paper for item in ITEMS} - {"new"}
    for (paper, item), entry in ENTRIES.items():
        assert item in items(paper)
        assert entry.status in STATUSES
        for name in entry.names:
            found: Any = fl
            for part in name.split(".")[1:]:
                found = getattr(found, part)
            assert callable(found)
