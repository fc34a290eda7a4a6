"""What mkdocs does beside its settings.

In the navigation, "folder/" stands for all pages of that folder, index.md first. In text, x* is a point and no emphasis.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor


def on_config(config: Any) -> Any:
    """Called by mkdocs after it has read its settings."""
    config["markdown_extensions"].append(Symbols())
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


class Symbols(Extension):
    """The star of an optimum, such as x*, and the index of a letter with a hat, such as ζ̂_p, are taken literally."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        star = r"(?<![A-Za-z*_])([A-Za-z]|ζ_)\*(?![*\w])"
        index = r"([\u0302-\u0304])_"
        for name, pattern, end in (("star", star, "*"), ("index", index, "_")):
            md.inlinePatterns.register(_Literal(pattern, md, end), name, 175)


class _Literal(InlineProcessor):
    def __init__(self, pattern: str, md: Markdown, end: str) -> None:
        super().__init__(pattern, md)
        self.end = end

    def handleMatch(self, m: Any, data: str) -> tuple[str, int, int]:  # noqa: N802
        return m.group(1) + self.end, m.start(0), m.end(0)
