"""Every method on every data set: what it takes to reach a target with uneven clients and drop-outs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fairlead.core.method import Algorithm
from fairlead.data import sources
from fairlead.data.images import Images
from fairlead.data.splits import Split, by_id, dirichlet, shards
from fairlead.methods import METHODS, PRESETS
from fairlead.schedules import SqrtDecay
from fairlead.study.reproduce.case import Case, Form, Results, Tuned
from fairlead.study.reproduce.outcome import Claim, Outcome
from fairlead.study.reproduce.recipe import Recipe
from fairlead.study.reproduce.tables import (
    Contest,
    costs_shown,
    seeds_to_add,
    settled,
    spread,
    step_sizes,
)  # fmt: skip
from fairlead.task import models
from fairlead.task.catalog import image_model
from fairlead.task.task import Task

NAMES = [name for name in (*METHODS, *PRESETS) if name != "catalyst"]
"""The methods; `catalyst` is `scaffold-catalyst-s` unless given another inner method."""


def method(name: str, lr: float) -> Algorithm[Any, Any]:
    """A method or preset by name, otherwise with its defaults."""
    base, given = PRESETS.get(name, (name, {}))
    settings = dict(given)
    if "method" in settings:
        return METHODS[base](method(settings["method"], lr))
    if settings.get("server") == "momentum":
        settings["server"] = partial(torch.optim.SGD, lr=1.0, momentum=0.9)
    rate = SqrtDecay(lr, per="step") if settings.pop("schedule", None) else lr
    return METHODS[base](rate, **settings)


def digits(device: str = "cpu") -> Task:
    """Digits across 20 clients of 24 to 144 images: softmax regression with a small ridge term."""
    found = sources.digits()
    owners = dirichlet(found.y.numpy(), 20, 0.5)
    return Task(
        models.softmax_regression(64, 10), "cross_entropy", (found.x, found.y), owners,
        test=(found.x_test, found.y_test), l2=1e-3, dtype=torch.float32, device=device, name="digits",
    )  # fmt: skip


def a9a(device: str = "cpu") -> Task:
    """Incomes (a9a) across 20 clients of very different sizes: logistic regression."""
    found = sources.load("a9a", None)
    owners = dirichlet(found.y.numpy(), 20, 0.5)
    model = torch.nn.Linear(found.x.shape[1], 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    return Task(
        model, "logistic", (found.x, found.y), owners, test=(found.x_test, found.y_test), l2=1e-4,
        dtype=torch.float32, device=device, name="a9a",
    )  # fmt: skip


def fashion(device: str = "cpu") -> Task:
    """Fashion-MNIST across 100 clients with two label shards each, a third of them with a part of their images: a net with
    200 hidden units."""
    found = sources.load("fashion_mnist", None)
    whole = shards(found.y.numpy(), 100, 2)
    owners = Split.of([ids[: len(ids) // (1 + k % 3)] for k, ids in enumerate(whole)])
    return _images("mlp:200", found, owners, device)


def femnist(device: str = "cpu") -> Task:
    """FEMNIST by writer: a convolutional net."""
    found = sources.load("femnist", None)
    assert found.groups is not None
    return _images("cnn", found, by_id(found.groups.numpy()), device)


def _images(model: str, found: sources.Dataset, owners: Split, device: str) -> Task:
    return Task(
        image_model(model, tuple(found.x.shape[1:]), found.classes), "cross_entropy",
        (found.x, found.y), owners, test=(found.x_test, found.y_test), transform=Images.of(found.x),
        dtype=torch.float32, device=device, name=found.name,
    )  # fmt: skip


class Setting(NamedTuple):
    """A task, the accuracy to reach, and the settings of its runs."""

    task: Callable[..., Task]
    goal: float
    train: Mapping[str, Any]
    quick: bool
    """Whether the quick form has it."""


COMMON = {"epochs": 1, "dropout": 0.2, "objective": False, "eval_every": 2}
SETTINGS = {
    "digits": Setting(
        digits, 0.93, {"rounds": 80, "cohort": 10, "batch_size": 16, "engine": "vmap"}, True
    ),
    "a9a": Setting(
        a9a, 0.84, {"rounds": 80, "cohort": 10, "batch_size": 256, "engine": "vmap"}, True
    ),
    "fashion_mnist": Setting(fashion, 0.8, {"rounds": 300, "cohort": 20, "batch_size": 32}, False),
    "femnist": Setting(femnist, 0.75, {"rounds": 300, "cohort": 20, "batch_size": 20}, False),
}
CORRECTED = (
    "scaffold", "scaffold-m", "scaffnew", "feddyn", "fedcomgate", "mime", "scaffold-s",
)  # fmt: skip
"""Methods that correct the drift of clients."""


class AllMethods(Recipe):
    """Every method on every data set: rounds, bits and gradients to a target, with uneven clients, one local epoch and a fifth of
    the sampled clients lost."""

    name, title = "all-methods", "All methods: what it takes to reach a target"
    paper, item, data = "new", "all methods", "a9a"
    minutes = (5, 30)
    runs_on = "one H200"
    columns = ("accuracy",)
    targets = {"accuracy": tuple(dict.fromkeys(s.goal for s in SETTINGS.values()))}

    def settings(self, form: Form) -> dict[str, Setting]:
        """Those of a form, by data set."""
        return {name: s for name, s in SETTINGS.items() if s.quick or not form.quick}

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        for data, setting in self.settings(form).items():
            train = {**COMMON, **setting.train, "target": {"accuracy": setting.goal}}
            for name in NAMES:
                mine = done.where(data=data, method=name)
                lrs = step_sizes(mine, "accuracy", setting.goal)
                work = [(lr, 0) for lr in lrs]
                work += seeds_to_add(mine, lrs, "accuracy", setting.goal, form.seeds or 3)
                for lr, seed in work:
                    labels = {"data": data, "method": name, "lr": lr, "seed": seed}
                    yield Case(labels, setting.task, method(name, lr), train)

    def found(self, form: Form, done: Results) -> dict[tuple[str, str], Tuned]:
        """The tuned results by data set and method."""
        return {
            (data, name): settled(mine, "accuracy", setting.goal)
            for data, setting in self.settings(form).items()
            for name, mine in done.where(data=data).by("method").items()
            if len(mine.where(seed=0))
        }

    def conclude(self, form: Form, done: Results) -> Outcome:
        found = self.found(form, done)

        def rounds(key: tuple[str, str]) -> float:
            return float(np.mean(found[key].results.costs("accuracy", SETTINGS[key[0]].goal)))

        rows = []
        places = list(SETTINGS)
        for key in sorted(found, key=lambda key: (places.index(key[0]), rounds(key))):
            data, name = key
            entry, goal = found[key], SETTINGS[data].goal
            rows.append({
                "data": data, "target": f"{goal:g}", "method": name,
                "rounds": spread(entry.results.costs("accuracy", goal)),
                **costs_shown(entry.results, "accuracy", goal),
                "step size": f"{entry.lr:g}{' (edge)' if entry.edge else ''}",
            })  # fmt: skip
        claims = [c for data in self.settings(form) for c in self.claims(data, found)]
        return Outcome(rows, claims, partial(_draw, found), [
            "sizes are uneven and a round is one local epoch, so clients take different numbers of steps; 20 % of the sampled clients "
            "are lost in every round; all means are uniform over clients",
            "step sizes are tuned with the first seed: 1, 0.3 and 0.1, then others from 10 to 0.01 while the best is at the edge; all "
            "other settings are defaults, so dp-fedavg has its full noise, and fedpvr on a model with one layer is scaffold",
            "evaluation every 2 rounds; ± is the standard deviation over seeds; a method that some seeds do not bring to the "
            "target has no mean",
        ])  # fmt: skip

    def claims(self, data: str, found: Mapping[tuple[str, str], Tuned]) -> list[Claim]:
        """Expectations from the papers, checked on a data set."""
        mine = {name: entry for (here, name), entry in found.items() if here == data}
        goal = SETTINGS[data].goal

        def contest(axis: str) -> Contest:
            return Contest(mine, lambda some: float(np.mean(some.costs("accuracy", goal, axis))))

        def said(c: Contest, names: Iterable[str], unit: float = 1.0) -> str:
            shown = {n: c.values[n] / unit for n in names if n in c.values}
            return ", ".join(
                f"{n} {v:.3g}" if v < math.inf else f"{n} not reached" for n, v in shown.items()
            )

        rounds, up = contest("round"), contest("bits_up")
        return [
            rounds.judged(
                f"[{data}] methods that correct client drift need fewer rounds than FedAvg",
                [(name, "fedavg") for name in CORRECTED],
                f"rounds: {said(rounds, ('fedavg', *CORRECTED))}",
            ),
            rounds.judged(
                f"[{data}] local steps save rounds: FedAvg needs fewer than FedSGD and minibatch SGD",
                [("fedavg", "fedsgd"), ("fedavg", "minibatch-sgd")],
                f"rounds: {said(rounds, ('fedavg', 'fedsgd', 'minibatch-sgd'))}",
            ),
            up.judged(
                f"[{data}] quantized steps save bits: FedPAQ sends fewer bits up than FedAvg",
                [("fedpaq", "fedavg"), ("fedpaq-m", "fedavg-m")],
                f"Mbit up: {said(up, ('fedavg', 'fedpaq', 'fedavg-m', 'fedpaq-m'), 1e6)}",
            ),
        ]


def _draw(found: Mapping[tuple[str, str], Tuned], path: Path) -> None:
    """Rounds and bits per method, sorted by rounds."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    from fairlead.figures.style import in_style, save

    places = list(dict.fromkeys(data for data, _ in found))
    with in_style(font_size=7):
        figure = Figure(figsize=(4.2 * len(places), 6.2), layout="constrained")
        for panel, data in zip(
            figure.subplots(1, len(places), squeeze=False)[0], places, strict=True
        ):
            goal = SETTINGS[data].goal
            costs = {
                n: e.results.costs("accuracy", goal) for (d, n), e in found.items() if d == data
            }
            costs = dict(sorted(costs.items(), key=lambda item: -float(np.mean(item[1]))))
            seen = {n: c for n, c in costs.items() if np.isfinite(c).all()}
            missed = [n for n in costs if n not in seen]
            heights = np.arange(len(seen)) + len(missed)
            mean = [float(np.mean(c)) for c in seen.values()]
            panel.errorbar(
                mean, heights, xerr=[float(np.std(c)) for c in seen.values()], fmt="o", ms=3, label="rounds"
            )  # fmt: skip
            bits = [found[data, n].results.costs("accuracy", goal, "bits") for n in seen]
            panel.plot(
                [float(np.mean(b)) / 1e6 for b in bits], heights, "x", ms=4, label="Mbit in all"
            )
            panel.set_yticks(range(len(costs)), [*missed, *seen])
            panel.set_ylim(-0.7, len(costs) - 0.3)
            panel.set_xscale("log")
            panel.xaxis.set_minor_formatter(NullFormatter())
            panel.set_title(f"{data}, accuracy {goal:g}")
            panel.grid(axis="y", alpha=0.3)
            panel.legend(fontsize=7)
        save(figure, path)
