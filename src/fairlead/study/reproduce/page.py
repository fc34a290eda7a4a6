"""The page of results, made from stored cases: never typed by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.errors import FairleadError
from fairlead.study.reproduce.case import Form
from fairlead.study.reproduce.catalog import recipe, recipes
from fairlead.study.reproduce.outcome import Outcome
from fairlead.study.reproduce.papers import ITEMS
from fairlead.study.reproduce.recipe import Recipe
from fairlead.study.reproduce.runner import stored, wanted

HEAD = """# Results

What came out of every table and figure of the five papers, good or bad. This page is made by
`fairlead reproduce page` from the finished cases stored in `results/`; `fairlead reproduce NAME` runs an experiment again.
A claim *holds*, holds *in part*, or *does not hold*; it is *open* where the numbers decide nothing, for example
because the best step size lies at the edge of its grid.
"""


def stored_form(file: Path) -> tuple[Recipe, Form]:
    """The recipe and form of a stored file, from its name: NAME.FORM.jsonl.

    >>> stored_form(Path("scaffold-fig3.quick.jsonl"))[1].quick
    True
    """
    name, _, kind = file.name.removesuffix(".jsonl").partition(".")
    first, *chosen = re.split(r"-(?=\w+=)", kind)
    readings = dict(part.split("=", 1) for part in chosen if "=" in part)
    if first not in ("quick", "full"):
        raise FairleadError(f"{file} is not named NAME.quick.jsonl or NAME.full.jsonl: rename it")
    return recipe(name), Form(quick=first == "quick", readings=readings)


@dataclass(frozen=True)
class Concluded:
    """A stored form of an experiment, what it came to, and how many of its cases are missing."""

    heading: str
    recipe: Recipe
    form: Form
    outcome: Outcome
    missing: int

    @property
    def how(self) -> str:
        """Which form is stored, and how much of it is missing."""
        left = f", {self.missing} cases not run yet" if self.missing else ""
        return ("quick form" if self.form.quick else "full") + left

    @property
    def verdicts(self) -> str:
        """How many claims have which verdict."""
        return verdicts(self.outcome)


def concluded(results: Path) -> list[Concluded]:
    """The conclusions of what is stored, in the order of the recipes. A quick form is left out where the full one is
    complete."""
    found: list[Concluded] = []
    for file in sorted(results.glob("*.jsonl")):
        made, form = stored_form(file)
        cases = stored(file)
        asked, done = wanted(made, form, cases)
        same = [f for f in found if f.recipe.name == made.name]
        full = next((f for f in same if f.form == replace(form, quick=False)), None)
        if not len(done) or (full and not full.missing):
            continue
        heading = made.name if not full and not form.readings else f"{made.name} {form.name}"
        outcome = made.conclude(form, done)
        found.append(Concluded(heading, made, form, outcome, len(asked) - len(done)))
    order = list(recipes())
    return sorted(found, key=lambda f: order.index(f.recipe.name))


def of(name: str, found: Sequence[Concluded]) -> list[Concluded]:
    """The conclusions that stand for an experiment, without those by other readings."""
    return [f for f in found if f.recipe.name == name and not f.form.readings]


def verdicts(outcome: Outcome) -> str:
    """How many claims have which verdict.

    >>> from fairlead.study.reproduce import Claim
    >>> verdicts(Outcome([], [Claim("a", "holds"), Claim("b", "open"), Claim("c", "holds")]))
    '2 hold, 1 open'
    >>> verdicts(Outcome([], [Claim("a", "holds")] * 11 + [Claim("b", "does not hold")]))
    '11 hold, 1 does not hold'
    """
    words = {"holds": "hold", "in part": "in part", "does not hold": "do not hold", "open": "open"}
    counts = {word: sum(c.verdict == kind for c in outcome.claims) for kind, word in words.items()}
    one = {"do not hold": "does not hold", "hold": "holds"}
    shown = [
        f"{count} {one.get(word, word) if count == 1 else word}"
        for word, count in counts.items()
        if count
    ]
    return ", ".join(shown) or "no claims"


def write_page(results: Path, page: Path) -> list[Path]:
    """Write the page and its figures; return the files."""
    found = concluded(results)
    if not found:
        raise FairleadError(
            f"{results} holds no results: run fairlead reproduce NAME --results {results} first"
        )
    figures = page.parent / "results"
    figures.mkdir(parents=True, exist_ok=True)
    lines, written = (
        [HEAD, "| paper | item | experiment | form | claims |", "|---|---|---|---|---|"],
        [],
    )
    for item in ITEMS:
        mine = of(item.recipe, found)
        why = f" ({item.why})" if item.why and item.recipe else item.why
        yet = "not run yet" if item.recipe in recipes() else "not written yet"
        if not mine:
            state = f"{item.recipe}: {yet}{why}" if item.recipe else why
            lines.append(f"| {item.paper} | {item.item} | {state} | | |")
        for one in mine:
            link = f"[{one.heading}](#{anchor(one.heading)}){why}"
            lines.append(f"| {item.paper} | {item.item} | {link} | {one.how} | {one.verdicts} |")
    for one in found:
        made, outcome = one.recipe, one.outcome
        lines += ["", f"## {one.heading}", "", f"{made.paper}, {made.item}. {_first_line(made)}"]
        lines += ["", f"`{_command(made, one.form)}`, {one.how}.", ""]
        lines += outcome.to_markdown("").split("\n")[2:]
        if outcome.draw is not None:
            picture = figures / f"{one.heading.replace(' ', '-')}.png"
            outcome.draw(picture)
            written.append(picture)
            lines += [f"![{made.title}](results/{picture.name})"]
    page.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return [page, *written]


def _command(made: Recipe, form: Form) -> str:
    readings = "".join(f" --reading {k}={v}" for k, v in form.readings.items())
    return f"fairlead reproduce {made.name}{' --quick' if form.quick else ''}{readings}"


def _first_line(made: Recipe) -> str:
    return " ".join((made.__doc__ or "").split("\n\n")[0].split())


def anchor(key: str) -> str:
    """The address of a heading on a page."""
    return "".join(c for c in key.lower().replace(" ", "-") if c.isalnum() or c in "-_")
