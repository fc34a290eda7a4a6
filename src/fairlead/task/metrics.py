"""Metrics and which way they are better.

A metric of your own says it: `fl.Metric(f, better="lower")`, or `fl.Whole(f, better="lower")` for one that needs
all outputs at once. fairlead's own columns and metrics know theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor

from fairlead.errors import FairleadError, unknown
from fairlead.task import losses

Better: TypeAlias = Literal["lower", "higher"]
Function: TypeAlias = Callable[..., Tensor]

BETTER: dict[str, Better] = {
    "loss": "lower", "test_loss": "lower", "worst_loss": "lower", "gap": "lower", "distance": "lower",
    "x_distance": "lower", "y_distance": "lower", "residual_norm": "lower", "accuracy": "higher", "auc": "higher",
}  # fmt: skip
"""Columns whose direction is known by their name."""
FUNCTIONS: tuple[tuple[Any, Better], ...] = (
    (losses.correct, "higher"), (losses.next_correct, "higher"), (losses.correct_sign, "higher"), (losses.auc, "higher"),
    (losses.logistic, "lower"), (losses.squared, "lower"),
)  # fmt: skip
VALID = "valid_"
"""The prefix of columns measured on validation data."""


@dataclass(frozen=True)
class Metric:
    """A metric and which way it is better, "lower" or "higher": (output, target) → one value per sample, of which
    the mean is recorded.

    >>> import torch
    >>> mae = Metric(lambda output, target: (output[:, 0] - target).abs(), better="lower")
    >>> mae(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 0.0]))
    tensor([0., 2.])
    """

    of: Function
    better: Better

    def __post_init__(self) -> None:
        check_better(self.better)

    def __call__(self, output: Any, *targets: Any) -> Tensor:
        return self.of(output, *targets)


@dataclass(frozen=True)
class Whole:
    """A metric of all outputs at once, not a mean over samples: (outputs, targets) → a number.

    >>> import torch
    >>> spread = Whole(lambda outputs, targets: outputs.std(), better="lower")
    >>> spread.of(torch.tensor([1.0, 1.0, 1.0]), None)
    tensor(0.)
    """

    of: Function
    better: Better | None = None
    """Which way it is better; not needed for `fl.losses.auc`."""

    def __post_init__(self) -> None:
        if self.better is not None:
            check_better(self.better)


AnyMetric: TypeAlias = Function | Metric | Whole


def check_better(better: str) -> None:
    """Raise unless it is a direction."""
    if better not in get_args(Better):
        raise unknown("direction", str(better), get_args(Better))


def known(name: str) -> Better | None:
    """The direction of one of fairlead's own columns.

    >>> known("accuracy"), known("valid_loss"), known("mae")
    ('higher', 'lower', None)
    """
    return BETTER.get(name.removeprefix(VALID))


def direction(name: str, metric: AnyMetric) -> Better:
    """Which way a metric is better: what it says, or what fairlead knows of its function or name."""
    found: Better | None = metric.better if isinstance(metric, Metric | Whole) else None
    of = metric.of if isinstance(metric, Metric | Whole) else metric
    found = found or next((way for f, way in FUNCTIONS if f is of), None) or BETTER.get(name)
    if found is None:
        wrapper = "Whole" if isinstance(metric, Whole) else "Metric"
        raise FairleadError(
            f"nothing says which way the metric '{name}' is better: give fl.{wrapper}(…, better=\"lower\") or "
            'better="higher"'
        )
    return found


def checked(metrics: Mapping[str, AnyMetric]) -> dict[str, AnyMetric]:
    """Metrics that all have a direction."""
    for name, metric in metrics.items():
        direction(name, metric)
    return dict(metrics)


def reaches(value: Any, goal: float, better: Better) -> Any:
    """Whether a value, or each of an array, is as good as the goal.

    >>> reaches(0.9, 0.8, "higher"), reaches(0.9, 0.8, "lower")
    (True, False)
    """
    return value >= goal if better == "higher" else value <= goal


def sign(better: Better) -> str:
    """How a target is written: ≥ or ≤."""
    return "≥" if better == "higher" else "≤"


def on_valid(name: str) -> str:
    """The validation column of a test metric.

    >>> on_valid("accuracy"), on_valid("test_loss")
    ('valid_accuracy', 'valid_loss')
    """
    return VALID + name.removeprefix("test_")
