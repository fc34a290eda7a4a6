"""FedPVR's figures: drift and features by layer, where variance reduction starts, and the splits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.core.method import Algorithm
from fairlead.data.splits import SPLITS
from fairlead.engine.simulate import Simulate
from fairlead.methods import FedAvg, FedPVR, Scaffold
from fairlead.probe import CKA
from fairlead.study.reproduce.case import Case, Form, Results
from fairlead.study.reproduce.experiments.pvr_tables import GOAL, LEARNT, STEPS, cifar
from fairlead.study.reproduce.outcome import Outcome, judged
from fairlead.study.reproduce.recipe import Recipe

QUICK = {"rounds": 8, "epochs": 2, "batch_size": 64, "objective": False}
FULL = {
    "epochs": 10,
    "batch_size": 256,
    "objective": False,
    "engine": Simulate(precision="bfloat16"),
}
LAYERS = {"vgg11": "20.weight", "resnet8": "8.weight"}
"""The classifier's weights."""


def _late(result: Any, column: str) -> float:
    """The mean of the second half of a curve."""
    values = np.array(result.curve.get(column, [math.nan]), float)
    return float(np.nanmean(values[len(values) // 2 :]))


class PvrFig2(Recipe):
    """Drift diversity and CKA of the clients' models by layer, with FedAvg at α = 0.1 and 100."""

    name, paper, item, data = "pvr-fig2", "FedPVR", "Figure 2", "cifar10"
    title = "FedPVR, figure 2: drift diversity and CKA by layer"
    minutes, runs_on, long = (4, 10), "one H200", True
    columns = ("accuracy", "drift*", "cka*")

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        model = "resnet8" if form.quick else "vgg11"
        settings: dict[str, Any] = dict(QUICK) if form.quick else {"rounds": 30, **FULL}
        settings |= {"drift": True, "measures": [CKA(clients=5, samples=64)]}
        for alpha in (0.1, 100.0):
            task = partial(cifar, model, alpha, "dirichlet-balanced", 2000 if form.quick else None)
            labels = {"model": model, "alpha": alpha, "seed": 0}
            yield Case(labels, task, FedAvg(STEPS[model, 0.1]["FedAvg"]), settings)

    def conclude(self, form: Form, done: Results) -> Outcome:
        rows, claims = [], []
        model = "resnet8" if form.quick else "vgg11"
        by = {r.labels["alpha"]: r for r in done}
        for alpha, r in by.items():
            names = [
                name[6:]
                for name in r.curve
                if name.startswith("drift/") and name.endswith("weight")
            ]
            rows += [
                {"α": f"{alpha:g}", "layer": n, "ξ": f"{_late(r, f'drift/{n}'):.3g}",
                 "CKA": f"{_late(r, 'cka/' + n.rpartition('.')[0]):.3g}"}
                for n in names
            ]  # fmt: skip
        if {0.1, 100.0} <= set(by):
            last = f"drift/{_classifier(model, by[0.1].curve)}"
            xi = {a: _late(r, last) for a, r in by.items()}
            rest = [
                _late(by[0.1], n)
                for n in by[0.1].curve
                if n.startswith("drift/") and n.endswith("weight") and n != last
            ]
            claims.append(judged(
                "at α = 0.1 the classifier drifts apart most", [xi[0.1] > v for v in rest],
                f"ξ of the classifier {xi[0.1]:.3g}, of the others at most {max(rest):.3g}",
            ))  # fmt: skip
            claims.append(judged(
                "the classifier drifts apart more at α = 0.1 than at 100", [xi[0.1] > xi[100.0]],
                f"{xi[0.1]:.3g} against {xi[100.0]:.3g}",
            ))  # fmt: skip
            features = [n for n in by[0.1].curve if n.startswith("cka/")]
            low = {n: _late(by[0.1], n) for n in features}
            claims.append(judged(
                "at α = 0.1 the classifier has the lowest CKA", [low[features[-1]] <= low[n] for n in features[:-1]],
                ", ".join(f"{n[4:]} {v:.2f}" for n, v in low.items()),
            ))  # fmt: skip
        return Outcome(rows, claims, partial(_draw_layers, done, "alpha"))


def _classifier(model: str, curve: Any) -> str:
    """The last layer with weights."""
    names = [name[6:] for name in curve if name.startswith("drift/") and name.endswith("weight")]
    return names[-1] if names else LAYERS[model]


class PvrFig4(Recipe):
    """Drift diversity by layer and accuracy of FedAvg, SCAFFOLD and FedPVR; CIFAR-10 at α = 0.5 in place of CIFAR-100."""

    name, paper, item, data = "pvr-fig4", "FedPVR", "Figure 4", "cifar10"
    title = "FedPVR, figure 4: drift diversity by layer and accuracy"
    minutes, runs_on, long = (4, 6), "one H200", True
    columns = ("accuracy", "drift*")

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        lr = STEPS["resnet8", 0.5]
        task = partial(cifar, "resnet8", 0.5, "dirichlet-balanced", 2000 if form.quick else None)
        settings: dict[str, Any] = dict(QUICK) if form.quick else {"rounds": 40, **FULL}
        methods: dict[str, Algorithm[Any, Any]] = {
            "FedAvg": FedAvg(lr["FedAvg"]), "SCAFFOLD": Scaffold(lr["SCAFFOLD"]),
            "FedPVR": FedPVR(lr["FedPVR"], layers=-1),
        }  # fmt: skip
        for method, made in methods.items():
            yield Case({"method": method, "seed": 0}, task, made, {**settings, "drift": True})

    def conclude(self, form: Form, done: Results) -> Outcome:
        by = {str(r.labels["method"]): r for r in done}
        rows, xi, feature = [], {}, {}
        for method, r in by.items():
            last = f"drift/{_classifier('resnet8', r.curve)}"
            others = [
                n for n in r.curve if n.startswith("drift/") and n.endswith("weight") and n != last
            ]
            xi[method], feature[method] = (
                _late(r, last),
                float(np.mean([_late(r, n) for n in others])),
            )
            rows.append({"method": method, "ξ of the classifier": f"{xi[method]:.3g}",
                         "ξ of the other layers": f"{feature[method]:.3g}",
                         "accuracy": f"{100 * r.end['accuracy']:.1f} %"})  # fmt: skip
        claims = []
        if len(by) == 3:
            claims.append(judged(
                "the classifier's ξ: FedAvg > SCAFFOLD > FedPVR",
                [xi["FedAvg"] > xi["SCAFFOLD"], xi["SCAFFOLD"] > xi["FedPVR"]], str({m: round(v, 3) for m, v in xi.items()}),
                "the paper shows CIFAR-100",
            ))  # fmt: skip
            claims.append(judged(
                "the other layers' ξ is larger with FedPVR than with SCAFFOLD", [feature["FedPVR"] > feature["SCAFFOLD"]],
                f"{feature['FedPVR']:.3g} against {feature['SCAFFOLD']:.3g}",
            ))  # fmt: skip
        return Outcome(rows, claims, partial(_draw_layers, done, "method"))


class PvrFig5(Recipe):
    """Accuracy against rounds with variance reduction from different layers on; VGG-11, with and without momentum."""

    name, paper, item, data = "pvr-fig5", "FedPVR", "Figure 5", "cifar10"
    title = "FedPVR, figure 5: where variance reduction starts"
    minutes, runs_on, long = (7, 25), "one H200", True
    columns = ("accuracy",)
    targets = {"accuracy": (0.5, 0.6, GOAL)}
    model, starts, alpha = "vgg11", (0, 4, 8, 12, 16, 20), 0.5
    quick: tuple[str, dict[str, Any]] = (
        "vgg11/4",
        {"rounds": 20, "epochs": 2, "batch_size": 16, "objective": False},
    )
    """The model and settings of the quick form."""
    quick_note = (
        "quick form: VGG-11 with a quarter of its channels and hidden units, since the whole one takes two cores 7 s a round and "
        "is at chance without momentum after 100 local steps; 2,000 training images, 2 epochs with batches of 16, 20 rounds; accuracies lie far below the paper's"
    )

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        lr = STEPS[self.model, self.alpha]
        model, settings = self.quick if form.quick else (self.model, {"rounds": 30, **FULL})
        images = 2000 if form.quick else None
        task = partial(cifar, model, self.alpha, "dirichlet-balanced", images)
        for momentum, scale in ((0.0, 1.0), (0.9, 0.1)):
            for start in (*self.starts, "none"):
                eta = lr["FedPVR" if start != "none" else "FedAvg"] * scale
                method: Algorithm[Any, Any] = (
                    FedAvg(eta, momentum=momentum)
                    if start == "none"
                    else FedPVR(eta, layers=f"from:{start}", momentum=momentum)
                )
                labels = {"start": start, "momentum": momentum, "lr": eta, "seed": 0}
                yield Case(labels, task, method, settings)

    def conclude(self, form: Form, done: Results) -> Outcome:
        rows, claims = [], []
        for momentum, some in done.by("momentum").items():
            area, best, shown = {}, {}, {}
            for r in some:
                start, lost = r.labels["start"], r.stopped == "diverged"
                area[start] = 0.0 if lost else float(np.nanmean(r.curve["accuracy"]))
                best[start] = r.best["accuracy"]
                shown[start] = "diverged" if lost else f"{100 * area[start]:.1f} %"
                goal = {} if form.quick else {"rounds to 66 %": _rounds(r)}
                rows.append({
                    "momentum": f"{momentum:g}", "from tensor": str(start), **goal,
                    "best accuracy": f"{100 * best[start]:.1f} %", "mean accuracy": shown[start],
                })  # fmt: skip
            order = [area[s] for s in self.starts if s in area]
            chance = "no case learnt enough to be compared"
            claims.append(judged(
                f"[momentum {momentum:g}] the later it starts the faster", [b > a for a, b in pairwise(order)],
                "mean accuracy over rounds " + ", ".join(f"{s}: {v}" for s, v in shown.items()), "one seed",
                "" if max((best[s] for s in self.starts if s in best), default=1.0) > LEARNT else chance,
            ))  # fmt: skip
            if "none" in area:
                claims.append(judged(
                    f"[momentum {momentum:g}] no variance reduction is worst", [v > area["none"] for v in order],
                    f"none: {shown['none']}", "one seed",
                    "" if max(best.values()) > LEARNT else chance,
                ))  # fmt: skip
        notes = ["with momentum on the layers that are not variance-reduced, their number changes with the start: shown both ways",
                 "momentum 0.9 goes with a tenth of the step size"]  # fmt: skip
        if form.quick:
            notes.append(self.quick_note)
        return Outcome(rows, claims, partial(_draw_starts, done), notes)


class PvrFigC2(PvrFig5):
    """Accuracy against rounds with variance reduction from different layers on; ResNet-8."""

    name, item = "pvr-figC2", "Figure C.2"
    title = "FedPVR, figure C.2: where variance reduction starts, ResNet-8"
    minutes = (6, 25)
    model, starts = "resnet8", (0, 9, 18, 27)
    quick = ("resnet8", QUICK)
    quick_note = "quick form: 2,000 training images, 2 epochs with batches of 64, 8 rounds"


class PvrFigC1(Recipe):
    """Images per client and class for Dirichlet splits of CIFAR-10's labels, in three variants."""

    name, paper, item = "pvr-figC1", "FedPVR", "Figure C.1"
    title = "FedPVR, figures 2a and C.1: Dirichlet splits"
    minutes = (0.1, 0.1)
    kinds = ("dirichlet", "dirichlet-balanced", "dirichlet-sliced")

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        for kind in self.kinds:
            for alpha in (0.1, 0.5, 1.0, 100.0):
                yield Case(
                    {"split": kind, "alpha": alpha}, compute=partial(_split_table, kind, alpha)
                )

    def conclude(self, form: Form, done: Results) -> Outcome:
        rows, claims = [], []
        for kind, some in done.by("split").items():
            spread = {}
            for r in some:
                table = np.array(r.numbers["table"])
                shares = table / table.sum(1, keepdims=True)
                spread[r.labels["alpha"]] = float(np.abs(shares - 0.1).sum(1).mean() / 2)
                rows.append({
                    "split": kind, "α": f"{r.labels['alpha']:g}", "classes per client": f"{(table > 0).sum(1).mean():.1f}",
                    "images per client": f"{table.sum(1).min():,} to {table.sum(1).max():,}",
                    "distance to equal shares": f"{spread[r.labels['alpha']]:.2f}",
                })  # fmt: skip
            values = [spread[a] for a in sorted(spread)]
            claims.append(judged(f"[{kind}] the smaller α, the more clients differ", [a > b for a, b in pairwise(values)],
                                 "total variation to equal shares falls with α"))  # fmt: skip
        return Outcome(rows, claims, partial(_draw_bubbles, done))


def _split_table(kind: str, alpha: float) -> dict[str, Any]:
    labels = np.repeat(np.arange(10), 5000)
    return {"table": SPLITS[kind](labels, 10, alpha, 0).table(labels).tolist()}


def _rounds(result: Any) -> str:
    found = result.cost("accuracy", GOAL)
    return f"{found:g}" if found < math.inf else "not reached"


def _draw_layers(done: Results, label: str, path: Path) -> None:
    from fairlead.figures.style import panels

    with panels(path, rows=1, columns=len(done) + 1, share_y=False) as axes:
        for panel, r in zip(axes[0], done, strict=False):
            names = [n for n in r.curve if n.startswith("drift/") and n.endswith("weight")]
            # seven layers, as the paper shows, from the first to the classifier
            for at in np.unique(np.linspace(0, len(names) - 1, 7).round().astype(int)):
                name = names[at]
                panel.plot(r.curve["round"], r.curve[name], label=name[6:-7])
            panel.set_yscale("log")
            panel.set_title(f"ξ by layer, {label} {r.labels[label]}")
            panel.set_xlabel("rounds")
        axes[0][0].legend(fontsize=6)
        for r in done:
            axes[0][-1].plot(
                r.curve["round"], r.curve["accuracy"], label=f"{label} {r.labels[label]}"
            )
        axes[0][-1].set_title("test accuracy")
        axes[0][-1].legend(fontsize=7)


def _draw_starts(done: Results, path: Path) -> None:
    from fairlead.figures.style import panels

    groups = done.by("momentum")
    with panels(path, rows=1, columns=len(groups), share_y=True) as axes:
        for panel, (momentum, some) in zip(axes[0], groups.items(), strict=True):
            for r in some:
                start = r.labels["start"]
                label = "none (FedAvg)" if start == "none" else f"from {start}"
                panel.plot(r.curve["round"], r.curve["accuracy"], label=label)
            panel.set_title(f"momentum {momentum:g}")
            panel.set_xlabel("rounds")
        axes[0][0].set_ylabel("test accuracy")
        axes[0][0].legend(fontsize=7)


def _draw_bubbles(done: Results, path: Path) -> None:
    from fairlead.figures.style import panels

    groups = done.by("split")
    with panels(path, rows=len(groups), columns=4, share_y=True) as axes:
        for row, (kind, some) in zip(axes, groups.items(), strict=True):
            for panel, r in zip(row, some, strict=False):
                table = np.array(r.numbers["table"])
                client, label = np.meshgrid(
                    np.arange(table.shape[0]), np.arange(table.shape[1]), indexing="ij"
                )
                panel.scatter(client, label, s=table / 40)
                panel.set_title(f"{kind}, α = {r.labels['alpha']:g}", fontsize=8)
            row[0].set_ylabel("class")
        for panel in axes[-1]:
            panel.set_xlabel("client")
