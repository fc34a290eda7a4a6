"""Tasks by name, as the command line builds them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
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


def auc(data: str = "digits", positive: int = 8, **settings: Any) -> Task:
    """AUC maximization of a linear model as a saddle problem: one digit against the others."""
    found = sources.load(data)
    if found.classes > 2:
        found = found.against_others(positive)
    return problems.auc_maximization(_linear(found, **settings), solve=True)


def agnostic(penalty: float = 0.0, **settings: Any) -> Task:
    """Handwritten digits with the worst client's loss minimized: weights of clients on the simplex."""
    return problems.agnostic(digits(**settings), penalty)


def robust_regression(
    clients: int = 10,
    split: str = "similarity",
    split_value: float | None = None,
    split_seed: int = 0,
    l2: float = 0.1,
    penalty: float = 10.0,
    **settings: Any,
) -> Task:
    """Disease progression of 442 diabetes patients by ten measurements, which an adversary shifts."""
    x, y = sources.diabetes()
    groups = np.argsort(np.argsort(y)) * clients // len(y)  # by the target, into equal parts
    owners = split_by_name(split, groups, clients, split_value, split_seed)
    return problems.robust_regression(x, y, owners, l2, penalty, **settings)


def _linear(
    data: sources.Dataset,
    clients: int = 10,
    split: str = "similarity",
    split_value: float | None = None,
    split_seed: int = 0,
    l2: float = 1e-3,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> Task:
    """A linear score for labels −1 and +1, started from zero."""
    owners = split_by_name(split, data.y.numpy(), clients, split_value, split_seed)
    model = torch.nn.Linear(data.x[0].numel(), 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    return Task(
        model, "logistic", (data.x, data.y), owners, test=(data.x_test, data.y_test),
        l2=l2, dtype=dtype, device=device, name=data.name,
    )  # fmt: skip


TASKS: dict[str, Callable[..., Task]] = {
    "digits": digits,
    "theorem2": problems.theorem2,
    "random-quadratics": problems.random_quadratics,
    "synthetic-logistic": problems.synthetic_logistic,
    "two-gaussians": problems.two_gaussians,
    "saddle": problems.saddle_regression,
    "quadratic-game": problems.quadratic_game,
    "bilinear-game": problems.bilinear_game,
    "robust-regression": robust_regression,
    "auc": auc,
    "agnostic": agnostic,
}

SPLIT_TASKS = ("digits", "auc", "agnostic", "robust-regression")
"""Tasks whose data are divided among clients by a split."""


def make_task(name: str, given: Mapping[str, Any], own: Mapping[str, Any]) -> Task:
    """A task by name. `given` are settings that many tasks have, of which it takes what it knows;
    `own` are its own, of which it must know all."""
    make = TASKS[name]
    takes = set(inspect.signature(make).parameters) | {"dtype", "device"}
    if "settings" in takes:  # what it hands on
        takes |= {"split", "split_value", "split_seed", "clients"} if name in SPLIT_TASKS else set()
        takes |= {"model"} if make is agnostic else set()
    takes -= {"settings"}
    given = {k: v for k, v in given.items() if v is not None}
    if name == "theorem2" and given.get("clients", 2) != 2:
        raise FairleadError(f"theorem2 has 2 clients, not {given['clients']}")
    for key in own:
        if key not in takes:
            raise unknown(f"setting of the task {name}", key, takes)
    return make(**{k: v for k, v in given.items() if k in takes}, **own)


def task_defaults(name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """What a comparison on a task takes where nothing is said."""
    if name == "digits":
        return {"target": "accuracy=0.95"}
    if name == "saddle":  # the paper's experiment
        scale = max(float(own.get("s", 5.0)), 1.0)
        return {
            "methods": ",".join(SADDLE_METHODS), "method": "scaffold-catalyst-s",
            "rounds": 500, "steps": 20, "batch_size": None, "seeds": 1, "target": "x_distance=1e-6",
            "grid": [base / scale for base in (0.1, 0.05, 0.01)],
        }  # fmt: skip
    if name == "auc":
        return {
            "methods": "mirror-prox,fedavg,scaffold-s,scaffold-catalyst-s", "method": "scaffold-s",
            "rounds": 100, "steps": 10, "grid": "0.03,0.01,0.003,0.001",
        }  # fmt: skip
    if name == "agnostic":
        return {
            "methods": "mirror-descent,mirror-prox", "method": "mirror-prox", "rounds": 200,
            "batch_size": None, "steps": 1, "grid": "3,1,0.3,0.1", "target": "worst_loss=0.4",
        }  # fmt: skip
    if name in ("quadratic-game", "bilinear-game", "robust-regression"):
        return {
            "methods": ",".join(SADDLE_METHODS), "method": "scaffold-s", "rounds": 300, "steps": 5,
            "batch_size": None, "seeds": 1, "target": "distance=1e-6",
        }  # fmt: skip
    return {}


SADDLE_METHODS = (
    "mirror-descent", "mirror-prox", "fedavg-s", "scaffold-s", "scaffold-catalyst-s",
)  # fmt: skip


def one_line(thing: Any) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((thing.__doc__ or "").split())
    return re.split(r"(?<!et al)\.(?: |$)", text)[0].rstrip(":")
