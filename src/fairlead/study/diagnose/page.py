"""The diagnosis as one HTML file, in the report's style, with plots and without any script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fairlead.figures import inline
from fairlead.report.html import stylesheet
from fairlead.study.diagnose.ranges import short

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MORE = """
ol { margin: 0; padding-left: 1.5em; }
ol li + li { margin-top: 12px; }
li b { font-weight: 620; }
.unclear { color: var(--warn); }
.plots { display: flex; flex-wrap: wrap; gap: 18px 28px; }
.plots figure { flex: 1 1 320px; min-width: 0; max-width: 520px; }
.plots svg { width: 100%; height: auto; }
.plots div { font-size: 0.85rem; }
.plots div span { display: block; }
td:first-child { text-align: left; padding-left: 0; }
li .scroll { margin: 8px 0 0; padding: 0; }
"""


def page(found: Any, settings: str) -> str:
    """The page of a diagnosis. settings: what was written to advice.toml."""
    title = f"{found.task.name}: {found.best}"
    parts = [
        f"<header><h1>{escape(title)}</h1><p class='facts' id='facts'>{escape(_facts(found))}</p></header><main>",
        _section("Answers", f"<ol>{''.join(map(_answer, found.answers))}</ol>"),
        _section("The race", _plots(found)),
        _section("Everything that was raced, the best first", _table(found.lanes())),
        _section("Measured", _measured(found)) if found.constants else "",
        _section("What the diagnosis cost", _table(found.bill())),
        _section("Notes", "".join(f"<p>{escape(note)}</p>" for note in found.reasons))
        if found.reasons
        else "",
        _section(
            "advice.toml", f"<p>fairlead run --config advice.toml</p><pre>{escape(settings)}</pre>"
        ),
    ]
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{stylesheet()}{MORE}</style></head><body>{''.join(parts)}"
        "</main></body></html>\n"
    )


def _facts(found: Any) -> str:
    facts = found.facts
    goal = (
        ""
        if found.target is None
        else f", target {found.metric.metric} {found.metric.sign} {found.target:g}"
    )
    return (
        f"{facts.clients} clients, {facts.cohort:.3g} in a round, {facts.rounds} planned rounds of {facts.steps} local "
        f"steps{goal}; chosen to save {found.race.by}"
    )


def _section(head: str, body: str) -> str:
    return f"<section><h2>{escape(head)}</h2>{body}</section>"


def _answer(answer: Any) -> str:
    mark = "" if answer.clear else " class='unclear'"
    rows = _table(answer.rows) if answer.rows else ""
    return f"<li><b>{escape(answer.question)}</b><br><span{mark}>{escape(answer.words)}</span>{rows}</li>"


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    return f"<div class='scroll'>{inline.table(rows)}</div>"


def _measured(found: Any) -> str:
    rows = [
        {
            "at": one.where, "β, a client's largest curvature": short(one.beta), "L, of the mean": short(one.smooth),
            "mean‖∇fᵢ‖²/‖∇f‖²": short(one.different), "1/β": short(1 / one.beta) if one.beta > 0 else "-",
        }
        for one in found.constants
    ]  # fmt: skip
    return _table(rows)


def _plots(found: Any) -> str:
    race, best = found.race, found.best
    alive = [one for one in found.order if not race.is_lost(one)]
    shown = {}
    for one in alive:  # the best of every method
        if all(one.family != other.family for other in shown):
            shown[one] = race.runs[one, 0].history
    columns = [race.score] + ([found.metric.by] if found.metric.by != race.score else [])
    drawn = [
        _plot({str(one): (h["round"], h[name]) for one, h in shown.items()}, name, name == race.score and race.lower)
        for name in columns
    ]  # fmt: skip
    same = [one for one in alive if one.family == best.family]
    if len(same) > 1:
        own = {str(one).removeprefix(f"{one.family}, "): race.runs[one, 0].history for one in same}
        lines = {label: (h["round"], h[race.score]) for label, h in own.items()}
        drawn.append(_plot(lines, f"{race.score} of {best.family}", race.lower))
    return f"<div class='plots'>{''.join(drawn)}</div>"


def _plot(lines: Mapping[str, Any], name: str, log: bool) -> str:
    return f"<figure>{inline.curves(lines, name, log)}</figure>"
