"""A split in one sentence, and as a bubble chart of clients × classes."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairlead.errors import FairleadError
from fairlead.figures.style import in_style, look, save

MOST, SHOWN = 100, 60
AT_ONCE = 1 << 26  # cells of clients × classes
RIGHT, BOTTOM, GAP, STRIP = 1.0, 0.45, 0.1, 0.6  # inches around the bubbles


def sentence(split: Any, labels: ArrayLike) -> str:
    """Clients, samples and classes in one sentence, then the samples that belong to no client."""
    classes, column = np.unique(np.asarray(labels), return_inverse=True)
    held = _classes_held(split, column, len(classes))
    left = int((np.bincount(split.order, minlength=len(column)) == 0).sum())
    text = (
        f"{_many(len(split), 'client')} hold{'s' * (len(split) == 1)} "
        f"{_many(len(split.order), 'sample')}: {_spread(split.sizes)} each, "
        f"from {_spread(held)} of {_many(len(classes), 'class', 'es')}."
    )
    unassigned = f" {_many(left, 'sample')} belong{'s' * (left == 1)} to no client."
    return text + unassigned * (left > 0)


def _classes_held(split: Any, column: NDArray[Any], classes: int) -> NDArray[Any]:
    """The number of classes of each client, computed in blocks of clients."""
    held, step = np.zeros(len(split), dtype=np.int64), max(1, AT_ONCE // max(classes, 1))
    for first in range(0, len(split), step):
        some = slice(first, min(first + step, len(split)))
        seen = np.zeros((some.stop - first, classes), dtype=bool)
        owners = np.repeat(np.arange(len(seen)), split.sizes[some])
        entries = split.order[split.offsets[first] : split.offsets[some.stop]]
        seen[owners, column[entries]] = True
        held[some] = seen.sum(1)
    return held


def _many(count: int, noun: str, ending: str = "s") -> str:
    return f"{count:,} {noun}{ending * (count != 1)}"


def _spread(values: NDArray[Any]) -> str:
    if not len(values) or values.min() == values.max():
        return f"{values.max(initial=0):,}"
    median = f"{np.median(values):,.1f}".removesuffix(".0")
    return f"{values.min():,} to {values.max():,} (median {median})"


def bubbles(split: Any, labels: ArrayLike, path: str | Path | None) -> Any:
    """Clients × classes with areas proportional to counts, below a bar chart of client sizes. With more
    than 100 clients the first 60 are shown, with more than 100 classes the 60 most frequent."""
    from matplotlib.figure import Figure

    table, classes, notes = shown(split, labels)
    clients, rows = table.shape
    cell = (float(np.clip(8 / clients, 0.125, 0.44)), float(np.clip(4.6 / rows, 0.115, 0.3)))
    inner = (max(cell[0] * clients, 2.4), cell[1] * rows)
    left = 0.5 + 0.07 * max(4, *map(len, classes))
    width = left + inner[0] + RIGHT
    text = textwrap.wrap(" ".join([sentence(split, labels), *notes]), int(17.2 * (width - 0.3)))
    size = (width, BOTTOM + inner[1] + GAP + STRIP + 0.3 + 0.15 * len(text))
    with in_style(axes_grid=False, xtick_labelsize=8, ytick_labelsize=8, legend_fontsize=8):
        figure = Figure(figsize=size)
        main, strip = _axes(figure, size, left, inner)
        _scatter(main, table, 72 * 0.96 * min(cell[1], inner[0] / clients))
        _ticks(main, clients, classes)
        _strip(strip, split.sizes[:clients])
        figure.text(0.15 / width, 1 - 0.12 / size[1], "\n".join(text), va="top", linespacing=1.3)
        if path is not None:
            save(figure, path)
    return figure


def shown(split: Any, labels: ArrayLike) -> tuple[NDArray[Any], list[str], list[str]]:
    """The table of counts, its classes, and notes on what was left out."""
    if len(split) == 0:
        raise FairleadError("there are no clients to draw: give one index list per client")
    names, notes = np.unique(np.asarray(labels)), []
    if len(split) > MOST:
        notes.append(f"Shown: the first {SHOWN} clients.")
        split = type(split)(split.order[: split.offsets[SHOWN]], split.offsets[: SHOWN + 1])
    table = split.table(labels)
    if len(names) > MOST:
        notes.append(f"Shown: the {SHOWN} most frequent classes.")
        kept = np.sort(np.argsort(-np.bincount(_columns(labels)), kind="stable")[:SHOWN])
        table, names = table[:, kept], names[kept]
    return table, [_short(str(name)) for name in names], notes


def _short(name: str) -> str:
    """At most ten characters, with $ escaped."""
    return (name if len(name) <= 10 else f"{name[:9]}…").replace("$", r"\$")


def _columns(labels: ArrayLike) -> NDArray[Any]:
    return np.unique(np.asarray(labels), return_inverse=True)[1]


def _axes(
    figure: Any, size: tuple[float, float], left: float, inner: tuple[float, float]
) -> tuple[Any, Any]:
    """The axes for the bubbles and the strip above, in inches so that cells keep their size."""

    def box(bottom: float, height: float) -> list[float]:
        return [left / size[0], bottom / size[1], inner[0] / size[0], height / size[1]]

    main = figure.add_axes(box(BOTTOM, inner[1]))
    return main, figure.add_axes(box(BOTTOM + inner[1] + GAP, STRIP), sharex=main)


def _scatter(axes: Any, table: NDArray[Any], diameter: float) -> None:
    """Bubbles, the largest filling its cell, with a legend of three sizes at the right."""
    most = max(int(table.max()), 1)
    client, row = np.nonzero(table)
    area = diameter**2 / most
    filled: Any = {"color": look(3)["color"], "alpha": 0.85, "linewidths": 0}
    axes.scatter(client, row, s=table[client, row] * area, **filled)
    key = sorted({_nice(most), _nice(most / 4), _nice(most / 20)}, reverse=True)
    for count in key:
        axes.scatter([], [], s=count * area, label=f"{count:,}", **filled)
    axes.legend(
        title="samples", title_fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0.0, handletextpad=0.5 + 0.012 * diameter, labelspacing=0.4 + 0.03 * diameter,
    )  # fmt: skip


def _nice(value: float) -> int:
    """The largest of 1, 2, 5, 10, 20, 50, … not above the value, at least 1."""
    power = 10 ** int(np.floor(np.log10(max(value, 1))))
    return power * max(step for step in (1, 2, 5) if step * power <= max(value, 1))


def _ticks(axes: Any, clients: int, classes: list[str]) -> None:
    axes.set_xlim(-0.5, clients - 0.5)
    axes.set_ylim(-0.5, len(classes) - 0.5)
    step = max(1, round(len(classes) / 40))
    axes.set_yticks(range(0, len(classes), step), classes[::step])
    every = 1 if clients <= 20 else 5 if clients <= 60 else 10
    axes.set_xticks(range(0, clients, every))
    axes.tick_params(length=0)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.spines[["left", "bottom"]].set_visible(False)
    for row in range(len(classes)):
        axes.axhline(row, color="black", alpha=0.07, linewidth=0.6, zorder=0)


def _strip(axes: Any, sizes: NDArray[Any]) -> None:
    axes.bar(
        np.arange(len(sizes)), sizes, width=0.72, color=look(0)["color"], alpha=0.75, linewidth=0
    )
    axes.set_yticks([0, _nice(int(sizes.max()))])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(length=0, labelbottom=False)
    axes.set_ylabel("size")
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.axhline(0, color="black", alpha=0.3, linewidth=0.6)
