"""Tasks by name, as the command line builds them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from fairlead import problems
from fairlead.data import sources
from fairlead.data.splits import SPLITS, Split
from fairlead.errors import FairleadError, unknown
from fairlead.models import mlp, softmax_regression
from fairlead.task import Task


def split_by_name(name: str, labels: Any, clients: int, value: float | None, seed: int) -> Split:
    """A split from its name and its one number (percent, alpha or shards a client)."""
    if name not in SPLITS:
        raise unknown("split", name, SPLITS)
    if name == "iid":
        return SPLITS["iid"](labels, clients, seed)
    defaults = {"similarity": 0.0, "dirichlet": 0.1, "shards": 2}
    number = defaults[name] if value is None else value
    return SPLITS[name](labels, clients, int(number) if name == "shards" else number, seed)


def digits(
    clients: int = 10,
    split: str = "similarity",
    split_value: float | None = None,
    model: str = "softmax",
    split_seed: int = 0,
    l2: float = 1e-3,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Task:
    """Handwritten digits (8 × 8, 10 classes), divided among clients. A small ridge term gives step
    sizes a meaning: without it, ever larger ones only scale the weights."""
    data = sources.digits()
    owners = split_by_name(split, data.y.numpy(), clients, split_value, split_seed)
    makers = {"softmax": softmax_regression(64, 10), "mlp": mlp(64, 64, 10)}
    if model not in makers:
        raise unknown("model", model, makers)
    return Task(
        makers[model], "cross_entropy", (data.x, data.y), owners,
        test=(data.x_test, data.y_test), l2=l2, dtype=dtype, device=device, name="digits",
    )  # fmt: skip


def _of(make: Callable[..., Task]) -> Callable[..., Task]:
    def build(clients: int | None = None, **settings: Any) -> Task:
        ignored = {"split", "split_value", "model", "split_seed"}
        given = {k: v for k, v in settings.items() if k not in ignored and v is not None}
        if clients is not None:
            if make is problems.theorem2:
                if clients != 2:
                    raise FairleadError(f"theorem2 has 2 clients, not {clients}")
            else:
                given["clients"] = clients
        return make(**given)

    build.__doc__ = make.__doc__
    return build


TASKS: dict[str, Callable[..., Task]] = {
    "digits": digits,
    "theorem2": _of(problems.theorem2),
    "random-quadratics": _of(problems.random_quadratics),
    "synthetic-logistic": _of(problems.synthetic_logistic),
    "two-gaussians": _of(problems.two_gaussians),
    "saddle-regression": _of(problems.saddle_regression),
    "quadratic-game": _of(problems.quadratic_game),
}


def one_line(thing: Any) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((thing.__doc__ or "").split())
    return re.split(r"(?<!et al)\.(?: |$)", text)[0].rstrip(":")
