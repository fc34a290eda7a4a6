"""The page of the diagnosis shows what is stored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import advice
from advice import FILES, averaged, stored
from advice_page import MARKS, PAGE, tables
from advice_pairs import DEVELOPED_ON, JUDGED_ON


def test_the_page_has_the_tables_of_the_stored_results() -> None:
    order = list(JUDGED_ON)
    lines = stored(FILES / "advice.jsonl")
    assert [line["pair"] for line in lines] == [n for n in order if n in {o["pair"] for o in lines}]
    shown = PAGE.read_text(encoding="utf-8").partition(MARKS[0])[2].partition(MARKS[1])[0]
    assert not lines or tables(lines).strip() in shown
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


def test_a_pair_that_was_cut_off_has_no_bits() -> None:
    cell = {"ratio": 1.2, "diverged": False}
    line = {
        "pair": "a", "grid": {"rounds": 10.0, "bits": 1e6}, "answers": [{"right": None, "clear": True}] * 9,
        "rounds": {"rule": cell},
    }  # fmt: skip
    shown = tables([line])
    assert "| a | 10 | 1.20 |" in shown
    assert "Mbit" not in shown


def test_a_metric_is_read_as_the_mean_of_five_rounds() -> None:
    found = averaged(np.array([9.0, 0.0, 0.0, 5.0, 0.0, 0.0, 5.0]))
    assert np.isnan(found[:5]).all()
    assert found[5:].tolist() == [1.0, 2.0]


def test_files_of_pairs_are_merged_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "FILES", tmp_path)
    (tmp_path / "advice-pairs").mkdir()
    names = list(JUDGED_ON)[:2]
    for name in reversed(names):
        advice.own_file(name).write_text(json.dumps({"pair": name}))
    file = tmp_path / "advice.jsonl"
    file.write_text(json.dumps({"pair": names[0], "old": True}) + "\n")
    assert advice.merged(file, JUDGED_ON) == [{"pair": name} for name in names]
