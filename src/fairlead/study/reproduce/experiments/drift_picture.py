"""A picture of client drift: two clients in the plane, three local steps, FedAvg against SCAFFOLD."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.core.method import Algorithm
from fairlead.methods import FedAvg, Scaffold
from fairlead.run.train import train
from fairlead.study.reproduce.case import Case, Form, Results
from fairlead.study.reproduce.outcome import Outcome, judged
from fairlead.study.reproduce.recipe import Recipe
from fairlead.task.problems import quadratics
from fairlead.task.task import Task

STEPS, ROUNDS, LR = 3, 3, 0.26
HESSIANS = np.array([[[3.4, 0.0], [0.0, 0.8]], [[0.8, 0.0], [0.0, 2.6]]])
OPTIMA = np.array([[-1.2, 2.4], [3.2, -1.0]])
START = (-3.2, -2.2)
METHODS: dict[str, Algorithm[Any, Any]] = {
    "FedAvg": FedAvg(LR),
    "SCAFFOLD": Scaffold(LR, warm_start=True),
}


def pair(start: Any, hessians: Any, optima: Any) -> Task:
    """Two quadratics with optima far apart and different curvature."""
    return quadratics(hessians, np.einsum("nij,nj->ni", hessians, optima), start)


def paths(
    made: Algorithm[Any, Any], start: Any, steps: int, hessians: Any, optima: Any
) -> dict[str, Any]:
    """The points of every client and of the server, round by round, and where the server ends after 300 rounds.

    A client's point after k local steps is where a round with this client alone and k steps ends."""
    x, rounds = np.array(start), []
    for _ in range(ROUNDS):
        task = pair(x, hessians, optima)
        ends = [
            [
                x.tolist(),
                *(
                    train(
                        task, made, rounds=1, steps=k, cohort=[[i]], engine="loop", progress=False
                    ).x.tolist()
                    for k in range(1, steps + 1)
                ),
            ]
            for i in (0, 1)
        ]
        after = train(task, made, rounds=1, steps=steps, engine="loop", progress=False).x.numpy()
        rounds.append({"clients": ends, "server": [x.tolist(), after.tolist()]})
        x = after
    first = pair(start, hessians, optima)
    last = train(first, made, rounds=300, steps=steps, engine="loop", progress=False)
    best = first.optimum
    assert best is not None
    return {"rounds": rounds, "end": last.x.tolist(), "optimum": best.tolist()}


class DriftPicture(Recipe):
    """Two clients in the plane, K = 3: FedAvg is drawn to a point between the clients' optima, SCAFFOLD to the optimum."""

    name = "drift-picture"
    title = "Client drift, and its correction"
    paper, item = "SCAFFOLD", "Figure 1"
    minutes = (0.1, 0.1)

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        for method, made in METHODS.items():
            compute = partial(paths, made, START, STEPS, HESSIANS, OPTIMA)
            yield Case({"method": method}, compute=compute)

    def conclude(self, form: Form, done: Results) -> Outcome:
        rows, away = [], {}
        for method, some in done.by("method").items():
            n = some[0].numbers
            best, ends = np.array(n["optimum"]), [r["server"][1] for r in n["rounds"]]
            far = [float(np.linalg.norm(best - point)) for point in (START, *ends, n["end"])]
            away[method] = far[-1]
            head = ("start", *(f"round {k + 1}" for k in range(ROUNDS)), "round 300")
            words = {name: f"{v:.2g}" for name, v in zip(head, far, strict=True)}
            rows.append({"‖x − x*‖": method} | words)
        one, two = away.get("FedAvg", math.nan), away.get("SCAFFOLD", math.nan)
        return Outcome(rows, [
            judged("FedAvg ends away from the optimum", [one > 0.1], f"‖x − x*‖ = {one:.2g} after 300 rounds", "smaller steps or K = 1"),
            judged("SCAFFOLD ends at the optimum", [two < 1e-6], f"‖x − x*‖ = {two:.0e}"),
        ], partial(draw, done), [
            f"two quadratics in the plane, K = {STEPS}, η = {LR:g}; SCAFFOLD's control variates are gradients where the round begins, which is what "
            "the papers draw",
        ])  # fmt: skip


def draw(done: Results, path: Path) -> None:
    """Both methods side by side: contours of f, every local step, and where the server goes."""
    from fairlead.figures.style import panels

    span = np.linspace(-3.8, 4.4, 60), np.linspace(-3.0, 3.2, 46)
    plane = np.stack(np.meshgrid(*span), -1)
    away = plane[:, :, None] - OPTIMA
    height = 0.5 * np.einsum("xyni,nij,xynj->xy", away, HESSIANS, away) / 2
    with panels(path, rows=1, columns=2, share_y=True) as axes:
        for panel, (method, some) in zip(axes[0], done.by("method").items(), strict=False):
            n = some[0].numbers
            levels = np.geomspace(height.min() * 1.01, height.max(), 14)
            panel.contour(*span, height, levels=levels, colors="#dddddd", linewidths=0.6)
            for k, r in enumerate(n["rounds"]):
                for i, color in ((0, "#d55e00"), (1, "#0060a8")):
                    way = np.array(r["clients"][i])
                    label = f"client {i + 1}" if not k else None
                    panel.plot(*way.T, "o-", color=color, markersize=3, linewidth=1.1, label=label)
                way = np.array(r["server"])
                label = "server" if not k else None
                panel.plot(*way.T, "s--", color="black", markersize=3.5, linewidth=1, label=label)
            for i, color in ((0, "#d55e00"), (1, "#0060a8")):
                panel.plot(*OPTIMA[i], "*", color=color, markersize=9)
                where = OPTIMA[i] - (0, 0.5)
                panel.text(
                    *where, f"optimum of client {i + 1}", color=color, fontsize=6, ha="center"
                )
            panel.plot(*n["optimum"], "*", color="black", markersize=11)
            panel.annotate("x*", n["optimum"], (-3, 7), textcoords="offset points", ha="right")
            panel.plot(*n["end"], "X", color="#009e73", markersize=7, label="after 300 rounds")
            panel.set(title=method, xticks=[], yticks=[], aspect="equal")
            panel.grid(visible=False)
            panel.spines[:].set_visible(False)
        axes[0][0].legend(loc="upper right")
