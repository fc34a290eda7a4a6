"""FedGLOMO's figures 3 and 10: α/n of Assumption 4 along a run, which the theory needs to be far below 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fairlead.methods import FedPAQ
from fairlead.probe import Alpha
from fairlead.schedules import Exponential
from fairlead.study.reproduce.case import Case, Form, Results
from fairlead.study.reproduce.experiments.glomo_figures import (
    CIFAR,
    FMNIST,
    HET,
    HOM,
    METHODS,
    Maker,
    Setting,
    images,
)
from fairlead.study.reproduce.outcome import Claim, Outcome, judged
from fairlead.study.reproduce.recipe import Recipe

SHARE = "alpha/share"
BOUNDS = {(FMNIST, HET): 0.06, (CIFAR, HET): 0.06, (FMNIST, HOM): 0.02, (CIFAR, HOM): 0.03}
"""What the paper reads off its figures."""
EVERY = 10
"""Rounds between measurements."""
NOTES = [
    "α is measured with all clients in a trial round that changes nothing, with gradients on all local data, as the largest "
    "ratio over local steps 2 to E: in the first step all clients are at the same point and it is 0/0",
    "the paper does not say which step size these figures have: η_0 = 0.01, its best in almost all cases",
]


class GlomoAlpha(Recipe):
    """What both figures share."""

    paper, data = "FedGLOMO", "fashion-mnist, cifar10"
    runs_on = "one H200"
    long = True
    columns = (SHARE, "accuracy")
    readings: ClassVar[Mapping[str, Sequence[str]]] = {
        "batch": ("32", "64"),
        "step": ("0.01", "0.05"),
    }
    method: ClassVar[str]
    make: ClassVar[Maker]
    rounds = 300

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        step = float(self.reading(form, "step"))
        for data, bits in ((FMNIST, 2),) if form.quick else ((FMNIST, 2), (CIFAR, 4)):
            width, count = (100, 10_000) if form.quick else (300 if data == FMNIST else 600, None)
            for split in (HET, HOM):
                setting = Setting(data, split, bits)
                work: dict[str, Any] = {
                    "rounds": self.rounds // 5 if form.quick else self.rounds, "steps": setting.steps,
                    "cohort": setting.cohort, "batch_size": int(self.reading(form, "batch")),
                    "eval_every": EVERY, "objective": False, "measures": (Alpha(),),
                }  # fmt: skip
                task = partial(images, data, split, width, count)
                for seed in range(form.seeds or 1):
                    labels = {"data": data, "split": split, "method": self.method, "seed": seed}
                    made = type(self).make(setting, Exponential(step, 0.99))
                    yield Case(labels, task, made, work)

    def conclude(self, form: Form, done: Results) -> Outcome:
        rows, claims = [], []
        for data, some in done.by("data").items():
            found = {split: _curve(mine) for split, mine in some.by("split").items()}
            for split, (at, share) in found.items():
                claims.append(_below(data, split, at, share))
                rows.append({
                    "data": data, "clients": split, "method": self.method, "paper": f"below {BOUNDS[data, split]:g}",
                    "largest α/n": f"{share.max():.4f}", "median": f"{np.median(share):.4f}",
                    "first": f"{share[0]:.4f}", "last": f"{share[-1]:.4f} (round {at[-1]:g})",
                })  # fmt: skip
            if len(found) == 2:
                claims.append(_higher(data, found[HET][1], found[HOM][1]))
        quick = ["quick form: Fashion-MNIST, two hidden layers of 100, 10,000 images, 60 rounds"]
        return Outcome(rows, claims, partial(_draw, done), NOTES + quick * form.quick)


def _curve(some: Results) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rounds, and the mean of α/n over seeds."""
    share = np.mean([np.asarray(r.curve[SHARE], float) for r in some], 0)
    return np.asarray(some[0].curve["round"], float), share


def _below(data: str, split: str, at: NDArray[np.float64], share: NDArray[np.float64]) -> Claim:
    bound = BOUNDS[data, split]
    below = int((share < bound).sum())
    found = f"between {share.min():.4f} and {share.max():.4f}, the largest in round {at[share.argmax()]:g}"
    return judged(
        f"[{data}, {split}] α/n is below {bound:g} for most of the run", [below > len(share) / 2],
        f"in {below} of {len(share)} measured rounds, {found}", "another step size or batch",
    )  # fmt: skip


def _higher(data: str, unequal: NDArray[np.float64], equal: NDArray[np.float64]) -> Claim:
    """The paper excepts the end of training on Fashion-MNIST: the last third is left out there."""
    until = len(unequal) * 2 // 3 if data == FMNIST else len(unequal)
    place = "in the first two thirds of training" if data == FMNIST else "throughout"
    pairs = list(zip(unequal[:until], equal[:until], strict=True))
    return judged(
        f"[{data}] α/n is higher for unequal clients {place}", [bool(a > b) for a, b in pairs],
        f"medians {np.median([a for a, _ in pairs]):.4f} and {np.median([b for _, b in pairs]):.4f}",
    )  # fmt: skip


def _draw(done: Results, path: Path) -> None:
    from fairlead.figures.style import panels

    sets = done.by("data")
    with panels(path, rows=1, columns=len(sets), share_y=True) as axes:
        for panel, (data, some) in zip(axes[0], sets.items(), strict=True):
            for split, mine in some.by("split").items():
                panel.plot(*_curve(mine), marker=".", label=split)
            panel.set(title=f"{data}, {some[0].labels['method']}", xlabel="rounds")
        axes[0][0].set_ylabel("α/n")
        axes[0][0].legend(fontsize=7)


class GlomoFig3(GlomoAlpha):
    """α/n of Assumption 4 over the rounds of FedGLOMO, unequal and iid clients."""

    name, item = "glomo-fig3", "Figure 3"
    title = "FedGLOMO, figure 3: α/n of FedGLOMO"
    minutes = (4, 10)
    method, make = "FedGLOMO", METHODS["FedGLOMO"][""]


class GlomoFig10(GlomoAlpha):
    """α/n of Assumption 6 over the rounds of FedAvg with compression, unequal and iid clients."""

    name, item = "glomo-fig10", "Figure 10"
    title = "FedGLOMO, figure 10: α/n of FedAvg"
    minutes = (3, 8)
    method = "FedAvg"

    @staticmethod
    def make(setting: Setting, lr: Any) -> FedPAQ:
        """FedAvg with as many nominal bits as FedGLOMO."""
        return FedPAQ(lr, compressor=setting.quantizer(1))
