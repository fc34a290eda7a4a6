"""Conclusions from a part of an experiment, as after `--only` or `--budget`."""

from __future__ import annotations

import random
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from fairlead.study.reproduce.case import Results
from fairlead.study.reproduce.page import stored_form
from fairlead.study.reproduce.runner import stored, wanted

FILES = sorted((Path(__file__).parents[2] / "results").glob("*.jsonl"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_any_part_of_the_cases_has_a_conclusion(file: Path, tmp_path: Path) -> None:
    recipe, form = stored_form(file)
    _, done = wanted(recipe, form, stored(file))
    rows, rng = list(done), random.Random(0)
    labels = sorted({(name, str(value)) for row in rows for name, value in row.labels.items()})
    parts = [[row for row in rows if str(row.labels.get(name)) == value] for name, value in labels]
    parts += [rng.sample(rows, min(len(rows), n)) for n in (0, 1, 2, 3, 5, len(rows) // 2)]
    drawn = 0
    for part in parts:
        found = recipe.conclude(form, Results(part))
        assert all(claim.text for claim in found.claims)
        if found.draw is not None and drawn < 2:
            found.draw(tmp_path / "part.png")
            drawn += 1
    plt.close("all")
