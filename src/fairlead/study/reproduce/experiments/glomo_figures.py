"""FedGLOMO's figures: test error and train loss against bits, on Fashion-MNIST and CIFAR-10 with 50 clients.

A figure is a list of settings and the methods that it compares. Step sizes are tuned with one seed, the others get
the winner's; where the winner is the smallest or largest of the paper's grid, the grid grows by up to two values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch

from fairlead.compress import QSGD, Compressor
from fairlead.core.method import Algorithm
from fairlead.data import sources
from fairlead.data.images import Images
from fairlead.data.splits import iid, shards
from fairlead.methods import FedAvg, FedCOMGATE, FedGLOMO, FedLOMO, FedPAQ, Mime
from fairlead.schedules import Exponential
from fairlead.study.reproduce.case import Case, Form, Results
from fairlead.study.reproduce.experiments.glomo_verdicts import (
    Entry,
    attained,
    best,
    draw,
    ends,
    failed,
    ranked,
    rows,
    smoother,
)
from fairlead.study.reproduce.outcome import Claim, Outcome, judged
from fairlead.study.reproduce.recipe import Recipe
from fairlead.task.catalog import image_model
from fairlead.task.task import Task

FMNIST, CIFAR = "fashion-mnist", "cifar10"
HET, HOM = "heterogeneous", "homogeneous"
CLIENTS = 50
GRID = (1e-3, 5e-3, 1e-2, 5e-2, 1e-1)
QUICK_GRID = (1e-2, 5e-2)
WIDER = (3e-5, 3e-4, *GRID, 3e-1, 1.0)
"""The paper's step sizes with two more at each end, for winners at the edge."""
NOTES = [
    "the paper does not give the local batch: 32 here, 64 with --reading batch=64",
    "bits are nominal as in the paper (b bits for every coordinate of a vector), then as sent: QSGD with b bits has a sign too "
    "and takes b + 1, and a vector's norm; 'in all' adds what the server sends, in float32",
    "'reached' is the first evaluation at which the mean test error over seeds is at most the final one of the first baseline, "
    "the mean of its last three evaluations; roughness is the standard deviation of the changes of the test error between "
    "evaluations in the second half of the run",
    "η_0 is tuned on the final test error of seed 0, as is the momentum where there are several; a step size with which another "
    "seed diverges is left out",
]


@dataclass(frozen=True)
class Setting:
    """One comparison: two panels of a figure.

    bits: those of a coordinate of FedGLOMO, which sends two vectors; the other methods have twice as many. None for
    no compression. scale: of the step sizes. share: of the baseline's bits that FedGLOMO is said to need.
    """

    data: str
    split: str = HET
    bits: int | None = None
    steps: int = 10
    rounds: int = 300
    cohort: int = 25
    scale: float = 1.0
    share: float = 1.0

    @property
    def name(self) -> str:
        """What tells it from the others."""
        parts = [
            self.data,
            self.split,
            "no compression" if self.bits is None else f"{self.bits} bit",
        ]
        parts += [f"E={self.steps}"] * (self.steps != 10) + [f"r={self.cohort}"] * (
            self.cohort != 25
        )
        return ", ".join(parts)

    def quantizer(self, vectors: int) -> Compressor | None:
        """For a method that sends one vector or two."""
        return None if self.bits is None else QSGD(self.bits * 2 // vectors)


def images(data: str, split: str, width: int, count: int | None, device: str = "cpu") -> Task:
    """The paper's model and data; `count` keeps so many of the training images, and half as many for tests."""
    found = sources.load(data, None)
    x, y, x_test, y_test = found.x, found.y, found.x_test, found.y_test
    if count is not None:
        x, y, x_test, y_test = x[:count], y[:count], x_test[: count // 2], y_test[: count // 2]
    owners = shards(y.numpy(), CLIENTS, 2) if split == HET else iid(y.numpy(), CLIENTS)
    model = image_model(f"mlp:{width}x{width}", tuple(x.shape[1:]), found.classes)
    return Task(
        model, "cross_entropy", (x, y), owners, test=(x_test, y_test), l2=1e-4, transform=Images.of(x),
        dtype=torch.float32, device=device, name=data,
    )  # fmt: skip


def _glomo(s: Setting, lr: Any) -> Algorithm[Any, Any]:
    damping = 0.8 if s.split == HET else 1.0
    return FedGLOMO(lr, beta=0.2, damping=damping, first_batch=256, compressor=s.quantizer(2))


def _lomo(s: Setting, lr: Any) -> Algorithm[Any, Any]:
    damping = 0.8 if s.split == HET else 1.0
    return FedLOMO(lr, damping=damping, first_batch=256, compressor=s.quantizer(1))


def _scm(momentum: float, s: Setting, lr: Any) -> Algorithm[Any, Any]:
    server = partial(torch.optim.SGD, lr=1.0, momentum=momentum)
    return FedPAQ(lr, momentum=0.9, server=server, compressor=s.quantizer(1))


def _mime(beta: float, s: Setting, lr: Any) -> Algorithm[Any, Any]:
    return Mime(lr, beta=beta, batch=256)


Maker = Callable[[Setting, Any], Algorithm[Any, Any]]
METHODS: Mapping[str, Mapping[str, Maker]] = {
    "FedPAQ-m": {"": lambda s, lr: FedPAQ(lr, momentum=0.9, compressor=s.quantizer(1))},
    "FedAvg-m": {"": lambda s, lr: FedAvg(lr, momentum=0.9)},
    "FedGLOMO": {"": _glomo},
    "FedLOMO": {"": _lomo},
    "FedCOMGATE": {"": lambda s, lr: FedCOMGATE(lr, compressor=s.quantizer(1))},
    "MimeSGDm": {f"β={b:g}": partial(_mime, b) for b in (0.0, 0.9, 0.99)},
    "FedPAQ-scm": {f"{m:g}": partial(_scm, m) for m in (0.9, 0.7, 0.5)},
}
"""The methods, with the variants of which the best is shown."""


class GlomoFigure(Recipe):
    """What the figures share. The first method is the baseline, whose final test error the others are to reach."""

    paper, data = "FedGLOMO", "fashion-mnist, cifar10"
    runs_on = "one H200"
    long = True
    columns = ("loss", "accuracy")
    readings: ClassVar[Mapping[str, Sequence[str]]] = {"batch": ("32", "64")}
    settings: ClassVar[Sequence[Setting]] = ()
    methods: ClassVar[Sequence[str]] = ("FedPAQ-m", "FedGLOMO")

    def planned(self, form: Form) -> list[Setting]:
        """The settings of a form: the quick one has a fifth of the rounds, and Fashion-MNIST alone where the figure has it."""
        if not form.quick:
            return list(self.settings)
        some = [s for s in self.settings if s.data == FMNIST] or self.settings
        return [replace(s, rounds=s.rounds // 5) for s in some]

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        seeds = form.seeds or (1 if form.quick else 3)
        for setting in self.planned(form):
            mine = done.where(setting=setting.name)
            for method in self.methods:
                first = mine.where(method=method, seed=0)
                grids = _grids(form, setting, method, first)
                for variant, lr in grids:
                    yield self.case(form, setting, method, variant, lr, 0)
                if len(first) < len(grids):
                    continue
                for variant, lr in ranked(first):
                    for seed in range(1, seeds):
                        yield self.case(form, setting, method, variant, lr, seed)
                    if not failed(mine.where(method=method), variant, lr):
                        break  # else the next best step size is the one to take

    def case(
        self, form: Form, setting: Setting, method: str, variant: str, lr: float, seed: int
    ) -> Case:
        """One training."""
        labels = {
            "setting": setting.name, "method": method, "variant": variant, "lr": lr, "seed": seed,
        }  # fmt: skip
        width, count = (
            (100, 10_000) if form.quick else (300 if setting.data == FMNIST else 600, None)
        )
        task = partial(images, setting.data, setting.split, width, count)
        made = METHODS[method][variant](setting, Exponential(lr, 0.99))
        return Case(labels, task, made, {
            "rounds": setting.rounds, "steps": setting.steps, "cohort": setting.cohort,
            "batch_size": int(self.reading(form, "batch")), "eval_every": math.ceil(setting.rounds / 50),
        })  # fmt: skip

    def conclude(self, form: Form, done: Results) -> Outcome:
        table, claims, found = [], [], {}
        for setting in self.planned(form):
            mine = done.where(setting=setting.name)
            entries = {
                m: best(mine.where(method=m)) for m in self.methods if len(mine.where(method=m))
            }
            if not entries:
                continue
            found[setting.name] = entries
            bits = 32 if setting.bits is None else 2 * setting.bits
            table += rows(setting.name, entries, self.methods[0], bits)
            tried = {m: mine.where(method=m, seed=0) for m in self.methods}
            if all(len(some) == len(_grids(form, setting, m, some)) for m, some in tried.items()):
                claims += self.claims(setting, entries)
        quick = ["quick form: two hidden layers of 100, 10,000 images, a fifth of the rounds, one seed, and the two step "
                 f"sizes {QUICK_GRID[0]:g} and {QUICK_GRID[1]:g}, so that a better one may lie outside"]  # fmt: skip
        return Outcome(table, claims, partial(draw, found), NOTES + quick * form.quick)

    def claims(self, setting: Setting, entries: Mapping[str, Entry]) -> list[Claim]:
        """What the paper says of a setting."""
        base, glomo = entries[self.methods[0]], entries["FedGLOMO"]
        return [
            *attained(setting.name, self.methods[0], base, glomo, setting.share),
            *self.more(setting, entries),
        ]

    def more(self, setting: Setting, entries: Mapping[str, Entry]) -> Iterator[Claim]:
        """What it says besides: that FedGLOMO is smoother where clients differ."""
        if setting.split == HET:
            yield smoother(setting.name, entries[self.methods[0]], entries["FedGLOMO"])


def _grids(form: Form, setting: Setting, method: str, tried: Results) -> list[tuple[str, float]]:
    """The variants of a method and their step sizes."""
    return [
        (variant, lr)
        for variant in METHODS[method]
        for lr in _grid(form, setting, tried.where(variant=variant))
    ]


def _grid(form: Form, setting: Setting, tried: Results) -> list[float]:
    """The step sizes to try, given those that were."""
    if form.quick:
        return [lr * setting.scale for lr in QUICK_GRID]
    grid, wider = list(GRID), list(WIDER)
    while len(tried) >= len(grid) and len(grid) < len(wider):
        seen = Results([r for r in tried if r.labels["lr"] in [lr * setting.scale for lr in grid]])
        if len(seen) < len(grid) or not (entry := best(seen)).edge:
            break
        low = entry.lr == min(grid) * setting.scale
        at = wider.index(grid[0]) - 1 if low else wider.index(grid[-1]) + 1
        if not 0 <= at < len(wider):
            break
        grid = (
            wider[at : wider.index(grid[-1]) + 1] if low else wider[wider.index(grid[0]) : at + 1]
        )
    return [lr * setting.scale for lr in grid]


class GlomoFig1(GlomoFigure):
    """FedGLOMO against FedPAQ with local momentum and FedLOMO at equal nominal bits, unequal and iid clients."""

    name, item = "glomo-fig1", "Figure 1"
    title = "FedGLOMO, figure 1: equal bits per round"
    minutes = (8, 15)
    methods = ("FedPAQ-m", "FedGLOMO", "FedLOMO")
    settings = tuple(
        Setting(data, split, bits, share=share)
        for data, bits in ((FMNIST, 2), (CIFAR, 4))
        for split, share in ((HET, 1 / 3), (HOM, 1 / 5))
    )

    def more(self, setting: Setting, entries: Mapping[str, Entry]) -> Iterator[Claim]:
        yield from super().more(setting, entries)
        yield ends(
            setting.name,
            "FedLOMO is the slowest",
            [(m, "FedLOMO") for m in self.methods[:2]],
            entries,
        )


class GlomoFig2(GlomoFigure):
    """FedAvg with momentum, FedGLOMO and MimeSGDm without compression, unequal clients."""

    name, item = "glomo-fig2", "Figure 2"
    title = "FedGLOMO, figure 2: no compression"
    minutes = (8, 10)
    methods = ("FedAvg-m", "FedGLOMO", "MimeSGDm")
    settings = (Setting(FMNIST), Setting(CIFAR))

    def more(self, setting: Setting, entries: Mapping[str, Entry]) -> Iterator[Claim]:
        yield ends(
            setting.name,
            "FedAvg-m is the slowest",
            [(m, "FedAvg-m") for m in self.methods[1:]],
            entries,
        )
        yield ends(
            setting.name,
            "FedGLOMO is somewhat faster than MimeSGDm",
            [("FedGLOMO", "MimeSGDm")],
            entries,
        )
        one = entries["FedAvg-m"].per_round("bits_up")
        copies = {m: e.per_round("bits") / one for m, e in entries.items()}
        text = "FedGLOMO exchanges 3 vectors of the model's size a client and round, MimeSGDm 4 or, with its momentum, 5"
        said = ", ".join(f"{m} {v:.2f}" for m, v in copies.items())
        good = [abs(copies["FedGLOMO"] - 3) < 0.05, 3.95 < copies["MimeSGDm"] < 5.05]
        yield judged(f"[{setting.name}] {text}", good, said)


class GlomoFig4(GlomoFigure):
    """Fewer bits: 1 against 2 on Fashion-MNIST, 3 against 6 on CIFAR-10."""

    name, item = "glomo-fig4", "Figure 4"
    title = "FedGLOMO, figure 4: fewer bits"
    minutes = (4, 7)
    settings = (Setting(FMNIST, bits=1, share=1 / 3), Setting(CIFAR, bits=3, share=1 / 3))


class GlomoFig5(GlomoFigure):
    """Fewer and more local steps at 3000 in all, 1 against 2 bit."""

    name, item, data = "glomo-fig5", "Figure 5", FMNIST
    title = "FedGLOMO, figure 5: local steps"
    minutes = (8, 25)
    settings = (
        Setting(FMNIST, bits=1, steps=5, rounds=600, scale=2.0, share=1 / 3),
        Setting(FMNIST, bits=1, steps=20, rounds=150, scale=0.5, share=0.7),
    )


class GlomoFig6(GlomoFigure):
    """Fewer clients a round on CIFAR-10, 4 against 8 bit."""

    name, item, data = "glomo-fig6", "Figure 6", CIFAR
    title = "FedGLOMO, figure 6: clients per round"
    minutes = (6, 7)
    settings = (
        Setting(CIFAR, bits=4, cohort=15, share=0.5),
        Setting(CIFAR, bits=4, cohort=5, share=0.8),
    )


class GlomoFig7(GlomoFigure):
    """FedCOMGATE's gradient tracking at equal nominal bits."""

    name, item = "glomo-fig7", "Figure 7"
    title = "FedGLOMO, figure 7: FedCOMGATE"
    minutes = (6, 7)
    methods = ("FedCOMGATE", "FedGLOMO", "FedPAQ-m")
    settings = (Setting(FMNIST, bits=4), Setting(CIFAR, bits=4))

    def more(self, setting: Setting, entries: Mapping[str, Entry]) -> Iterator[Claim]:
        glomo, gate = entries["FedGLOMO"], entries["FedCOMGATE"]
        if setting.data == FMNIST:
            yield ends(
                setting.name,
                "FedGLOMO ends better than FedCOMGATE",
                [("FedGLOMO", "FedCOMGATE")],
                entries,
            )
            return
        gap = abs(glomo.final("error") - gate.final("error"))
        yield judged(
            f"[{setting.name}] FedGLOMO and FedCOMGATE have similar test errors (within one percent point)", [gap < 0.01],
            f"{100 * glomo.final('error'):.1f} % and {100 * gate.final('error'):.1f} %", void=glomo.edged or gate.edged,
        )  # fmt: skip
        third = len(gate.mean("loss")) // 3
        early = [float(e.mean("loss")[: third + 1][-1]) for e in (gate, glomo)]
        late = [e.final("loss") for e in (gate, glomo)]
        yield judged(
            f"[{setting.name}] FedCOMGATE's train loss is lower at first, FedGLOMO's at the end",
            [early[0] < early[1], late[1] < late[0]],
            f"FedCOMGATE {early[0]:.3f} and FedGLOMO {early[1]:.3f} after a third, {late[0]:.3f} and {late[1]:.3f} at the end",
            void=glomo.edged or gate.edged,
        )  # fmt: skip


class GlomoFig8(GlomoFigure):
    """Momentum of torch's kind at the server and at clients (FedPAQ-scm), unequal clients."""

    name, item = "glomo-fig8", "Figure 8"
    title = "FedGLOMO, figure 8: server momentum, unequal clients"
    minutes = (8, 8)
    methods = ("FedPAQ-scm", "FedGLOMO")
    settings: ClassVar[Sequence[Setting]] = (Setting(FMNIST, bits=2), Setting(CIFAR, bits=4))

    def more(self, setting: Setting, entries: Mapping[str, Entry]) -> Iterator[Claim]:
        yield ends(
            setting.name,
            "FedGLOMO ends better than FedPAQ-scm",
            [("FedGLOMO", "FedPAQ-scm")],
            entries,
        )
        yield smoother(setting.name, entries["FedPAQ-scm"], entries["FedGLOMO"])


class GlomoFig9(GlomoFig8):
    """Momentum of torch's kind at the server and at clients (FedPAQ-scm), iid clients."""

    name, item = "glomo-fig9", "Figure 9"
    title = "FedGLOMO, figure 9: server momentum, iid clients"
    settings = (Setting(FMNIST, HOM, 2), Setting(CIFAR, HOM, 4))
