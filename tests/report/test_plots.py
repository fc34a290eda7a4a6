"""Figures for papers: text that stays text, the same bytes every time, lines that can be told apart."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path

import numpy as np
import pytest
from programs import LIMIT, ended

import fairlead as fl
from fairlead.figures.plots import run_figure
from fairlead.figures.style import FORMATS, figure_path, look, panels, save

# how the three kinds of colour blindness see linear RGB, after Machado et al. 2009
SEEN = {
    "all": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


@pytest.fixture(scope="module")
def result() -> fl.Comparison:
    task = fl.problems.random_quadratics(clients=4, gradient=5.0)
    methods = {
        f"method {k}": method
        for k, method in enumerate([fl.FedAvg(lr=0.1), fl.Scaffold(lr=0.1)] * 4)
    }
    return fl.compare(task, methods, rounds=5, seeds=2, steps=3)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_figure_is_the_same_bytes(result, tmp_path, kind: str) -> None:
    first, second = figure_path(tmp_path, "one", kind), figure_path(tmp_path, "two", kind)
    result.plot(first)
    result.plot(second)
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size > 3000


DRAWN = """
import sys
from fairlead.figures.style import look, panels
for path in sys.argv[1:]:
    with panels(path, rows=1, columns=1, share_y=False) as axes:
        for k in range(9):
            axes[0][0].plot([1, 2, 4], [k, 2 * k, 3], label=f"ξ {k}", **look(k))
        axes[0][0].legend()
"""


def test_the_same_bytes_in_another_process_elsewhere(tmp_path, monkeypatch) -> None:
    here, there = ([str(tmp_path / f"{place}.{kind}") for kind in FORMATS] for place in "ab")
    more = {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1", "TZ": "UTC-9"}
    other = subprocess.Popen([sys.executable, "-c", DRAWN, *there], env=os.environ | more)
    with ended([other]):
        monkeypatch.setattr(sys, "argv", ["", *here])
        exec(DRAWN, {})
        assert other.wait(timeout=LIMIT) == 0
    for one, two in zip(here, there, strict=True):
        assert Path(one).read_bytes() == Path(two).read_bytes()


def test_pdfs_embed_their_fonts_as_type_42(result, tmp_path) -> None:
    result.plot(tmp_path / "f.pdf")
    data = (tmp_path / "f.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert b"/Type /Font" in data
    assert b"/FontFile2" in data  # TrueType, as type 42 is
    assert b"/Subtype /CIDFontType2" in data
    assert b"/Type3" not in data
    assert b"CreationDate" not in data
    packed = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.S)
    assert any(zlib.decompress(part)[:4] == b"\0\1\0\0" for part in packed if part[:1] == b"x")


def test_svgs_have_text(result, tmp_path) -> None:
    result.plot(tmp_path / "f.svg")
    root = ElementTree.parse(tmp_path / "f.svg").getroot()
    said = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "rounds" in said
    assert {f"method {k}" for k in range(8)} <= set(said)
    assert "<dc:date>" not in (tmp_path / "f.svg").read_text(encoding="utf-8")


def test_every_line_can_be_told_by_its_dashes(result) -> None:
    lines = [line for line in result.plot(None).axes[0].get_lines() if line.get_label()[0] != "_"]
    assert len(lines) == 8
    patterns = [_ink(line) for line in lines]
    for one, two in itertools.combinations(patterns, 2):
        assert (
            one != two
        ).mean() > 0.1  # of a pattern's length is ink in one and none in the other


def _ink(line) -> np.ndarray:
    """Where a line is drawn over 60 line widths."""
    offset, dashes = line._unscaled_dash_pattern
    if dashes is None:
        return np.ones(600, dtype=bool)
    place = (np.arange(600) / 10 + offset) % sum(dashes)
    return np.searchsorted(np.cumsum(dashes), place, side="right") % 2 == 0


@pytest.mark.parametrize("eyes", SEEN)
def test_every_colour_can_be_told_from_the_others(eyes: str) -> None:
    seen = [_lab(look(k)["color"], np.array(SEEN[eyes])) for k in range(8)]
    apart = [np.linalg.norm(one - two) for one, two in itertools.combinations(seen, 2)]
    assert min(apart) > 12


def _lab(color: str, seen: np.ndarray) -> np.ndarray:
    from matplotlib.colors import to_rgb

    srgb = np.array(to_rgb(color))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(seen @ linear, 0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_sixty_four_lines_differ() -> None:
    assert len({str(look(k)) for k in range(64)}) == 64


def test_a_panel_is_one_column_wide(result, tmp_path) -> None:
    run = next(iter(result.entries.values())).runs[0]
    figure = run_figure(run, tmp_path / "f.pdf")
    assert figure.get_size_inches()[0] == pytest.approx(3.4 * len(figure.axes))


def test_matplotlibs_own_settings_stay_as_they_were(result, tmp_path) -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    result.plot(tmp_path / "f.svg")
    with panels(tmp_path / "g.pdf", rows=1, columns=2, share_y=True) as axes:
        axes[0][0].plot([1, 2])
    fl.splits.iid(np.arange(20), clients=2).plot(np.arange(20) % 3, tmp_path / "s.svg")
    save(result.plot(None), tmp_path / "h.pdf")
    assert dict(mpl.rcParams) == before
    assert b"FontFile2" in (tmp_path / "h.pdf").read_bytes()


def test_other_formats_are_refused(tmp_path) -> None:
    with pytest.raises(fl.FairleadError, match="no figure format 'gif'"):
        figure_path(tmp_path, "compare", "gif")
