"""Figures of a report, in the style of all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.run import Report, best
from fairlead.figures.style import in_style, look, save

BARS = {"fairlead": 3, "SCAFFOLD": 6, "bare loop": 0, "pfl": 1, "Flower": 2, "FedLab": 4}
"""Who is drawn, from top to bottom, in which of the style's colours."""
NAMES = {"SCAFFOLD": "fairlead, SCAFFOLD"}
AXES = {
    "cohort": "clients per round", "population": "clients in all", "parameters": "parameters",
    "local steps": "local steps",
}  # fmt: skip


def bars(report: Report, path: str | Path) -> Any:
    """A panel per workload: milliseconds per round of everybody, and the floor."""
    from matplotlib.figure import Figure

    rows = report["workloads"]
    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    with in_style():
        figure = Figure(figsize=(3.4 * columns, 1.9 * lines), layout="constrained")
        for place, row in enumerate(rows, 1):
            axes = figure.add_subplot(lines, columns, place)
            _bar_panel(axes, row)
        save(figure, path)
    return figure


def _bar_panel(axes: Any, row: Report) -> None:
    found = {group: c["median"] for group in BARS if (c := best(row, group)) and c["median"]}
    names = [NAMES.get(group, group) for group in found]
    values = [seconds * 1e3 for seconds in found.values()]
    axes.barh(names, values, color=[look(BARS[group])["color"] for group in found], height=0.7)
    floor = row["floor"] * 1e3
    axes.axvline(floor, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, max([floor, *values]) * 1.15)
    for place, value in enumerate(values):
        axes.annotate(
            f"{value:,.0f}" if value >= 100 else f"{value:.3g}", (value, place),
            xytext=(2, 0), textcoords="offset points", va="center", fontsize=6,
        )  # fmt: skip
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_title(f"{row['name']} {row['title']}", fontsize=7)
    axes.set_xlabel("ms per round (dots: floor)")


def curves(report: Report, path: str | Path) -> Any:
    """Four panels: milliseconds per round against cohort, population, parameters and steps."""
    from matplotlib.figure import Figure

    points = report["scaling"]
    names = list(dict.fromkeys(p["curve"] for p in points))
    with in_style():
        figure = Figure(figsize=(6.8, 2.5 * -(-len(names) // 2)), layout="constrained")
        for place, name in enumerate(names, 1):
            axes = figure.add_subplot(-(-len(names) // 2), 2, place)
            own = [p for p in points if p["curve"] == name]
            for group, number in (("fairlead", 3), ("SCAFFOLD", 6), ("bare loop", 0)):
                drawn = [(p["value"], p[group] * 1e3) for p in own if p[group]]
                label = NAMES.get(group, group)
                axes.plot(*zip(*drawn, strict=True), label=label, marker=".", **look(number))
            floor = [(p["value"], p["floor"] * 1e3) for p in own]
            dots: dict[str, Any] = {"color": "black", "linewidth": 0.8, "linestyle": ":"}
            axes.plot(*zip(*floor, strict=True), label="floor", **dots)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel(AXES[name])
            axes.set_ylabel("ms per round")
            if place == 1:
                axes.legend()
        save(figure, path)
    return figure
