"""Runs and comparisons in a notebook, and progress there without widgets."""

from __future__ import annotations

import sys
import types
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from conftest import shared

import fairlead as fl
from fairlead.figures import inline
from fairlead.figures.places import places
from fairlead.progress import Progress, _Line, in_notebook

WORK = {"rounds": 4, "steps": 2, "batch_size": 4}


class Shown:
    """What a fake notebook displays."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Shown:
        assert raw
        assert display_id
        self.lines.append(content["text/plain"])
        return self

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.lines.append(content["text/plain"])


class ZMQInteractiveShell:
    """What a kernel has."""


class Colab(ZMQInteractiveShell):
    """A kernel's shell of another make."""


def kernel(monkeypatch: pytest.MonkeyPatch, shell: object) -> Shown:
    shown = Shown()
    fake, inner = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    fake.get_ipython = lambda: shell
    inner.display = shown.display
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    monkeypatch.setattr(_Line, "PAUSE", 0.0)
    return shown


@pytest.mark.parametrize("shell", [ZMQInteractiveShell(), Colab()])
def test_progress_is_a_line_of_text_in_a_notebook(monkeypatch, shell) -> None:
    shown = kernel(monkeypatch, shell)
    run = fl.train(shared(), fl.FedAvg(lr=0.1), **WORK)
    assert len(shown.lines) >= 6  # at the start, every round, at the end
    assert shown.lines[0].startswith("FedAvg")
    assert "0/4" in shown.lines[0]
    assert "4/4" in shown.lines[-1]
    assert f"loss {run.history.last('loss'):.3g}" in shown.lines[-1]


def test_there_is_no_line_elsewhere(monkeypatch) -> None:
    shown = kernel(monkeypatch, None)
    assert not in_notebook()
    fl.train(shared(), fl.FedAvg(lr=0.1), **WORK)
    kernel(monkeypatch, type("TerminalInteractiveShell", (), {})())
    assert not in_notebook()
    assert not shown.lines


def test_progress_can_be_switched_off_in_a_notebook(monkeypatch) -> None:
    shown = kernel(monkeypatch, ZMQInteractiveShell())
    fl.train(shared(), fl.FedAvg(lr=0.1), progress=False, **WORK)
    assert not shown.lines
    with Progress.of(None, 2, "two"):
        pass
    assert shown.lines[-1] == "two  0/2"


@pytest.fixture(scope="module")
def run() -> fl.Run:
    return fl.train(shared(), fl.Scaffold(lr=0.1), per_client=True, **WORK)


@pytest.fixture(scope="module")
def result() -> fl.Comparison:
    methods = {"FedAvg": fl.FedAvg(lr=0.1), "a <b> & c": fl.Scaffold(lr=0.1)}
    return fl.compare(shared(), methods, seeds=2, **WORK)


def test_a_run_is_one_short_line(run) -> None:
    accuracy = run.history.last("accuracy")
    assert repr(run).startswith(f"<Run: Scaffold on task: 4 rounds, accuracy {accuracy:.4g}")
    assert len(repr(run)) < 100


def test_a_run_shows_a_table_and_a_curve(run) -> None:
    page = run._repr_html_()
    root = ElementTree.fromstring(page)  # it is well-formed
    cells = ["".join(cell.itertext()) for cell in root.iter("td")]
    assert "client accuracy worst" in cells
    assert f"{run.history.best('accuracy'):.5g}" in cells
    (line,) = root.iter("{http://www.w3.org/2000/svg}polyline")
    assert len(line.get("points").split()) == 5


def test_a_comparison_is_one_short_line_and_a_table_with_curves(result) -> None:
    assert repr(result).startswith("<Comparison: best accuracy on task in 4 rounds: FedAvg 0.")
    assert len(repr(result)) < 120
    root = ElementTree.fromstring(result._repr_html_())
    cells = ["".join(cell.itertext()) for cell in root.iter("td")]
    assert "a <b> & c" in cells
    assert result.table(seconds=False)[0]["best accuracy"] in cells
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 2


def test_plots_are_figures_that_notebooks_can_show(run, result, tmp_path) -> None:
    for figure in (run.plot(), result.plot(tmp_path / "c.png"), run.plot(x="bits")):
        assert figure._repr_png_().startswith(b"\x89PNG")
        assert figure.axes[0].lines
    assert (tmp_path / "c.png").is_file()


def test_curves_leave_out_what_is_not_finite() -> None:
    svg = inline.curves({"a": ([0, 1, 2], [1.0, np.nan, 0.1])}, "loss", log=True)
    assert svg.count(",") == 2
    assert "nan" not in svg
    assert inline.curves({"a": ([0], [np.nan])}, "loss") == ""


def test_colours_follow_the_method() -> None:
    alone, together = places(["FedAvg"]), places(["Scaffold", "mine", "FedAvg", "FedProx"])
    assert together[2] == alone[0]
    variants = places(["FedAvg, lr 0.1", "Scaffold", "FedAvg, lr 0.3", "FedAvg:momentum=0.9"])
    assert {k % 8 for k in (variants[0], variants[2], variants[3])} == {alone[0]}
    many = places([f"m{k}" for k in range(20)] + ["FedAvg", "FedAvg, lr 2"])
    assert len(set(many)) == 22
