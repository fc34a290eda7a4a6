"""Writing a diagnosis: the answers, the page, and settings that `fairlead run` takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.errors import FairleadError
from fairlead.study.diagnose.page import page
from fairlead.study.tuning.files import toml


def write(found: Any, folder: Path, settings: Mapping[str, Any]) -> list[str]:
    """Write advice.toml, diagnosis.txt and diagnosis.html; the names of the files. settings: those of the planned run."""
    mine = {name: value for name, value in settings.items() if name not in ("steps", "epochs")}
    advice = toml({**mine, "rounds": found.facts.rounds, **found.advice()})
    head = "# The recommendation of fairlead diagnose: fairlead run --config advice.toml\n"
    texts = {
        "advice.toml": head + advice, "diagnosis.txt": f"{found}\n",
        "diagnosis.html": page(found, advice),
    }  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise FairleadError(f"cannot write to {folder}: {error.strerror}") from error
    return list(texts)
