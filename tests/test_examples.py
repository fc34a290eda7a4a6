"""The examples of README, docs and examples/ run as they are."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest
import torch
from conftest import uneven
from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OPTIONAL = ("transformers", "peft")
"""Packages that take long to import; snippets with them are slow tests, where they are installed."""


def _blocks(page: Path) -> list[tuple[str, str]]:
    """The programs of a page, and the commands after each of them (in ```sh)."""
    text = page.read_text(encoding="utf-8")
    found: list[tuple[str, str]] = []
    for kind, code in re.findall(r"```(python|sh)\n(.*?)```", text, re.S):
        if kind == "python":
            found.append((code, ""))
        else:
            found[-1] = found[-1][0], found[-1][1] + code
    return found


def _needed(code: str) -> list[str]:
    return [name for name in OPTIONAL if re.search(rf"^import {name}$", code, re.M)]


SNIPPETS = [
    pytest.param(
        *block, id=f"{page.name}-{k}", marks=[pytest.mark.slow] if _needed(block[0]) else []
    )
    for page in PAGES
    for k, block in enumerate(_blocks(page))
]


@pytest.mark.parametrize(("code", "commands"), SNIPPETS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:(transformers|peft)")
def test_snippets_run(code: str, commands: str, tmp_path, monkeypatch) -> None:
    for name in _needed(code):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "snippet.py").write_text(code, encoding="utf-8")
    runpy.run_path("snippet.py")
    for line in commands.strip().splitlines():
        program, *words = shlex.split(line)
        assert program == "fairlead"
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output


SHORT = {
    "vision": ((1,), r"FedPVR +0\.\d+ +\d"),
    "tabular": (("", "ill", "hospital", 3), r"\| Scaffold \|(.|\n)*client_accuracy"),
    "text": ((1, (0.5,)), r"50% Scaffold +0\.\d+"),
    "saddle": ((5,), r"SCAFFOLD-Catalyst-S +0\.\d+ +10 "),
    "deploy": ((2,), r"differ by (0\.0e\+00|\d\.\de-1\d) after 2 rounds"),
}
"""A short form of each example, and what it prints."""


@pytest.mark.parametrize("name", SHORT)
def test_examples_run(name: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    given, printed = SHORT[name]
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"](*given)
    assert re.search(printed, capsys.readouterr().out)


def test_examples_fit_on_a_screen() -> None:
    for name in SHORT:
        assert (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").count("\n") <= 60, (
            name
        )


def test_own_method_runs_everywhere(tmp_path, monkeypatch) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "own_method.py"))
    method = example["StickyAvg"](lr=0.1)
    settings = {"rounds": 4, "cohort": 3, "batch_size": 4, "epochs": 2}
    runs = [fl.train(uneven(), method, engine=e, **settings) for e in ("vmap", "loop", "debug")]
    for run in runs[1:]:
        torch.testing.assert_close(run.x, runs[0].x, rtol=0, atol=1e-12)
    plain = fl.train(uneven(), example["StickyAvg"](lr=0.1, stick=0.0), **settings)
    fedavg = fl.train(uneven(), fl.FedAvg(lr=0.1), **settings)
    torch.testing.assert_close(plain.x, fedavg.x, rtol=0, atol=1e-14)
    monkeypatch.chdir(tmp_path)
    example["main"]()
    assert (tmp_path / "sticky.png").exists()


def test_fine_tuning_trains_and_sends_only_what_is_not_frozen() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "fine_tuning.py"))
    tasks = {name: task.to(dtype=torch.float64) for name, task in example["tasks"]().items()}
    head, rank, width = 128 * 5 + 5, 4, 128
    body = 64 * width + width + width * width + width
    assert tasks["all"].dim == body + head
    assert tasks["frozen"].dim == head
    assert tasks["LoRA"].dim == rank * (64 + width) + rank * (width + width) + head
    method = fl.FedAvg(lr=0.1)
    settings = {"rounds": 2, "cohort": 3, "batch_size": 16, "steps": 2}
    for task in tasks.values():
        run = fl.train(task, method, engine="vmap", **settings)
        other = fl.train(task, method, engine="loop", **settings)
        torch.testing.assert_close(run.x, other.x, rtol=0, atol=1e-12)
        assert run.ledger.up == 2 * 3 * task.dim * 64  # bits of float64
        before = dict(task.model.named_parameters())
        for name, value in run.model().named_parameters():
            assert torch.equal(value, before[name]) != value.requires_grad, name
    lora = fl.train(tasks["LoRA"], method, **settings).model()[1]
    x = torch.randn(3, 64, dtype=torch.float64)
    merged = lora.layer.weight + lora.b @ lora.a
    torch.testing.assert_close(lora(x), x @ merged.T + lora.layer.bias)
