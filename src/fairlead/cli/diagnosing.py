"""What `fairlead diagnose` does: measure, race, answer nine questions, and write settings for `fairlead run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairlead.cli.build import build_task
from fairlead.cli.common import out
from fairlead.cli.settings import DEFAULTS, METHOD_SETTINGS, local, target
from fairlead.cli.show import say_split, say_written
from fairlead.cli.tables import table
from fairlead.cli.tuning import NOT_COPIED
from fairlead.study.diagnose import diagnose

TRAINED_WITH = ("steps", "epochs", *METHOD_SETTINGS)
ALONE = ("per_client", "measures", "every", "average", "drift")
"""Settings of `train` that a diagnosis has no use for."""


def diagnose_command(s: dict[str, Any], own: dict[str, Any]) -> None:
    """Recommend a method, local steps and a step size."""
    built = build_task(s)
    work = {name: value for name, value in local(s).items() if name not in ALONE}

    def say(text: str) -> None:
        out.print(text, highlight=False, soft_wrap=True)

    found = diagnose(
        built, rounds=s["rounds"], target=target(s["target"], built), say=say, **work, **own
    )
    out.print(f"\nrecommended: {found.best}\n", highlight=False)
    for number, answer in enumerate(found.answers, 1):
        out.print(f"{number}. {answer.question}", style="bold", highlight=False)
        out.print(f"   {answer.words}", highlight=False, soft_wrap=True)
        if answer.rows:
            out.print(table(answer.rows))
    out.print(table(found.lanes(), "everything that was raced, the best first"))
    say_split(built, s)
    for note in found.notes():
        out.print(note, highlight=False, soft_wrap=True)
    out.print(found.cost_sentence(), highlight=False, soft_wrap=True)
    if s["out"] is not None:
        known = {
            k: s[k] for k in DEFAULTS if k not in (*NOT_COPIED, *TRAINED_WITH) and s[k] is not None
        }
        folder = Path(s["out"])
        say_written(f"{folder}/{', '.join(found.write(folder, known))}")
