"""What a study compares methods by, and what it chooses their settings by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fairlead.errors import FairleadError, unknown
from fairlead.task.evaluation import directions, names_on_test, recorded
from fairlead.task.metrics import Better, on_valid, sign
from fairlead.task.per_client import PerClient, columns
from fairlead.task.task import Task


@dataclass(frozen=True)
class Measured:
    """The metric of a study.

    >>> Measured("accuracy", "valid_accuracy", "higher", "valid").note
    'note: settings were chosen by valid_accuracy, on data held out from training'
    """

    metric: str
    """The metric that methods are compared by."""
    by: str
    """The metric that settings are chosen by: the same, or its value on validation data."""
    better: Better
    on: Literal["test", "valid"] | None
    """The held-out data that settings are chosen on, if any."""

    @property
    def sign(self) -> str:
        """How a target is written: ≥ or ≤."""
        return sign(self.better)

    @property
    def sentence(self) -> str:
        """The data that settings are chosen on, below a table; empty if they are not held out."""
        return {"test": "Tuned on the test set.", "valid": "Tuned on validation data."}.get(
            self.on or "", ""
        )

    @property
    def note(self) -> str:
        """A note on the data that settings are chosen on; empty if they are not held out."""
        if self.on is None:
            return ""
        if self.on == "valid":
            return f"note: settings were chosen by {self.by}, on data held out from training"
        return (
            "note: tuned on the test set, which flatters every method: hold out validation data with valid=0.2 "
            "(--valid 0.2)"
        )


def measured(
    task: Task,
    metric: str | None,
    target: Mapping[str, float] | None,
    settings: Mapping[str, Any],
    who: str,
) -> Measured:
    """What to compare methods and choose settings by, from the arguments of a study."""
    if target is not None and len(target) != 1:
        raise FairleadError(f"{who} needs exactly one target, for example {{'accuracy': 0.9}}")
    known = recorded(task, settings.get("weighting", "uniform"), settings.get("objective", True))
    ways = columns(task, PerClient.of(settings.get("per_client")))
    known, test = [*known, *ways], names_on_test(task)
    name = next(iter(target)) if target else metric or _default(known, test)
    if name not in known:
        raise unknown("metric", name, known)
    better, twin = (ways.get(name) or directions(task)[name]), on_valid(name)
    if name in test:
        return (
            Measured(name, twin, better, "valid")
            if twin in known
            else Measured(name, name, better, "test")
        )
    return Measured(name, name, better, "valid" if name.startswith("valid_") else None)


def _default(known: Sequence[str], test: Sequence[str]) -> str:
    """Accuracy or another metric of held-out data, else the distance, else a loss: the training data's, unless there
    are validation data."""
    own = [name for name in test if name != "test_loss"]
    valid = [name for name in known if name.startswith("valid_") and name != "valid_loss"]
    last = ["test_loss", "valid_loss", "loss"] if "valid_loss" in known else ["loss", "test_loss"]
    ranked = ["accuracy", *own, *valid, "distance", "residual_norm", *last]
    found = next((name for name in ranked if name in known), None)
    if found is None:
        raise FairleadError("nothing is measured: give the task test data, or keep objective=True")
    return found
