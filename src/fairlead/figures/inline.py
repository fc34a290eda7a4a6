"""Small tables and curves for notebooks: HTML and SVG without any script or other file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TypeAlias

from fairlead.figures.places import places

INK = ("#808080", "#d55e00", "#c98f00", "#2477b8", "#cc79a7", "#009e73", "#56b4e9", "#7a5ac8")
"""Colours that can be read on light and dark pages."""
WIDTH, HEIGHT = 420, 180
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 20, 30

Line: TypeAlias = tuple[Iterable[float], Iterable[float]]


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows as an HTML table.

    >>> table([{"method": "a<b", "rounds": "3"}])
    '<table><thead><tr><th>method</th><th>rounds</th></tr></thead><tbody><tr><td>a&lt;b</td><td>3</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in rows[0])
    cells = ("".join(f"<td>{escape(value)}</td>" for value in row.values()) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def curves(lines: Mapping[str, Line], name: str, log: bool = False) -> str:
    """Lines as an SVG with their names below; a logarithmic scale only if all values are positive. Empty if there
    is nothing to draw."""
    points = {
        label: [(x, y) for x, y in zip(*line, strict=True) if math.isfinite(x) and math.isfinite(y)]
        for label, line in lines.items()
    }
    everything = [point for line in points.values() for point in line]
    if not everything:
        return ""
    log = log and all(y > 0 for _, y in everything)
    (left, right), (low, high) = (
        _range([point[k] for point in everything], log and k == 1) for k in (0, 1)
    )

    def at(x: float, y: float) -> str:
        value = math.log10(y) if log else y
        across = LEFT + (WIDTH - LEFT - RIGHT) * (x - left) / (right - left)
        return f"{across:.1f},{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low):.1f}"

    drawn, legend = [], []
    for (label, line), place in zip(points.items(), places(list(points)), strict=True):
        colour, dash = INK[place % len(INK)], ("", "6 3", "2 3")[place // len(INK) % 3]
        drawn.append(
            f'<polyline points="{" ".join(at(*point) for point in line)}" fill="none" stroke="{colour}" '
            f'stroke-width="1.6" stroke-dasharray="{dash}"/>'
        )
        legend.append(f'<span style="color:{colour}">— {escape(label)}</span>')
    frame = (
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="currentColor" '
        'stroke-opacity="0.4"/>'
    )
    words = [
        _word(2, 12, name.replace("_", " ")), _word(LEFT - 5, TOP + 8, _end(high, log), "end"),
        _word(LEFT - 5, HEIGHT - BOTTOM, _end(low, log), "end"),
        _word(LEFT, HEIGHT - 14, f"{left:g}"), _word(WIDTH - RIGHT, HEIGHT - 14, f"{right:g} rounds", "end"),
    ]  # fmt: skip
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(name)} against rounds" font-family="sans-serif" font-size="11">'
        f"{frame}{''.join(drawn)}{''.join(words)}</svg><div>{' '.join(legend)}</div>"
    )


def block(sentence: str, *parts: str) -> str:
    """A sentence and what follows it."""
    return f"<div><p>{escape(sentence)}</p>{''.join(parts)}</div>"


def _range(values: Sequence[float], log: bool) -> tuple[float, float]:
    ends = min(values), max(values)
    low, high = (math.log10(end) for end in ends) if log else ends
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _end(value: float, log: bool) -> str:
    return f"{10**value if log else value:.3g}"


def _word(x: float, y: float, words: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor">{escape(words)}</text>'
    )
