"""What fairlead reproduce does: the papers' experiments."""

from __future__ import annotations

from pathlib import Path

from fairlead.cli.common import out
from fairlead.cli.names import same_name
from fairlead.cli.show import say_written
from fairlead.cli.tables import table
from fairlead.describe import counted
from fairlead.errors import FairleadError
from fairlead.figures.style import check_figures, figure_path
from fairlead.study.reproduce import Form, Recipe, carry_out, recipe, recipes
from fairlead.study.reproduce.overview import papers_page
from fairlead.study.reproduce.page import concluded, of, write_page
from fairlead.study.reproduce.papers import ITEMS

QUICK = (
    "scaffold-fig3", "scaffold-table3", "saddle-fig2", "drift-toy", "drift-prox", "glomo-fig1",
    "pvr-fig2", "pvr-fig4",
)  # fmt: skip
"""What `all --quick` runs: one or two experiments per paper."""


def reproduce_command(
    names: list[str] | None,
    quick: bool,
    seeds: int | None,
    device: str,
    budget: float | None,
    only: str | None,
    reading: list[str] | None,
    folder: Path,
    results: Path | None,
    figure: str,
    jobs: int,
) -> None:
    """Rerun the papers' experiments, list them, or write the page of results."""
    chosen = dict(part.split("=", 1) for part in reading or () if "=" in part)
    if len(chosen) != len(reading or ()):
        raise FairleadError("a reading is given as --reading name=value")
    if not names or names == ["list"]:
        _list(results or Path("results"))
        return
    if names == ["page"]:
        kept = results or Path("results")
        files = write_page(kept, Path("docs/results.md"))
        overview = Path("docs/papers.md")
        overview.write_text(papers_page(kept), encoding="utf-8")
        say_written(f"{files[0]}, {counted(len(files) - 1, 'figure')} and {overview}")
        return
    check_figures(figure)  # fail before the work
    wanted = (QUICK if quick else tuple(recipes())) if names == ["all"] else tuple(names)
    form = Form(quick, seeds, device, chosen)
    made = [recipe(same_name(name, recipes())) for name in wanted]
    for one in made:
        one.check(form)
    for one in made:
        _run(one, form, folder, results, budget, only, figure, jobs)


def _run(
    one: Recipe,
    form: Form,
    folder: Path,
    results: Path | None,
    budget: float | None,
    only: str | None,
    figure: str,
    jobs: int,
) -> None:
    place = folder / one.name / form.name
    file = None if results is None else results / f"{one.name}.{form.name}.jsonl"
    done = carry_out(one, form, place, budget, only, also=file, jobs=jobs)
    if len(done.results):
        outcome = one.conclude(form, done.results)
        out.print(table(outcome.rows, one.title))
        for claim in outcome.claims:
            out.print(str(claim), highlight=False, markup=False)
        for note in outcome.notes:
            out.print(f"note: {note}", highlight=False, markup=False)
        (place / "table.md").write_text(outcome.to_markdown(one.title), encoding="utf-8")
        if outcome.draw is not None:
            outcome.draw(figure_path(place, "figure", figure))
        say_written(str(place))
    if done.missing:
        out.print(
            f"left of {one.name}: {counted(done.missing, 'case')}; give the command again",
            highlight=False,
        )


def _list(results: Path) -> None:
    """Every table and figure of the papers, what reproduces it, and how long that takes."""
    known = concluded(results) if results.is_dir() else []
    rows = []
    for item in ITEMS:
        made, mine = recipes().get(item.recipe), of(item.recipe, known)
        quick, full = (
            ("" if m is None else f"{m:g} min" for m in made.minutes) if made else ("", "")
        )
        state, why = "not run yet" if made else "", item.why
        if mine:
            state = "; ".join(f"{f.how}: {f.verdicts}" for f in mine)
        rows.append({
            "paper": item.paper, "item": item.item, "experiment": item.recipe, "quick": quick, "full": full,
            "stored": f"{state} ({why})" if state and why else state or why or "not written yet",
        })  # fmt: skip
    out.print(table(rows, "experiments"))
