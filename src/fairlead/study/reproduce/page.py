"""The page of results, made from stored cases: never typed by hand."""

from __future__ import annotations

import re
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


def concluded(results: Path) -> dict[str, tuple[Recipe, Form, Outcome, int]]:
    """The conclusion of every stored experiment, the full form where there is one, and how many of its cases are
    missing."""
    found: dict[str, tuple[Recipe, Form, Outcome, int]] = {}
    for file in sorted(results.glob("*.jsonl")):
        made, form = stored_form(file)
        cases = stored(file)
        asked, done = wanted(made, form, cases)
        if not len(done):
            continue
        plain = "full" if not form.quick else "quick"
        key = made.name if form.name == plain else f"{made.name} {form.name}"
        if key in found and form.quick:
            continue
        found[key] = made, form, made.conclude(form, done), len(asked) - len(done)
    order = list(recipes())
    return dict(sorted(found.items(), key=lambda item: order.index(item[1][0].name)))


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
        mine = [(key, f) for key, f in found.items() if f[0].name == item.recipe]
        key, entry = mine[0] if mine else ("", None)
        why = f" ({item.why})" if item.why and item.recipe else item.why
        yet = "not run yet" if item.recipe in recipes() else "not written yet"
        state = f"{item.recipe}: {yet}{why}" if item.recipe else why
        if entry is None:
            lines.append(f"| {item.paper} | {item.item} | {state} | | |")
            continue
        link = f"[{item.recipe}](#{anchor(key)}){why}"
        lines.append(
            f"| {item.paper} | {item.item} | {link} | {stored_how(entry[1], entry[3])} | {verdicts(entry[2])} |"
        )
    for key, (made, form, outcome, missing) in found.items():
        lines += ["", f"## {key}", "", f"{made.paper}, {made.item}. {_first_line(made)}", ""]
        lines += [f"`{_command(made, form)}`, {stored_how(form, missing)}.", ""]
        lines += outcome.to_markdown("").split("\n")[2:]
        if outcome.draw is not None:
            picture = figures / f"{key.replace(' ', '-')}.png"
            outcome.draw(picture)
            written.append(picture)
            lines += [f"![{made.title}](results/{picture.name})"]
    page.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return [page, *written]


def stored_how(form: Form, missing: int) -> str:
    """Which form is stored, and how much of it is missing."""
    left = f", {missing} cases not run yet" if missing else ""
    return ("quick form" if form.quick else "full") + left


def _command(made: Recipe, form: Form) -> str:
    readings = "".join(f" --reading {k}={v}" for k, v in form.readings.items())
    return f"fairlead reproduce {made.name}{' --quick' if form.quick else ''}{readings}"


def _first_line(made: Recipe) -> str:
    return " ".join((made.__doc__ or "").split("\n\n")[0].split())


def anchor(key: str) -> str:
    """The address of a heading on a page."""
    return "".join(c for c in key.lower().replace(" ", "-") if c.isalnum() or c in "-_")
