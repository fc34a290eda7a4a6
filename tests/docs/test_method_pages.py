"""The pages of methods: stored ones are what the code makes, and costs are what runs count."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from docs_blocks import ROOT, Prompt, blocks

import fairlead as fl
from fairlead.methods import PRESETS
from handbook import cost, source, theorems
from handbook.entries import ENTRIES
from handbook.entry import Cost, prose
from handbook.page import FOLDER, INDEX, command, example, indexed, page
from handbook.pictures import draw, shrunk, walks

MAKE = "run make pages"


def stored(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def test_every_method_and_preset_has_a_page() -> None:
    assert set(ENTRIES) == set(fl.METHODS)
    assert {p for e in ENTRIES.values() for p in e.presets} == set(PRESETS)
    assert {path.stem for path in FOLDER.glob("*.md")} == set(ENTRIES)
    assert {path.stem for path in (FOLDER / "pictures").iterdir()} == set(ENTRIES)
    for entry in ENTRIES.values():
        assert type(theorems.made(entry.call)) is fl.METHODS[entry.name]
        for name, (base, _) in PRESETS.items():
            assert (name in entry.presets) == (base == entry.name)


@pytest.mark.parametrize("name", ENTRIES)
def test_code_and_costs_of_stored_pages_are_up_to_date(name: str) -> None:
    entry, text = ENTRIES[name], stored(name)
    for part in (
        source.listing(entry),
        example(entry),
        command(entry),
        prose(entry.idea),
        source.symbols(entry),
    ):
        assert part in text, MAKE
    for what, formula, value in cost.checked(entry):
        assert f"| {what} | {formula} | {value} |" in text, MAKE
    for sentence in (*entry.use, *entry.avoid):
        assert f"- {prose(sentence)}\n" in text, MAKE


def test_the_index_is_up_to_date() -> None:
    text = INDEX.read_text(encoding="utf-8")
    assert indexed(text) == text, MAKE


def test_a_wrong_cost_is_an_error() -> None:
    entry = replace(ENTRIES["scaffold"], cost=Cost("d", "2*d", "d"))
    with pytest.raises(ValueError, match=r"sent up is d = 20800, but 41600\.0 was counted"):
        cost.checked(entry)


def test_lines_of_the_paper_are_those_in_the_source() -> None:
    rows = dict(source.lines(ENTRIES["scaffold"]))
    assert rows["line 12 (ii)"] == "c_new = c_i - c + (x - y) / client.moved"
    assert rows["line 10"] == "y = step.at(y - step.lr * d)"


def test_experiments_that_pages_link_to_are_on_the_page_of_results() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for entry in ENTRIES.values():
        for name in entry.results:
            assert f"\n## {name}\n" in text, (entry.name, name)


def test_a_walk_is_the_run() -> None:
    """The picture of SCAFFOLD: the mean of where the clients end is where the server goes, and it ends at x*."""
    _, before, ours = walks(ENTRIES["scaffold"])
    for one in (before, ours):
        for k, ends in enumerate(one.clients):
            mean = sum(way[-1] for way in ends) / 2
            assert abs(mean - one.server[k + 1]).max() < 1e-12
    assert before.error[-1] > 0.1
    assert ours.error[-1] < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_stored_pages_are_what_the_code_makes(name: str, tmp_path: Path) -> None:
    entry = ENTRIES[name]
    assert page(entry) == stored(name), MAKE
    import matplotlib

    file = FOLDER / "pictures" / f"{name}.svg"
    old = file.read_text(encoding="utf-8")
    assert old == shrunk(old)
    if f"Matplotlib v{matplotlib.__version__}," in old:
        draw(entry, tmp_path / "new.svg")
        assert _numbers((tmp_path / "new.svg").read_text(encoding="utf-8")) == pytest.approx(
            _numbers(old), abs=0.2
        ), MAKE


def _numbers(svg: str) -> list[float]:
    return [float(value) for value in re.findall(r"-?\d+\.\d+", svg)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_examples_of_pages_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    ((_, text),) = blocks(FOLDER / f"{name}.md", "python")
    Prompt().paste(text)
    value = float(capsys.readouterr().out.split()[0])
    assert value < 0.5 if ENTRIES[name].game else value > 0.6, json.dumps(value)
