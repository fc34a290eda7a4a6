"""The tutorials, from an empty folder: Python is pasted line by line at its prompt, commands are typed in a shell."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs_blocks import ROOT, Prompt, blocks
from typer.testing import CliRunner

from fairlead.cli import app

FOLDER = ROOT / "docs" / "tutorials"
PAGES = sorted(FOLDER.glob("*.md"))
SHELL = re.compile(r"[|<>&;$]|^(python|torchrun) ", re.M)
"""What needs a shell, or processes of its own."""


def needs_a_shell(page: Path) -> bool:
    """Whether a command of the page is more than a call of fairlead and a look at files."""
    return any(SHELL.search(text) for _, text in blocks(page, "bash"))


def typed(text: str) -> None:
    """Calls of fairlead, one per line, in this process; `ls` looks whether files are there."""
    for line in text.strip().splitlines():
        program, *words = shlex.split(line)
        if program == "ls":
            assert all(Path(word).exists() for word in words), line
            continue
        assert program == "fairlead", line
        result = CliRunner(env={"COLUMNS": "120"}).invoke(app, words)
        assert result.exit_code == 0, result.output


SLOW = {"saddle"}
TYPED = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in SLOW else [])
    for page in PAGES
    if not needs_a_shell(page)
]


@pytest.mark.parametrize("page", TYPED)
def test_tutorials_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prompt = Prompt()
    for kind, text in blocks(page, "python", "bash"):
        prompt.paste(text) if kind == "python" else typed(text)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="torchrun and bash")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tutorials_run_in_a_shell(page: Path, tmp_path: Path) -> None:
    """Each block in a process of its own, as in a terminal; Python goes on in a session of the page."""
    bin_, place = tmp_path / "bin", tmp_path / "empty"
    bin_.mkdir()
    place.mkdir()
    starts = {"fairlead": "-m fairlead", "python": "", "torchrun": "-m torch.distributed.run"}
    for name, words in starts.items():
        (bin_ / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (bin_ / name).chmod(0o755)
    path = f"{bin_}{os.pathsep}{os.environ['PATH']}"
    python = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PATH": path, "PYTHONPATH": python, "OMP_NUM_THREADS": "1"}
    so_far = ""
    for kind, text in blocks(page, "python", "bash"):
        if kind == "python":
            so_far += text
            command = [sys.executable, "-c", so_far]
        else:
            command = [shutil.which("bash") or "bash", "-e", "-c", text]
        done = subprocess.run(
            command, cwd=place, env=env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def test_pages_are_there_and_pasted() -> None:
    """None is left out by its name, and every page has something to run."""
    assert {page.stem for page in PAGES} >= {"compare", "method", "cluster", "deploy", "saddle"}
    for page in PAGES:
        assert blocks(page, "python", "bash"), page
    assert {page.stem for page in PAGES if needs_a_shell(page)} == {"cluster"}
