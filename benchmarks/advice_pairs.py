"""The pairs of a task and a split on which `fairlead diagnose` is judged, named before anything was run on them, and
those on which it was developed.

Small models on parts of the data, so that a tuned grid of about ninety configurations per pair is affordable. Images are
averaged over 2 × 2 pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn

import fairlead as fl
from fairlead.data import sources
from fairlead.data.text import dialects


@dataclass(frozen=True)
class Pair:
    """A task with its split, and the planned run."""

    make: Callable[[], fl.Task]
    rounds: int = 200
    steps: int = 10
    metric: str = "accuracy"
    settings: dict[str, Any] = field(default_factory=dict)


def _split(kind: str, labels: Tensor, clients: int, value: float | None) -> Any:
    from fairlead.task.names import split_by_name

    return split_by_name(kind, labels.numpy(), clients, value, 1)


def _rows(count: int, total: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).permutation(total)[:count].copy())


def _small(x: Tensor) -> Tensor:
    """Images with a quarter of the pixels, as rows with mean zero."""
    x = nn.functional.avg_pool2d(x.float() / 255, 2).flatten(1)
    return (x - x.mean()) / x.std()


def images(
    source: str, model: str, kind: str, value: float | None, clients: int, count: int = 2000
) -> fl.Task:
    """A part of an image data set."""
    found = sources.load(source, None)
    rows, held = _rows(count, len(found.x)), _rows(1000, len(found.x_test))
    x, y = _small(found.x[rows]), found.y[rows].long()
    x_test, y_test = _small(found.x_test[held]), found.y_test[held].long()
    return _task(
        x, y, x_test, y_test, found.classes, model, _split(kind, y, clients, value), source
    )


def writers(model: str, clients: int) -> fl.Task:
    """The first writers of FEMNIST."""
    found = sources.load("femnist", None)
    assert found.groups is not None
    assert found.groups_test is not None
    mine, held = found.groups < clients, found.groups_test < clients
    x, x_test = _small(found.x[mine]), _small(found.x_test[held])
    groups = found.groups[mine]
    owners = [np.flatnonzero(groups.numpy() == k) for k in range(clients)]
    owners = [ids for ids in owners if len(ids)]
    y, y_test = found.y[mine].long(), found.y_test[held].long()
    return _task(x, y, x_test, y_test, found.classes, model, owners, "femnist")


def _task(
    x: Tensor,
    y: Tensor,
    x_test: Tensor,
    y_test: Tensor,
    classes: int,
    model: str,
    owners: Any,
    name: str,
) -> fl.Task:
    wide = x.shape[1]
    makers = {
        "softmax": fl.models.softmax_regression(wide, classes),
        "mlp": fl.models.mlp(wide, 32, classes),
        "cnn": lambda: _convolutional(wide, classes),
    }
    return fl.Task(
        makers[model], "cross_entropy", (x, y), owners, test=(x_test, y_test), l2=1e-3, name=name
    )


def _convolutional(wide: int, classes: int) -> nn.Module:
    """A small net for square images of one colour, given as rows."""
    side = int(wide**0.5)
    return nn.Sequential(
        nn.Unflatten(1, (1, side, side)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * (side // 2) ** 2, classes),
    )


def handwritten(model: str, kind: str, value: float | None, clients: int) -> fl.Task:
    """The digits that come with scikit-learn, as rows with mean zero."""
    data = sources.digits()
    x, x_test = ((part - data.x.mean()) / data.x.std() for part in (data.x, data.x_test))
    x, x_test = x.flatten(1), x_test.flatten(1)
    owners = _split(kind, data.y, clients, value)
    return _task(x, data.y, x_test, data.y_test, 10, model, owners, "digits")


def table(name: str, model: str, kind: str, value: float | None, clients: int) -> fl.Task:
    """A table that comes with scikit-learn; every fifth row is test data."""
    found: Any = getattr(datasets, f"load_{name}")()
    x = torch.tensor((found.data - found.data.mean(0)) / found.data.std(0), dtype=torch.float32)
    y = torch.tensor(found.target).long()
    order = _rows(len(x), len(x))
    held, rest = order[::5], torch.cat([order[k::5] for k in range(1, 5)])
    classes = int(y.max()) + 1
    return _task(
        x[rest],
        y[rest],
        x[held],
        y[held],
        classes,
        model,
        _split(kind, y[rest], clients, value),
        name,
    )


def linear(source: str, kind: str, value: float | None, clients: int, count: int = 4000) -> fl.Task:
    """Logistic regression on a part of a LIBSVM data set."""
    found = sources.load(source, None)
    held = len(found.x_test) > 0
    rows = _rows(count + (0 if held else 2000), len(found.x))
    x, y = found.x[rows].float(), found.y[rows]
    x_test, y_test = (
        (found.x_test[:4000].float(), found.y_test[:4000]) if held else (x[count:], y[count:])
    )
    x, y = x[:count], y[:count]
    model = nn.Linear(x.shape[1], 1, bias=False)
    nn.init.zeros_(model.weight)
    owners = _split(kind, y, clients, value)
    return fl.Task(model, "logistic", (x, y), owners, test=(x_test, y_test), l2=1e-3, name=source)


def text(clients: int, difference: float) -> fl.Task:
    """Next characters of generated dialects, from an embedding of the two before."""
    found = dialects(clients, difference)
    assert found.groups is not None
    x, x_test = found.x[:, -2:].long(), found.x_test[:, -2:].long()
    characters = 1 + int(max(found.x.max(), found.y.max()))

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Embedding(characters, 8),
            nn.Flatten(),
            nn.Linear(16, 32),
            nn.ReLU(),
            nn.Linear(32, characters),
        )

    owners = [np.flatnonzero(found.groups.numpy() == k) for k in range(clients)]
    return fl.Task(
        make,
        "cross_entropy",
        (x, found.y.long()),
        owners,
        test=(x_test, found.y_test.long()),
        name="dialects",
    )


def regression(clients: int) -> fl.Task:
    """Disease progression of diabetes patients, each client with a range of it."""
    x, y = sources.diabetes()
    x = torch.as_tensor((x - x.mean(0)) / x.std(0))
    y = torch.as_tensor((y - y.mean()) / y.std()).float().reshape(-1)
    owners = np.array_split(np.argsort(y.numpy()), clients)
    return fl.Task(
        nn.Linear(x.shape[1], 1), _squared, (x.float(), y), owners, l2=1e-3, name="diabetes"
    )


def _squared(output: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (output[:, 0] - target) ** 2


FIFTH = {"batch_size": 0.2}

DEVELOPED_ON = {
    "digits, softmax, similarity 0": Pair(
        lambda: fl.tasks.digits(10, "similarity", 0.0), settings=FIFTH
    ),
    "digits, MLP, Dirichlet 0.3, 5 of 20": Pair(
        lambda: fl.tasks.digits(20, "dirichlet", 0.3, "mlp"),
        settings={"cohort": 5, "batch_size": 16},
    ),
    "breast cancer, softmax, Dirichlet 0.5": Pair(
        lambda: table("breast_cancer", "softmax", "dirichlet", 0.5, 8), settings=FIFTH
    ),
    "digits, MLP, iid, 10 of 40": Pair(
        lambda: fl.tasks.digits(40, "iid", None, "mlp"), settings={"cohort": 10, "batch_size": 8}
    ),
    "iris, MLP, shards 2": Pair(lambda: table("iris", "mlp", "shards", 2, 6), settings=FIFTH),
    # judged with an earlier rule, and seen since
    "fashion, softmax, shards 2, 5 of 20": Pair(
        lambda: images("fashion_mnist", "softmax", "shards", 2, 20), settings={"cohort": 5, "batch_size": 20}
    ),
    "fashion, MLP, Dirichlet 0.1, 10 of 20": Pair(
        lambda: images("fashion_mnist", "mlp", "dirichlet", 0.1, 20), settings={"cohort": 10, "batch_size": 20}
    ),
    "fashion, softmax, similarity 50, 2 of 100": Pair(
        lambda: images("fashion_mnist", "softmax", "similarity", 50.0, 100), rounds=140,
        settings={"cohort": 2, "batch_size": 5},
    ),
    "FEMNIST, softmax, 10 of 40 writers": Pair(lambda: writers("softmax", 40), settings={"cohort": 10, "batch_size": 20}),
    "FEMNIST, MLP, 15 writers": Pair(lambda: writers("mlp", 15), settings={"batch_size": 20}),
    "a9a, logistic, similarity 0": Pair(lambda: linear("a9a", "similarity", 0.0, 10), settings={"batch_size": 0.1}),
    "a9a, logistic, iid, 5 of 50": Pair(lambda: linear("a9a", "iid", None, 50), settings={"cohort": 5, "batch_size": 16}),
    "CIFAR-10, MLP, Dirichlet 0.5, 5 of 10": Pair(
        lambda: images("cifar10", "mlp", "dirichlet", 0.5, 10), settings={"cohort": 5, "batch_size": 32}
    ),
    # judged with the rule after that, and seen since
    "fashion, softmax, Dirichlet 0.3, 4 of 30": Pair(
        lambda: images("fashion_mnist", "softmax", "dirichlet", 0.3, 30), settings={"cohort": 4, "batch_size": 16}
    ),
    "fashion, MLP, similarity 10": Pair(
        lambda: images("fashion_mnist", "mlp", "similarity", 10.0, 10), rounds=120, settings={"batch_size": 32}
    ),
    "fashion, MLP, iid, 3 of 60": Pair(
        lambda: images("fashion_mnist", "mlp", "iid", None, 60), rounds=140, settings={"cohort": 3, "batch_size": 10}
    ),
    "FEMNIST, softmax, 4 of 60 writers": Pair(
        lambda: writers("softmax", 60), rounds=140, settings={"cohort": 4, "batch_size": 10}
    ),
    "FEMNIST, MLP, 5 of 25 writers": Pair(lambda: writers("mlp", 25), rounds=120, settings={"cohort": 5, "batch_size": 20}),
    "a9a, logistic, Dirichlet 0.2, 4 of 40": Pair(
        lambda: linear("a9a", "dirichlet", 0.2, 40), metric="loss", settings={"cohort": 4, "batch_size": 16}
    ),
    "a9a, logistic, similarity 30, 16 clients": Pair(
        lambda: linear("a9a", "similarity", 30.0, 16), metric="loss", settings={"batch_size": 0.05}
    ),
    "digits, MLP, shards 3, 12 clients": Pair(
        lambda: fl.tasks.digits(12, "shards", 3, "mlp"), settings={"batch_size": 0.1}
    ),
    "dialects, embedding, difference 1, 3 of 30": Pair(
        lambda: text(30, 1.0), rounds=140, settings={"cohort": 3, "batch_size": 16}
    ),
    "w8a, logistic, Dirichlet 0.3, half of 20": Pair(
        lambda: linear("w8a", "dirichlet", 0.3, 20), metric="loss", settings={"cohort": 0.5, "batch_size": 0.2}
    ),
    "dialects, embedding, difference 0.6, 8 of 20": Pair(
        lambda: text(20, 0.6), settings={"cohort": 8, "batch_size": 32}
    ),
    "wine, MLP, Dirichlet 1": Pair(lambda: table("wine", "mlp", "dirichlet", 1.0, 6), metric="loss", settings=FIFTH),
    "diabetes, linear, sorted by target": Pair(lambda: regression(8), metric="loss", settings=FIFTH),
    "synthetic logistic, shift 1.5, 6 of 12": Pair(
        lambda: fl.problems.synthetic_logistic(clients=12, shift=1.5, dtype=torch.float32), metric="loss",
        settings={"cohort": 6, "batch_size": 0.1},
    ),
}  # fmt: skip

JUDGED_ON = {
    "fashion, softmax, iid, 5 of 50": Pair(
        lambda: images("fashion_mnist", "softmax", "iid", None, 50), settings={"cohort": 5, "batch_size": 16}
    ),
    "fashion, MLP, shards 3, 6 of 15": Pair(
        lambda: images("fashion_mnist", "mlp", "shards", 3, 15), rounds=160, settings={"cohort": 6, "batch_size": 20}
    ),
    "fashion, CNN, Dirichlet 0.5, 4 of 8": Pair(
        lambda: images("fashion_mnist", "cnn", "dirichlet", 0.5, 8, 1200), rounds=120,
        settings={"cohort": 4, "batch_size": 20},
    ),
    "FEMNIST, softmax, 20 writers": Pair(lambda: writers("softmax", 20), settings={"batch_size": 20}),
    "FEMNIST, MLP, 12 of 48 writers": Pair(
        lambda: writers("mlp", 48), rounds=140, settings={"cohort": 12, "batch_size": 10}
    ),
    "CIFAR-10, softmax, similarity 20, 5 of 10": Pair(
        lambda: images("cifar10", "softmax", "similarity", 20.0, 10), settings={"cohort": 5, "batch_size": 20}
    ),
    "a9a, logistic, shards 3, 6 of 24": Pair(
        lambda: linear("a9a", "shards", 3, 24), metric="loss", settings={"cohort": 6, "batch_size": 0.1}
    ),
    "w8a, logistic, similarity 10, 12 clients": Pair(
        lambda: linear("w8a", "similarity", 10.0, 12), metric="loss", settings={"batch_size": 0.05}
    ),
    "digits, CNN, Dirichlet 0.2, 5 of 15": Pair(
        lambda: handwritten("cnn", "dirichlet", 0.2, 15), rounds=160, settings={"cohort": 5, "batch_size": 16}
    ),
    "digits, softmax, shards 2, 2 of 10": Pair(
        lambda: handwritten("softmax", "shards", 2, 10), settings={"cohort": 2, "batch_size": 0.2}
    ),
    "dialects, embedding, difference 0.3, 6 of 40": Pair(
        lambda: text(40, 0.3), settings={"cohort": 6, "batch_size": 16}
    ),
    "breast cancer, MLP, similarity 0, 8 clients": Pair(
        lambda: table("breast_cancer", "mlp", "similarity", 0.0, 8), metric="loss", settings=FIFTH
    ),
    "diabetes, linear, sorted by target, 4 of 16": Pair(
        lambda: regression(16), metric="loss", settings={"cohort": 4, "batch_size": 0.2}
    ),
    "synthetic logistic, shift 0.5, 3 of 24": Pair(
        lambda: fl.problems.synthetic_logistic(clients=24, shift=0.5, dtype=torch.float32), metric="loss",
        settings={"cohort": 3, "batch_size": 0.1},
    ),
}  # fmt: skip
