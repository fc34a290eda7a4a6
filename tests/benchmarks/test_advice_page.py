"""The page of the diagnosis shows what is stored."""

from __future__ import annotations

from advice import FILES, stored
from advice_page import MARKS, PAGE, tables
from advice_pairs import DEVELOPED_ON, JUDGED_ON


def test_the_page_has_the_tables_of_the_stored_results() -> None:
    order = list(JUDGED_ON)
    lines = sorted(stored(FILES / "advice.jsonl"), key=lambda line: order.index(line["pair"]))
    shown = PAGE.read_text(encoding="utf-8").partition(MARKS[0])[2].partition(MARKS[1])[0]
    assert tables(lines).strip() in shown
    assert f"{len(lines)} of the {len(order)} pairs" in shown


def test_at_least_twelve_pairs_are_judged_and_none_was_developed_on() -> None:
    assert len(JUDGED_ON) >= 12
    assert not JUDGED_ON.keys() & DEVELOPED_ON.keys()


def test_what_was_not_reached_is_said_and_counts_as_infinite() -> None:
    cell = {"ratio": None, "diverged": False}
    line = {
        "pair": "a", "grid": {"rounds": 10.0, "bits": 1e6}, "answers": [{"right": None, "clear": True}] * 9,
        "rounds": {"rule": cell}, "bits": {"rule": {"ratio": 1.5, "diverged": False}},
    }  # fmt: skip
    shown = tables([line])
    assert "| a | 10 | not reached |" in shown
    assert "| a | 1 Mbit | 1.50 |" in shown
