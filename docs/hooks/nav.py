"""In mkdocs.yml, "folder/" in the navigation stands for all pages of that folder, index.md first."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Called by mkdocs after it has read its settings."""
    config["nav"] = _filled(config["nav"], Path(config["docs_dir"]))
    return config


def _filled(nav: list[Any], docs: Path) -> list[Any]:
    """The navigation with folders replaced by their pages; a section without pages is left out."""
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            for title, inside in entry.items():
                below = _filled(inside, docs) if isinstance(inside, list) else inside
                if below:
                    found.append({title: below})
        elif entry.endswith("/"):
            pages = sorted(
                docs.glob(f"{entry}*.md"), key=lambda page: (page.stem != "index", page.name)
            )
            found += [page.relative_to(docs).as_posix() for page in pages]
        else:
            found.append(entry)
    return found
