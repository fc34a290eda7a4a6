"""Writes all pages and pictures, or those of the methods that are named: python -m handbook [NAME…]."""

from __future__ import annotations

import sys

from handbook.entries import ENTRIES
from handbook.page import FOLDER, INDEX, indexed, page
from handbook.pictures import draw


def main(names: list[str]) -> None:
    (FOLDER / "pictures").mkdir(parents=True, exist_ok=True)
    for name in names or ENTRIES:
        entry = ENTRIES[name]
        (FOLDER / f"{name}.md").write_text(page(entry), encoding="utf-8")
        draw(entry, FOLDER / "pictures" / f"{name}.svg")
        print(f"written: docs/methods/{name}.md", flush=True)
    INDEX.write_text(indexed(INDEX.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
