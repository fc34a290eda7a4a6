"""The picture of a method: what goes wrong without it, what it does, and the error of both over rounds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fairlead as fl
from fairlead.figures.style import in_style, save
from handbook.entry import Entry, Picture
from handbook.problems import PROBLEMS, Array, Plane

COLORS = ("#d55e00", "#0060a8")
LIGHT = "#d8d8d8"
EXACT = 1e-8
"""A distance that is called zero."""


class Points(fl.measure.Measure):
    """Notes every point that a client marks with `step.at(y)`; nothing is recorded in the history."""

    name = "points"

    def __init__(self) -> None:
        self.seen: list[Array] = []

    def point(self, y: torch.Tensor, x: torch.Tensor, active: Any) -> dict[str, torch.Tensor]:
        if bool(torch.as_tensor(active).all()):
            self.seen.append(y.detach().reshape(-1)[:2].numpy().copy())
        return {}

    def value(self, total: Any) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class Walk:
    """Where the server and the clients were, in the first two coordinates, and the error and bits over rounds."""

    label: str
    server: Array
    clients: list[list[Array]]
    error: Array
    bits: Array


def made(expression: str) -> Any:
    """The method that an entry names."""
    return eval(expression, {"fl": fl, "torch": torch})


def title_of(method: Any) -> str:
    """What a method's page calls it."""
    from handbook.entries import ENTRIES

    return next(e.title for e in ENTRIES.values() if fl.METHODS[e.name] is type(method))


def walk(plane: Plane, expression: str, picture: Picture, label: str = "") -> Walk:
    """One run, followed point by point."""
    method, points = made(expression), Points()
    server, clients = [plane.task.start()[0][:2].numpy().copy()], []
    counts = picture.settings["steps"]
    counts = counts if isinstance(counts, list) else [counts, counts]

    def note(view: Any) -> None:
        ends = np.cumsum([0, *counts])
        here = np.array(points.seen)
        whole = len(here) == ends[-1]
        clients.append(
            [np.vstack([server[-1], here[a:b]]) for a, b in pairwise(ends)] if whole else []
        )
        points.seen.clear()
        server.append(view.x[:2].numpy().copy())

    run = fl.train(
        plane.task, method, rounds=picture.rounds, engine="loop", measures=[points], callbacks=[note],
        progress=False, **picture.settings,
    )  # fmt: skip
    return Walk(
        label or title_of(method),
        np.array(server),
        clients,
        run.history["distance"],
        run.history["bits_up"],
    )


@cache
def walks(entry: Entry) -> tuple[Plane, Walk, Walk]:
    """Both runs of a picture."""
    picture = entry.picture
    plane = PROBLEMS[picture.problem]()
    first, second = picture.labels
    return (
        plane,
        walk(plane, picture.beside, picture, first),
        walk(plane, picture.ours, picture, second or entry.title),
    )


def away(value: float) -> str:
    """A distance in words that do not depend on rounding.

    >>> away(0.7312), away(3e-12), away(float("nan"))
    ('0.73', 'below 1e-8', 'beyond all bounds')
    """
    if not np.isfinite(value) or value > 1e6:
        return "beyond all bounds"
    return "below 1e-8" if value < EXACT else f"{value:.2g}"


def caption(entry: Entry) -> str:
    """What the picture shows, with numbers."""
    _, before, ours = walks(entry)
    what = "z − z*" if entry.picture.problem in ("game", "bilinear") else "x − x*"
    first, second = (away(float(walked.error[-10:].mean())) for walked in (before, ours))
    return (
        f"{entry.picture.shows} In the last ten of {entry.picture.rounds} rounds ‖{what}‖ is {first} for {before.label} and "
        f"{second} for {ours.label}, on average."
    )  # fmt: skip


def draw(entry: Entry, path: Path) -> None:
    """The picture as a file."""
    from matplotlib.figure import Figure

    plane, before, ours = walks(entry)
    with in_style(axes_grid=False):
        figure = Figure(figsize=(7.6, 2.8), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        seen = [w.server[: entry.picture.drawn + 1] for w in (before, ours)]
        seen += [c for w in (before, ours) for r in w.clients[: entry.picture.drawn] for c in r]
        everything = np.vstack([*seen, plane.own, plane.optimum])
        low, high = everything.min(0) - 0.4, everything.max(0) + 0.4
        for panel, one in ((left, before), (middle, ours)):
            _plane(panel, plane, one, entry.picture.drawn, low, high)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=4)
        _curve(right, (before, ours), entry.picture.problem == "wide")
        save(figure, path)
    path.write_text(shrunk(path.read_text(encoding="utf-8")), encoding="utf-8")


def shrunk(svg: str) -> str:
    r"""The same picture with coordinates to a tenth of a point, and without line breaks in its paths.

    >>> shrunk('<path d="M 1.234567 2 \nL 3 4.987654 \n" style="stroke-width: 0.6"/>')
    '<path d="M1.2 2L3 5.0" style="stroke-width: 0.6"/>'
    """
    text = re.sub(r"-?\d+\.\d{2,}", lambda found: f"{float(found[0]):.1f}", svg)
    text = re.sub(r'(?<= d=")[^"]*', lambda path: _tight(path[0]), text)
    return re.sub(r"\n\s*", "\n", text)


def _tight(path: str) -> str:
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", path).strip()


def _plane(panel: Any, plane: Plane, one: Walk, drawn: int, low: Array, high: Array) -> None:
    """The paths of the first rounds."""
    panel.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xticks=[], yticks=[])
    panel.set_title(one.label)
    panel.spines[:].set_visible(False)
    panel.set_aspect("equal", adjustable="box")
    (_field if plane.game else _ellipses)(panel, plane, low, high)
    for k, round_ in enumerate(one.clients[:drawn]):
        for i, way in enumerate(round_):
            label = f"client {i + 1}" if k == 0 else None
            panel.plot(*way.T, "o-", color=COLORS[i], markersize=2, linewidth=0.9, label=label)
    panel.plot(
        *one.server[: drawn + 1].T,
        "s--",
        color="black",
        markersize=2.6,
        linewidth=0.9,
        label="server",
    )
    for i, ends in enumerate(() if plane.ways is None else plane.ways):
        panel.plot(*ends.T, ":", color=COLORS[i], linewidth=0.9)
    for i, own in enumerate(plane.own):
        panel.plot(*own, "*", color=COLORS[i], markersize=8)
    panel.plot(*plane.optimum, "*", color="#009e73", markersize=10, label="z*" if plane.game else "x*")  # fmt: skip


def _ellipses(panel: Any, plane: Plane, low: Array, high: Array) -> None:
    """Contours of the mean quadratic."""
    from matplotlib.patches import Ellipse

    values, vectors = np.linalg.eigh(plane.mean)
    angle = float(np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0])))
    reach = float(np.sqrt(values.max()) * np.linalg.norm(high - low))
    for level in np.geomspace(reach / 24, reach, 7):
        width, height = 2 * level / np.sqrt(values)
        panel.add_patch(Ellipse(tuple(plane.optimum), width, height, angle=angle, fill=False, color=LIGHT, linewidth=0.6))  # fmt: skip


def _field(panel: Any, plane: Plane, low: Array, high: Array) -> None:
    """Where the mean mapping of a game leads."""
    x, y = np.meshgrid(*(np.linspace(low[i] + 0.3, high[i] - 0.3, 7) for i in (0, 1)))
    way = -np.einsum("ij,xyj->xyi", plane.mean, np.stack([x, y], -1) - plane.optimum)
    way /= np.linalg.norm(way, axis=-1, keepdims=True) + 1e-9
    panel.quiver(x, y, way[..., 0], way[..., 1], color=LIGHT, width=0.006, scale=18, pivot="mid")


def _curve(panel: Any, both: tuple[Walk, Walk], over_bits: bool) -> None:
    """The error over rounds, or over what clients sent."""
    for one, color, style in zip(both, ("#666666", "#009e73"), ("--", "-"), strict=True):
        x = one.bits / 8e3 if over_bits else np.arange(len(one.error))
        error = np.clip(one.error, EXACT, 1e3)
        panel.plot(x, error, color=color, linestyle=style, label=one.label)
    panel.set(yscale="log", xlabel="kilobytes sent by clients" if over_bits else "rounds")
    panel.set_title("distance to the optimum")
    panel.minorticks_off()
    panel.locator_params(axis="y", numticks=6)
    panel.grid(visible=True)
    panel.legend()
