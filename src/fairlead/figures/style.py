"""The project's figure style; matplotlib is imported only when a figure is drawn."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fairlead.errors import FairleadError, unknown

FORMATS = ("png", "pdf", "svg")
NO_DATE = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def figure_path(folder: str | Path, name: str, kind: str = "png") -> Path:
    """The path of a figure in a given format.

    >>> figure_path("out", "compare", "pdf").name
    'compare.pdf'
    """
    if kind not in FORMATS:
        raise unknown("figure format", kind, FORMATS)
    return Path(folder) / f"{name}.{kind}"


def check_figures(kind: str, drawn: bool = True) -> None:
    """Raise unless figures of this format can be drawn, if any are: before the work rather than after it."""
    figure_path("", "", kind)
    if drawn and find_spec("matplotlib") is None:
        raise FairleadError("figures need matplotlib: pip install matplotlib")


@functools.cache
def style() -> dict[str, Any]:
    """The matplotlib settings of the project's figures."""
    import matplotlib as mpl

    with as_file(files("fairlead.figures") / "fairlead.mplstyle") as path:
        read = mpl.rc_params_from_file(path, use_default_template=False)
    return {str(name): value for name, value in read.items()}


@contextmanager
def in_style(**more: Any) -> Iterator[None]:
    """The project's figure style, with optional matplotlib settings such as `font_size=7`."""
    import matplotlib as mpl

    settings: Any = {**style(), **{name.replace("_", ".", 1): v for name, v in more.items()}}
    with mpl.rc_context(settings):
        yield


def look(number: int) -> dict[str, Any]:
    """The colour and dashes of line `number` in a figure; 64 of them are distinct."""
    cycle = style()["axes.prop_cycle"].by_key()
    colors, dashes = cycle["color"], cycle["linestyle"]
    shift, index = divmod(number, len(colors))
    return {"color": colors[index], "linestyle": dashes[(index + shift) % len(dashes)]}


def save(figure: Any, path: str | Path) -> None:
    """Write a figure in the format of its file name; the same figure gives the same bytes. The file is
    complete or absent."""
    path = Path(path)
    kind = path.suffix.lower()
    beside = path.with_name(f"{path.name}.part") if kind else path
    try:
        with in_style():
            figure.savefig(beside, format=kind[1:] or None, metadata=NO_DATE.get(kind))
        if kind:
            beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise FairleadError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def panels(path: Path, rows: int, columns: int, share_y: bool) -> Iterator[Any]:
    """A grid of empty axes in the project's style; the figure is saved when the block ends."""
    from matplotlib.figure import Figure

    with in_style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No artists with labels|Data has no positive values")
        size = (3.4 * columns + 0.6, 2.9 * rows)
        figure = Figure(figsize=size, layout="constrained")
        yield figure.subplots(rows, columns, squeeze=False, sharey=share_y)
        save(figure, path)
