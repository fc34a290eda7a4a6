"""Tasks by name, for the command line.

>>> import fairlead as fl
>>> task = fl.tasks.digits(clients=5, split="dirichlet", split_value=0.3, model="mlp")
>>> task.clients, task.dim
(5, 4810)
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from fairlead.data import sources
from fairlead.data.images import Images
from fairlead.data.own_test import by_group
from fairlead.data.splits import Split
from fairlead.data.text import dialects
from fairlead.errors import FairleadError, unknown
from fairlead.task import models, problems
from fairlead.task.names import mlp_widths, split_by_name
from fairlead.task.own_table import csv
from fairlead.task.task import Task

Model: TypeAlias = torch.nn.Module | models.Maker
"""A user's own model."""


def own_test(name: str, split: Split, data: sources.Dataset) -> Split | None:
    """The clients' own test samples, if they are the data's own clients."""
    if name != "by-id" or data.groups is None or data.groups_test is None:
        return None
    return by_group(split, data.groups.numpy(), data.groups_test.numpy())


def digits(
    clients: int = 10,
    split: str = "similarity",
    split_value: float | None = None,
    model: str | Model = "softmax",
    split_seed: int = 0,
    l2: float = 1e-3,
    valid: float | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Task:
    """Handwritten digits (8 × 8, 10 classes), split across clients. A small ridge term makes step
    sizes meaningful: without it, larger ones only scale the weights."""
    data = sources.digits()
    owners = split_by_name(split, data.y.numpy(), clients, split_value, split_seed)
    makers = {"softmax": models.softmax_regression(64, 10), "mlp": models.mlp(64, 64, 10)}
    if isinstance(model, str) and (widths := mlp_widths(model)) is not None:
        model = models.mlp(64, *widths, 10)
    return Task(
        _one_of(makers, model), "cross_entropy", (data.x, data.y), owners,
        test=(data.x_test, data.y_test), l2=l2, valid=valid, dtype=dtype, device=device, name="digits",
    )  # fmt: skip


def _one_of(makers: Mapping[str, Model], model: str | Model) -> Model:
    """A model by name, or a user's own as it is."""
    if not isinstance(model, str):
        return model
    if model not in makers:
        raise unknown("model", model, makers)
    return makers[model]


def images(
    source: str,
    clients: int | None = None,
    split: str = "similarity",
    split_value: float | None = None,
    model: str | Model = "softmax",
    split_seed: int = 0,
    l2: float = 0.0,
    flip: bool = False,
    crop: int = 0,
    valid: float | None = None,
    extra: bool = False,
    resample: str | None = None,
    data: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Task:
    """Images of a data set by name, kept on the device as bytes and normalised on the fly.

    extra: also the training samples of further clients (FEMNIST's few-shot writers). resample: "byclass" for
    as many digits as letters, as in EMNIST ByClass."""
    if clients is not None and split == "by-id":
        raise FairleadError("by-id gets its clients from the data: leave out clients")
    if resample not in (None, "byclass"):
        raise unknown("way to resample", str(resample), ["byclass"])
    found, n = sources.load(source, data, extra=extra), 100 if clients is None else clients
    found = found.half_digits() if resample else found
    owners = split_by_name(split, found.y.numpy(), n, split_value, split_seed, found.groups)
    return Task(
        image_model(model, tuple(found.x.shape[1:]), found.classes), "cross_entropy",
        (found.x, found.y), owners, test=(found.x_test, found.y_test),
        test_clients=own_test(split, owners, found), l2=l2, valid=valid,
        transform=Images.of(found.x, flip, crop), dtype=dtype, device=device, name=found.name,
    )  # fmt: skip


def image_model(name: str | Model, shape: tuple[int, ...], classes: int) -> Model:
    """A model for images of shape (C, H, W); a name ending in -bn selects BatchNorm."""
    if not isinstance(name, str):
        return name
    if (widths := mlp_widths(name)) is not None:
        return models.mlp(math.prod(shape), *widths, classes)
    plain, _, norm = name.partition("-")
    grey = shape[0] == 1
    makers: dict[str, Callable[..., models.Maker]] = {
        "softmax": lambda: models.softmax_regression(math.prod(shape), classes),
        "mlp": lambda: models.mlp(math.prod(shape), 300, 300, classes),
        "cnn": partial(models.femnist_cnn if grey else models.cifar_cnn, classes),
        "vgg11": partial(models.vgg11, classes),
        "resnet8": partial(models.resnet8, classes),
    }
    if plain not in makers or norm not in ("", "bn") or (norm and plain in ("softmax", "mlp")):
        raise unknown("model", name, [*makers, "cnn-bn", "vgg11-bn", "resnet8-bn"])
    if grey and plain in ("vgg11", "resnet8"):
        raise FairleadError(f"{plain} needs 32 × 32 colour images: use cnn, mlp or softmax")
    return makers[plain](norm="batch") if norm else makers[plain]()


def text(
    source: str,
    clients: int = 20,
    split: str = "by-id",
    split_value: float | None = None,
    model: str | Model = "gru",
    split_seed: int = 0,
    difference: float = 0.3,
    valid: float | None = None,
    data: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Task:
    """Next-character prediction from a window of the preceding characters."""
    generated = source == "dialects"
    found = dialects(clients, difference) if generated else sources.load(source, data)
    owners = split_by_name(split, found.y.numpy(), clients, split_value, split_seed, found.groups)
    characters = 1 + max(int(t.max()) for t in (found.x, found.y, found.x_test, found.y_test))
    makers = {
        "gru": models.char_gru(characters),
        "transformer": models.char_transformer(characters, found.x.shape[1]),
    }
    return Task(
        _one_of(makers, model), "cross_entropy", (found.x, found.y), owners,
        test=(found.x_test, found.y_test), test_clients=own_test(split, owners, found), valid=valid,
        dtype=dtype, device=device, name=found.name,
    )  # fmt: skip


def _named(make: Callable[..., Task], source: str, what: str) -> Callable[..., Task]:
    """A task on one data set, with the data set's description as docstring."""
    task = partial(make, source)
    task.__doc__ = f"{what}."
    return task


def auc(
    source: str = "digits",
    positive: int = 8,
    l2: float = 1e-3,
    weighting: str = "uniform",
    data: str | None = None,
    **settings: Any,
) -> Task:
    """AUC maximization of a linear model as a saddle problem: one class against the others.

    The centralised solution is computed for up to 300 features."""
    found = sources.load(source, data)
    if found.classes > 2:
        found = found.against_others(positive)
    task = _linear(found, l2=l2, **settings)
    return problems.auc_maximization(task, weighting, solve=task.dim <= 300)


def agnostic(penalty: float = 0.0, l2: float = 1e-3, **settings: Any) -> Task:
    """Handwritten digits, minimizing the worst client's loss: client weights on the simplex."""
    return problems.agnostic(digits(l2=l2, **settings), penalty)


def robust_regression(
    clients: int = 10,
    split: str = "similarity",
    split_value: float | None = None,
    split_seed: int = 0,
    l2: float = 0.1,
    penalty: float = 10.0,
    **settings: Any,
) -> Task:
    """Disease progression of 442 diabetes patients from ten measurements, which an adversary shifts."""
    x, y = sources.diabetes()
    groups = np.argsort(np.argsort(y)) * clients // len(y)  # equal parts, by the target
    owners = split_by_name(split, groups, clients, split_value, split_seed)
    return problems.robust_regression(x, y, owners, l2, penalty, **settings)


def _linear(
    data: sources.Dataset,
    clients: int = 10,
    split: str = "similarity",
    split_value: float | None = None,
    split_seed: int = 0,
    l2: float = 1e-3,
    valid: float | None = None,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> Task:
    """A linear score for labels −1 and +1, initialized to zero."""
    owners = split_by_name(split, data.y.numpy(), clients, split_value, split_seed, data.groups)
    x, x_test = (t.flatten(1) / 255 if t.dtype == torch.uint8 else t for t in (data.x, data.x_test))
    model = torch.nn.Linear(x.shape[1], 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    return Task(
        model, "logistic", (x, data.y), owners, test=(x_test, data.y_test),
        test_clients=own_test(split, owners, data),
        l2=l2, valid=valid, dtype=dtype, device=device, name=data.name,
    )  # fmt: skip


def logistic(
    source: str,
    clients: int = 10,
    split: str = "similarity",
    split_value: float | None = None,
    split_seed: int = 0,
    l2: float = 1e-3,
    valid: float | None = None,
    data: str | None = None,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> Task:
    """Logistic regression on a data set with two classes."""
    found = sources.load(source, data)
    return _linear(found, clients, split, split_value, split_seed, l2, valid, dtype, device)


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
    "csv": csv,
}

TASKS |= {
    name: _named(images, name, source.what)
    for name, source in sources.SOURCES.items()
    if name.startswith(("mnist", "fashion", "emnist", "femnist", "cifar"))
}
TASKS |= {name: _named(logistic, name, sources.SOURCES[name].what) for name in ("a9a", "w8a")}
TASKS |= {
    "dialects": _named(text, "dialects", "Generated text in which each client has its own dialect"),
    "shakespeare": _named(text, "shakespeare", sources.SOURCES["shakespeare"].what),
}

SPLIT_TASKS = {"csv", "digits", "auc", "agnostic", "robust-regression", "dialects", "shakespeare"}
SPLIT_TASKS |= {name for name in TASKS if name in sources.SOURCES}
"""Tasks whose data are split across clients."""


def make_task(name: str, given: Mapping[str, Any], own: Mapping[str, Any]) -> Task:
    """A task by name. `given` are common settings, of which it uses those it has; `own` are its own
    settings, which it must all have."""
    make = TASKS[name]
    known = set(inspect.signature(make).parameters) | {"dtype", "device"}
    if "settings" in known:  # settings that it passes on
        known |= {"split", "split_value", "split_seed", "clients"} if name in SPLIT_TASKS else set()
        known |= {"model"} if make is agnostic else set()
        known |= {"valid"} if make in (agnostic, auc) else set()
    known -= {"settings"}
    given = {k: v for k, v in given.items() if v is not None}
    if name == "theorem2" and given.get("clients", 2) != 2:
        raise FairleadError(f"theorem2 has 2 clients, not {given['clients']}")
    if "valid" in given and "valid" not in known:
        raise FairleadError(f"the task {name} has no data to hold out: leave out --valid")
    if "model" not in known and not isinstance(given.get("model", ""), str):
        raise FairleadError(f"the task {name} has its own model: leave out --model")
    for key in own:
        if key not in known:
            raise unknown(f"setting of the task {name}", key, known)
    try:
        return make(**{**{k: v for k, v in given.items() if k in known}, **own})
    except (TypeError, ValueError) as error:
        if isinstance(error, FairleadError):
            raise
        raise FairleadError(f"the task {name} does not accept these settings: {error}") from error


def task_defaults(name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The default settings of a comparison on a task."""
    if name == "digits":
        return {"target": "accuracy=0.95"}
    if name == "csv":
        return {"split": "by-id" if "client" in own else "iid"}
    if name in ("dialects", "shakespeare"):
        return {"split": "by-id", "model": "gru", "grid": "3,1,0.3", "batch_size": 32}
    if name == "femnist":
        return {"split": "by-id", "model": "cnn", "grid": "0.3,0.1,0.03", "batch_size": 20,
                "cohort": 20, "objective": False}  # fmt: skip
    if name in sources.SOURCES:
        return {"grid": "1,0.3,0.1,0.03", "objective": False}
    if name == "saddle":  # the paper's experiment
        given = own.get("s", 5.0)
        scale = max(float(given), 1.0) if isinstance(given, int | float) else 1.0
        return {
            "methods": ",".join(SADDLE_METHODS), "method": "scaffold-catalyst-s",
            "rounds": 500, "steps": 20, "batch_size": None, "seeds": 1, "target": "x_distance=1e-6",
            "grid": [base / scale for base in (0.1, 0.05, 0.01)], "lr_run": 0.05 / scale,
        }  # fmt: skip
    if name == "auc":
        return {
            "methods": "mirror-prox,fedavg,scaffold-s,scaffold-catalyst-s", "method": "scaffold-s",
            "rounds": 100, "steps": 10, "grid": "0.03,0.01,0.003,0.001", "lr_run": 0.003,
        }  # fmt: skip
    if name == "agnostic":
        return {
            "methods": "mirror-descent,mirror-prox", "method": "mirror-prox", "rounds": 200,
            "batch_size": None, "steps": 1, "grid": "3,1,0.3,0.1", "target": "worst_loss=0.4", "lr_run": 1.0,
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


def one_line(entry: Any) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((entry.__doc__ or "").split())
    return re.split(r"(?<!et al)\.(?: |$)", text)[0].rstrip(":")
