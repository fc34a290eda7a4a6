"""Pages of the site: the settings file runs, the reference is complete, the navigation has everything."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from typer.testing import CliRunner

import fairlead as fl
from fairlead.cli import app
from fairlead.cli.settings import OPTIONS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_settings_file_runs(tmp_path: Path, monkeypatch) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (DOCS / "settings.md").read_text(), re.S)
    assert set(tomllib.loads(text)) <= set(OPTIONS)
    text = re.sub(r"^out = .*\n", "", text, flags=re.M)  # without figures
    monkeypatch.chdir(tmp_path)
    Path("settings.toml").write_text(text)
    words = ["run", "--config", "settings.toml", "--rounds", "1"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output


def test_the_reference_has_every_public_name_once() -> None:
    text = "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))
    named = re.findall(r'heading: "fl\.(\w+)"', text)
    assert sorted(named) == sorted(fl.__all__)


def test_citation_and_package_have_the_same_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {fl.__version__}\n" in citation
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == fl.__version__


def test_the_readme_counts_the_methods() -> None:
    assert f"| {len(fl.METHODS)}, with saddle points" in (ROOT / "README.md").read_text()


def test_files_of_the_repository_that_pages_link_to_exist() -> None:
    """mkdocs checks the links of docs/; these are outside."""
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / name).read_text()):
            assert (ROOT / target).exists(), f"{name}: {target}"
