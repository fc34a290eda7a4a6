"""SCAFFOLD's experiment on two quadratics (figure 3)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.core.method import Algorithm
from fairlead.methods import FedAvg, MinibatchSGD, Scaffold
from fairlead.study.reproduce.case import Case, Form, Results, tuned
from fairlead.study.reproduce.outcome import Claim, Outcome, judged
from fairlead.study.reproduce.recipe import Recipe
from fairlead.task.problems import theorem2

GOAL = 1e-6
ROUNDS = 50


def _methods(lr: float, warm: bool) -> dict[tuple[str, int], Algorithm[Any, Any]]:
    """Method and local steps of every curve."""
    made: dict[tuple[str, int], Algorithm[Any, Any]] = {("SGD", 1): MinibatchSGD(lr)}
    for K in (2, 10):
        made["FedAvg", K] = FedAvg(lr)
        made["SCAFFOLD", K] = Scaffold(lr, warm_start=warm)
    return made


class ScaffoldFig3(Recipe):
    """f − f* against rounds on the pair of Theorem II, with growing gradient dissimilarity G."""

    name = "scaffold-fig3"
    title = "SCAFFOLD, figure 3: simulated data"
    paper, item = "SCAFFOLD", "Figure 3"
    minutes = (0.3, 0.3)
    columns = ("gap",)
    targets = {"gap": (GOAL,)}

    GRIDS = {
        "common step 0.1": (0.1,),
        "tuned up to 0.1": (0.1, 0.03, 0.01, 0.003, 0.001),
        "tuned freely": (3.0, 1.9, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001),
    }

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        for G in (1.0, 10.0, 100.0):
            task = partial(theorem2, gradient=G, start=1.0)
            for start in ("zero", "warm"):
                for lr in self.GRIDS["tuned freely"]:
                    for (method, K), made in _methods(lr, start == "warm").items():
                        if start == "warm" and method != "SCAFFOLD":
                            continue
                        labels = {"method": method, "K": K, "G": G, "start": start, "lr": lr}
                        settings = {"rounds": 100, "steps": K, "target": {"gap": 1e-12}}
                        yield Case(labels, task, made, settings)

    def conclude(self, form: Form, done: Results) -> Outcome:
        rows, found, final = [], {}, {}
        for reading, grid in self.GRIDS.items():
            allowed = Results([r for r in done if r.labels["lr"] in grid])
            for start, begun in allowed.by("start").items():
                for method, mine in begun.by("method").items():
                    for K, curves in mine.by("K").items():
                        name = f"{method}, K = {K}" if method != "SGD" else method
                        name += ", warm start" if start == "warm" else ""
                        row = {"step": reading, "method": name}
                        for G, some in curves.by("G").items():
                            best = tuned(some, "gap", GOAL, higher=False)
                            found[reading, name, G] = best.results[0].cost("gap", GOAL)
                            final[reading, name, G] = best.results[0].end["gap"]
                            row[f"G = {G:g}"] = _shown(best.results[0], best.lr)
                        rows.append(row)
        return Outcome(rows, _claims(found, final), partial(_draw, done), [
            f"rounds until f − f* ≤ {GOAL:g}, or the final f − f* in brackets, with the step size; start at x = 1",
            "the paper gives no step sizes: one common step, the best up to 0.1, and the best of a wide grid",
            "the paper does not say how c_i starts: both zero and the gradients at x⁰ (warm)",
        ])  # fmt: skip


def _shown(result: Any, lr: float) -> str:
    rounds = result.cost("gap", GOAL)
    text = f"{rounds:g}" if rounds < math.inf else f"({result.end['gap']:.0e})"
    return f"{text} at {lr:g}"


def _claims(found: dict[Any, float], final: dict[Any, float]) -> list[Claim]:
    claims = []
    for reading in ScaffoldFig3.GRIDS:
        r = {(name, G): v for (read, name, G), v in found.items() if read == reading}
        Gs = (1.0, 10.0, 100.0)
        names = ["SGD", *(f"FedAvg, K = {K}" for K in (2, 10))]
        names += [f"SCAFFOLD, K = {K}{start}" for K in (2, 10) for start in ("", ", warm start")]
        if any((name, G) not in r for name in names for G in Gs):
            continue  # only a part was run

        def said(name: str, r: dict[Any, float] = r) -> str:
            return f"{name}: " + ", ".join(f"{r[name, G]:g}" for G in (1.0, 10.0, 100.0))

        gap = {K: [final[reading, f"FedAvg, K = {K}", G] for G in Gs] for K in (2, 10)}
        slower = [more > less for more, less in zip(gap[10], gap[2], strict=True)]
        slower += [b > a for K in (2, 10) for a, b in pairwise(gap[K])]
        claims.append(judged(
            f"[{reading}] FedAvg slows down as K and G grow", slower,
            "f − f* at the end for G = 1, 10, 100: "
            + "; ".join(f"K = {K}: {', '.join(f'{v:.1e}' for v in gap[K])}" for K in gap),
        ))  # fmt: skip
        for start in ("", ", warm start"):
            even = [len({r[f"SCAFFOLD, K = {K}{start}", G] for G in Gs}) == 1 for K in (2, 10)]
            claims.append(judged(
                f"[{reading}] SCAFFOLD{start} is not affected by G", even,
                f"{said(f'SCAFFOLD, K = 2{start}')}; {said(f'SCAFFOLD, K = 10{start}')}",
                "c_i = 0 at the start makes the first round FedAvg's" if not start else "",
            ))  # fmt: skip
        ratios = {K: r["SGD", 1.0] / r[f"SCAFFOLD, K = {K}, warm start", 1.0] for K in (2, 10)}
        claims.append(judged(
            f"[{reading}] SCAFFOLD is about 2 × (K = 2) and 5 × (K = 10) faster than SGD",
            [1.5 <= ratios[2] <= 2.7, 3.5 <= ratios[10] <= 8],
            f"{ratios[2]:.2g} × and {ratios[10]:.2g} ×, warm start", "the step sizes, which the paper does not give",
        ))  # fmt: skip
    return claims


def _draw(done: Results, path: Path) -> None:
    from fairlead.figures.style import panels

    with panels(path, rows=1, columns=3, share_y=True) as axes:
        for panel, G in zip(axes[0], (1.0, 10.0, 100.0), strict=True):
            for method, K, start in (
                ("SGD", 1, "zero"), ("FedAvg", 2, "zero"), ("FedAvg", 10, "zero"),
                ("SCAFFOLD", 2, "warm"), ("SCAFFOLD", 10, "warm"),
            ):  # fmt: skip
                some = done.where(method=method, K=K, start=start, G=G, lr=0.1)
                if not len(some):
                    continue
                curve = some[0].curve
                panel.plot(
                    curve["round"],
                    np.maximum(curve["gap"], 1e-12),
                    label=f"{method}, K = {K}" if K > 1 else method,
                )
            panel.set_yscale("log")
            panel.set_xlim(0, ROUNDS)
            panel.set_title(f"G = {G:g}, step 0.1")
            panel.set_xlabel("rounds")
        axes[0][0].set_ylabel("f − f*")
        axes[0][0].legend(fontsize=7)
