"""What SCAFFOLD's tables 3 to 5 share: handwritten characters across 100 clients, EMNIST or what stands in for it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from fairlead.core.method import Algorithm
from fairlead.data import sources
from fairlead.data.images import Images
from fairlead.data.splits import iid, similarity
from fairlead.methods import FedAvg, FedProx, FedSGD, Scaffold
from fairlead.study.reproduce.case import Case, Form, Results, Tuned, tuned
from fairlead.study.reproduce.recipe import Recipe
from fairlead.study.reproduce.tables import (
    GRID,
    costs_shown,
    interpolated,
    seeds_to_add,
    settled,
    spread,
    step_sizes,
)  # fmt: skip
from fairlead.task.catalog import image_model
from fairlead.task.task import Task

METHODS: dict[str, Callable[[float], Algorithm[Any, Any]]] = {
    "SGD": FedSGD,
    "SCAFFOLD": Scaffold,
    "FedAvg": FedAvg,
    "FedProx": lambda lr: FedProx(lr, mu=1.0),
}
SHARE = 0.8
"""Of centralised softmax regression: about what the paper's 0.5 is on EMNIST."""
SETTING = {"batch_size": 0.2, "objective": False}
FIRST = (3.0, 1.0, 0.3)
"""Step sizes tried first in the quick form."""
STOP = 0.55
"""Accuracy at which runs of the quick form end."""
LEVELS = tuple(round(0.05 * k, 2) for k in range(5, 18))


def characters(data: str, quick: bool) -> sources.Dataset:
    """The data, with ink as 255 on 0 as in EMNIST. Quick: a quarter of the training images, averaged to 14 × 14."""
    if data == "femnist_half":
        found = sources.load("femnist", None, extra=True).half_digits()
        x, x_test = 255 - found.x, 255 - found.x_test
    else:
        found = sources.load(data, None)
        x, x_test = found.x, found.x_test
    y = found.y
    if quick:
        kept = torch.from_numpy(np.random.default_rng(0).permutation(len(x))[: len(x) // 4])
        x, y, x_test = _half_size(x[kept]), y[kept], _half_size(x_test)
    return sources.Dataset(found.name, x, y, x_test, found.y_test)


def _half_size(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool2d(x.float(), 2).round().to(torch.uint8)


def across_clients(
    data: str, percent: float | None, model: str, quick: bool, device: str = "cpu"
) -> Task:
    """The data across 100 clients with some similarity; or with one client, for centralised training."""
    found = characters(data, quick)
    labels = found.y.numpy()
    owners = iid(labels, 1) if percent is None else similarity(labels, 100, percent)
    return Task(
        image_model(model, tuple(found.x.shape[1:]), found.classes), "cross_entropy",
        (found.x, found.y), owners, test=(found.x_test, found.y_test), transform=Images(),
        dtype=torch.float32, device=device, name=found.name,
    )  # fmt: skip


class ScaffoldTable(Recipe):
    """What the three tables share."""

    paper, data, runs_on = "SCAFFOLD", "femnist", "one H200"
    columns = ("accuracy",)
    targets = {"accuracy": LEVELS}
    readings = {"data": ("femnist_half", "fashion_mnist", "emnist_byclass")}
    model = "softmax"
    stops = STOP

    @abstractmethod
    def settings(self, form: Form) -> Iterator[dict[str, Any]]:
        """The labels of each setting: method, epochs, similarity in percent, share of clients in percent."""

    @abstractmethod
    def goal(self, form: Form) -> float | None:
        """The accuracy to reach; none if the best one counts."""

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        data, goal = self.reading(form, "data"), self.goal(form)
        alone = partial(across_clients, data, None, "softmax", form.quick)
        for lr in step_sizes(done.where(method="centralised"), "accuracy", None, FIRST):
            labels = {"method": "centralised", "lr": lr, "seed": 0}
            local = {"rounds": 30, "epochs": 1, "batch_size": 100, "objective": False}
            yield Case(labels, alone, FedAvg(lr), local)
        for setting in self.settings(form):
            mine = done.where(**setting)
            first = FIRST if form.quick else GRID
            lrs = step_sizes(mine, "accuracy", goal, first)
            work = [(lr, 0) for lr in lrs]
            work += seeds_to_add(
                mine, lrs, "accuracy", goal, form.seeds or (1 if form.quick else 3)
            )
            for lr, seed in work:
                yield self.case(form, data, setting, lr, seed)

    def case(self, form: Form, data: str, setting: dict[str, Any], lr: float, seed: int) -> Case:
        """One training."""
        local = {
            **SETTING, "epochs": setting["epochs"], "cohort": setting["clients"],
            "rounds": self.rounds(form), "eval_every": 2 if form.quick else 1,
        }  # fmt: skip
        if form.quick and self.goal(form) is not None:
            local["target"] = {"accuracy": self.stops}
        task = partial(across_clients, data, setting["similarity"], self.model, form.quick)
        labels = {**setting, "lr": lr, "seed": seed}
        return Case(labels, task, METHODS[setting["method"]](lr), local)

    def rounds(self, form: Form) -> int:
        """How long runs are at most."""
        return 200 if form.quick else 1000

    def found(self, form: Form, done: Results) -> dict[Any, Tuned]:
        """The tuned results by method, epochs, similarity and number of clients."""
        entries = {}
        for setting in self.settings(form):
            mine = done.where(**setting)
            if len(mine.where(seed=0)):
                entries[tuple(setting.values())] = settled(mine, "accuracy", self.goal(form))
        return entries

    def centralised(self, done: Results) -> float:
        """The best accuracy of centralised softmax regression."""
        mine = done.where(method="centralised")
        return tuned(mine, "accuracy").results[0].best["accuracy"] if len(mine) else math.nan

    def row(self, form: Form, done: Results, entry: Tuned) -> dict[str, str]:
        """The columns that are the same in tables 3 and 4."""
        goal, level = self.goal(form), SHARE * self.centralised(done)
        assert goal is not None
        some = entry.results
        row = {f"rounds to {goal:g}": spread(some.costs("accuracy", goal))}
        row["step size"] = f"{entry.lr:g}{' (edge)' if entry.edge else ''}"
        row |= costs_shown(some, "accuracy", goal)
        if not math.isnan(level):
            share = [interpolated(r, "accuracy", level) for r in some]
            row[f"rounds to {SHARE:g} of centralised ({level:.3f})"] = spread(share)
        return row | {"best accuracy": f"{some.mean(lambda r: r.best['accuracy']):.3f}"}

    def notes(self, form: Form, done: Results) -> list[str]:
        """How it was read."""
        names = {
            "femnist_half": "FEMNIST in place of EMNIST: all its writers' training images with as many digits as letters (43,512 in "
            "all, 62 classes), ink as 1 on 0",
            "fashion_mnist": "Fashion-MNIST in place of EMNIST, and a higher accuracy to reach",
            "emnist_byclass": "EMNIST ByClass",
        }
        data = self.reading(form, "data")
        notes = [
            f"{names[data]}; centralised softmax regression reaches {self.centralised(done):.3f}",
            "step sizes are tuned with the first seed from "
            + ("3, 1, 0.3" if form.quick else "10, 3, 1, 0.3, 0.1, 0.03, 0.01")
            + ", and larger and smaller ones while the best is at the edge",
        ]
        if data != "emnist_byclass":
            notes.append(
                "orderings and ratios can be compared with the paper's, absolute numbers cannot"
            )
        if form.quick:
            notes.append(
                f"quick form: a quarter of the images, averaged to 14 × 14, one seed, at most {self.rounds(form)} rounds"
            )
        return notes


def rounds_to(goal: float) -> Callable[[Results], float]:
    return lambda some: float(np.mean(some.costs("accuracy", goal)))


def goal_on(data: str, paper: float) -> float:
    """The paper's accuracy; on Fashion-MNIST about the same share of centralised training."""
    return round(paper + 0.2, 2) if data == "fashion_mnist" else paper


def key_name(key: tuple[str, int, int, int]) -> str:
    """A setting in words.

    >>> key_name(("FedAvg", 5, 10, 20))
    'FedAvg (epochs: 5, similarity: 10 %, clients: 20)'
    """
    return "{} (epochs: {}, similarity: {} %, clients: {})".format(*key)
