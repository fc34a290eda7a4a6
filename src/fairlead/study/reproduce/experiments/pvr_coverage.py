"""FedPVR's figure 3: sets of labels that cover the true one, after training with each method."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.core.method import Algorithm
from fairlead.engine.simulate import Simulate
from fairlead.measure import conformal
from fairlead.methods import FedAvg, FedProx, FedPVR, Scaffold
from fairlead.run.train import Run
from fairlead.study.reproduce.case import Case, Form, Result, Results
from fairlead.study.reproduce.experiments.pvr_tables import LAST, STEPS, cifar
from fairlead.study.reproduce.outcome import Outcome, judged
from fairlead.study.reproduce.recipe import Recipe

ALPHA = 0.1
CENTRAL = "centralised"
TOP = "most probable label alone"


def coverage(run: Run) -> dict[str, Any]:
    """The curve of coverage against mean set size, and the accuracy of the most probable label."""
    found = conformal(run, kind="threshold")
    return {
        "kappa": found.kappas.tolist(), "coverage": found.coverage.tolist(), "size": found.size.tolist(),
        "accuracy": found.accuracy, "calibration": found.calibration, "test": found.test,
    }  # fmt: skip


def size_for(result: Result, level: float) -> float | None:
    """The smallest mean size of a set at which coverage reaches a level."""
    covered, size = np.array(result.numbers["coverage"]), np.array(result.numbers["size"])
    good = size[covered >= level]
    return float(good.min()) if len(good) else None


class PvrFig3(Recipe):
    """Coverage against mean set size of the final models at α = 0.1, beside the accuracy of centralised training."""

    name, paper, item, data = "pvr-fig3", "FedPVR", "Figure 3", "cifar10"
    title = "FedPVR, figure 3: coverage of prediction sets against their size"
    minutes, runs_on, long = (6, 12), "one H200", True
    columns = ("accuracy",)

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        model, images = ("resnet8", 2000) if form.quick else ("vgg11", None)
        lr = STEPS[model, ALPHA]
        settings: dict[str, Any] = (
            {"rounds": 15, "epochs": 2, "batch_size": 64, "objective": False}
            if form.quick
            else {"rounds": 80, "epochs": 10, "batch_size": 256, "objective": False,
                  "engine": Simulate(precision="bfloat16")}
        )  # fmt: skip
        methods: dict[str, Algorithm[Any, Any]] = {
            "FedAvg": FedAvg(lr["FedAvg"]), "FedProx μ=0.1": FedProx(lr["FedAvg"], mu=0.1),
            "SCAFFOLD": Scaffold(lr["SCAFFOLD"]), "FedPVR": FedPVR(lr["FedPVR"], layers=LAST[model]),
            "FedPVR, momentum": FedPVR(lr["FedPVR"] / 10, layers=LAST[model], momentum=0.9),
        }  # fmt: skip
        for seed in range(form.seeds or 1):
            for method, made in methods.items():
                task = partial(cifar, model, ALPHA, "dirichlet-balanced", images)
                labels = {"method": method, "seed": seed}
                yield Case(labels, task, made, settings, after=coverage)
            task = partial(cifar, model, 1.0, "one", images)
            labels = {"method": CENTRAL, "seed": seed}
            yield Case(labels, task, FedAvg(lr["FedAvg"]), settings, after=coverage)

    def conclude(self, form: Form, done: Results) -> Outcome:
        central = done.where(method=CENTRAL)
        level = central.mean(lambda r: r.numbers["accuracy"]) if len(central) else None
        rows, sizes = [], {}
        for r in done:
            size = None if level is None else size_for(r, level)
            if r.labels["method"] != CENTRAL:
                sizes.setdefault(str(r.labels["method"]), []).append(size)
            rows.append({
                "method": str(r.labels["method"]), TOP: f"{100 * r.numbers['accuracy']:.1f} %",
                "mean set size that covers as often as centralised training is right":
                    "none" if size is None else f"{size:.2f}",
                "coverage and size at κ = 0.1": _at(r, 0.1),
            })  # fmt: skip
        claims = []
        if level is not None and sizes:
            said = ", ".join(f"{m} {_shown(s)}" for m, s in sizes.items())
            every = [size is not None for some in sizes.values() for size in some]
            claims.append(judged(
                f"each method covers {100 * level:.1f} %, the accuracy of centralised training, at some set size", every, f"sizes: {said}",
            ))  # fmt: skip
            mean = {m: float(np.mean(s)) for m, s in sizes.items() if None not in s}
            pvr = min((v for m, v in mean.items() if m.startswith("FedPVR")), default=None)
            others = [v for m, v in mean.items() if not m.startswith("FedPVR")]
            if pvr is not None and others:
                claims.append(judged(
                    "FedPVR needs the smallest sets, or is level within 2 %", [pvr <= 1.02 * v for v in others], f"sizes: {said}",
                    "one seed decides little" if len(central) < 3 else "",
                ))  # fmt: skip
        notes = ["sets by the threshold rule, calibrated on half of the test images and judged on the other half",
                 "models are trained here as for table 3, with the authors' step sizes; FedPVR with momentum 0.9 at a tenth of its step"]  # fmt: skip
        if form.quick:
            notes.append("quick form: ResNet-8, 2,000 training images, 2 epochs with batches of 64, 15 rounds")  # fmt: skip
        return Outcome(rows, claims, partial(_draw, done, level), notes)


def _shown(sizes: list[float | None]) -> str:
    return "/".join("none" if size is None else f"{size:.2f}" for size in sizes)


def _at(result: Result, kappa: float) -> str:
    k = result.numbers["kappa"].index(kappa)
    return f"{100 * result.numbers['coverage'][k]:.1f} %, {result.numbers['size'][k]:.2f} labels"


def _draw(done: Results, level: float | None, path: Path) -> None:
    from fairlead.figures.style import panels

    with panels(path, rows=1, columns=1, share_y=False) as axes:
        panel = axes[0][0]
        for r in done.where(seed=0):
            panel.plot(
                r.numbers["size"], r.numbers["coverage"], label=r.labels["method"], marker="."
            )
        if level is not None:
            panel.axhline(level, linestyle=":", color="black", linewidth=1)
        panel.set_xlabel("mean number of labels in a set")
        panel.set_ylabel("share of sets with the true label")
        panel.legend(fontsize=7)
