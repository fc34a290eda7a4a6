"""SCAFFOLD's theorems on quadratics: the lower bound for FedAvg, and how many local steps pay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.methods import ScaffoldS
from fairlead.study.reproduce import affine
from fairlead.study.reproduce.affine import EXACT, agreement, said
from fairlead.study.reproduce.case import Case, Form, Results
from fairlead.study.reproduce.outcome import Claim, Outcome, judged
from fairlead.study.reproduce.recipe import Recipe
from fairlead.task.problems import random_quadratics
from fairlead.theory import (
    Constants,
    Settings,
    best_local_steps,
    best_steps,
    fedavg_lower,
    scaffold_quadratics,
)

# The lower bound -------------------------------------------------------------------------------------------------

LAST = 1000
SHOWN = (10, 30, 100, 300, 1000)


def lower(gradient: float, steps: int, rounds: int) -> dict[str, Any]:
    """(f − f*)μR²/G² with the best step of every round, from x = 1 with μ = 1, and the theorem's bound."""
    lr, x = best_steps(mu=1.0, gradient=gradient, start=1.0, steps=steps, rounds=rounds)
    places = np.unique(np.geomspace(1, rounds, 60).round().astype(int))
    known, settings = Constants(mu=1.0, G=gradient, D=1.0), Settings(clients=2, steps=steps)
    scaled = {
        "scaled": x[places - 1] ** 2 / 2 * places**2 / gradient**2,
        "bound": [fedavg_lower(known, settings, int(r)).value * r**2 / gradient**2 for r in places],
    }
    return {
        "rounds": places.tolist(), "largest steps": int((lr > 1 - 1e-9).sum()), "last step": float(lr[-1]),
        **{name: [float(f"{v:.7g}") for v in values] for name, values in scaled.items()},
    }  # fmt: skip


class ScaffoldLower(Recipe):
    """The best that FedAvg can do on the pair of Theorem II, with the best step size of every round."""

    name = "scaffold-lower"
    title = "SCAFFOLD, Theorems II and VI: what FedAvg cannot beat"
    paper, item = "SCAFFOLD", "Theorem II"
    minutes = (0.2, 0.2)

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        for G in (1.0, 10.0):
            for K in (2, 10):
                yield Case({"G": G, "K": K}, compute=partial(lower, G, K, LAST))

    def conclude(self, form: Form, done: Results) -> Outcome:
        rows, changes, above, ends = [], [], [], {}
        for r in done:
            n, label = r.numbers, f"K = {r.labels['K']}, G = {r.labels['G']:g}"
            at = dict(zip(n["rounds"], n["scaled"], strict=True))
            near = {R: at[min(at, key=lambda k: abs(k - R))] for R in SHOWN}
            ends[r.labels["K"], r.labels["G"]] = near[1000]
            changes.append(abs(near[1000] / near[300] - 1))
            above.append(all(v > b for v, b in zip(n["scaled"], n["bound"], strict=True)))
            row = {"FedAvg": label} | {f"R = {R}": f"{v:.4g}" for R, v in near.items()}
            rows.append(row | {"Theorem VI": f"{n['bound'][-1]:.2g}"})
        text = ", ".join(f"{v:.4g} (K = {K}, G = {G:g})" for (K, G), v in ends.items())
        same = [
            abs(ends[K, 10.0] / ends[K, 1.0] - 1) < 0.1
            for K in (2, 10)
            if {(K, 1.0), (K, 10.0)} <= set(ends)
        ]
        inside = all(r.numbers["last step"] < 1 - 1e-9 for r in done)
        void = "" if inside else "the best step is the largest one that the theorem allows"
        return Outcome(rows, [
            judged("(f − f*)μR²/G² goes to a constant above zero: FedAvg is no faster than G²/(μR²)", [change < 0.1 for change in changes],
                   f"at R = 1000: {text}; it changes by at most {max(changes, default=math.nan):.0%} from R = 300 to 1000", "more rounds", void),
            judged("the constant is the same for both G", same, f"at R = 1000: {text}", "more rounds", void),
            judged("no point lies below the bound of Theorem VI", above,
                   f"the bound's constant is {(fedavg_lower(Constants(mu=1.0, G=1.0, D=1.0), Settings(2, 2), LAST).value * LAST**2):.1e}"),
        ], partial(_draw_lower, done), [
            "the table shows (f − f*)μR²/G² after R rounds, x⁰ = 1, μ = 1; every round takes the step η ≤ 1/μ that brings it closest to the "
            "optimum, which is the best sequence of steps because the next point grows with the last",
            "the paper leaves the constant of its bound open; the last column has the one that its proof gives, see `fl.theory.fedavg_lower`",
        ])  # fmt: skip


def _draw_lower(done: Results, path: Path) -> None:
    from fairlead.figures.style import panels

    with panels(path, rows=1, columns=2, share_y=True) as axes:
        for panel, (K, some) in zip(axes[0], done.by("K").items(), strict=False):
            for r in some:
                label = f"FedAvg, G = {r.labels['G']:g}"
                panel.plot(r.numbers["rounds"], r.numbers["scaled"], label=label)
            panel.plot(some[-1].numbers["rounds"], some[-1].numbers["bound"], label="Theorem VI")
            panel.set(title=f"K = {K}", xlabel="rounds R", xscale="log", yscale="log")
        axes[0][0].set_ylabel("(f − f*) μR²/G²")
        axes[0][0].legend()


# How many local steps pay ----------------------------------------------------------------------------------------

GOAL = 1e-4
LOCAL = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
STEPS = tuple(float(f"{lr:.4g}") for lr in np.geomspace(2e-3, 2.5, 60))
MOST = 6000


def clients_of(delta: float) -> affine.Clients:
    """The random quadratics."""
    task = random_quadratics(8, 10, mu=0.02, beta=1.0, delta=delta, gradient=5.0)
    return affine.Clients.of(task, sign=-1)


def local_steps(
    delta: float, K: int, grid: Sequence[float], goal: float, most: int
) -> dict[str, Any]:
    """Rounds to the goal with every step size of the grid and with the theorem's."""
    clients = clients_of(delta)
    known = Constants(mu=0.02, beta=1.0, delta=delta, F=1.0)
    lrs = [*grid, scaffold_quadratics(known, Settings(8, K), 1).lr]
    maps = np.stack([affine.scaffold_s(clients.maps, lr, K) for lr in lrs])
    costs = affine.first_rounds(maps, clients, clients.error, goal, most)
    at, edge = affine.best_of(grid, costs[:-1])
    return {
        "tuned": costs[at], "lr": grid[at], "edge": edge, "theorem": costs[-1], "theorem lr": lrs[-1],
    }  # fmt: skip


def check_local_steps() -> dict[str, float]:
    """How far training is from the recursion."""
    task = random_quadratics(8, 10, mu=0.02, beta=1.0, delta=0.2, gradient=5.0)
    clients = affine.Clients.of(task, sign=-1)
    once = affine.scaffold_s(clients.maps, 0.02, 8)
    z = np.linalg.matrix_power(once, 4) @ np.r_[clients.start, 1.0]
    return {"update (28)": affine.from_training(task, z[:-1], ScaffoldS(0.02), rounds=4, steps=8)}


class ScaffoldKstar(Recipe):
    """How many local steps pay: rounds of SCAFFOLD on quadratics against K, with β/δ marked."""

    name = "scaffold-kstar"
    title = "SCAFFOLD, Theorem IV: how many local steps pay"
    paper, item = "SCAFFOLD", "Theorem IV"
    minutes = (1, 1)

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        for delta in (0.0, 0.05, 0.2, 0.5):
            for K in LOCAL:
                yield Case(
                    {"delta": delta, "K": K},
                    compute=partial(local_steps, delta, K, STEPS, GOAL, MOST),
                )
        yield Case({"what": "check"}, compute=check_local_steps)

    def conclude(self, form: Form, done: Results) -> Outcome:
        rows: list[dict[str, str]] = []
        found: dict[Any, float] = {}
        edges = [str(r.labels) for r in done if r.numbers.get("edge")]
        for delta, some in done.by("delta").items():
            star = best_local_steps(Constants(beta=1.0, delta=delta))
            for kind in ("tuned", "theorem"):
                for r in some:
                    found[kind, delta, r.labels["K"]] = r.numbers[kind]
                words = {f"K = {r.labels['K']}": said(r.numbers[kind]) for r in some}
                name = {"tuned": "tuned", "theorem": "the theorem's"}[kind]
                rows.append({"δ": f"{delta:g}", "β/δ": f"{star:g}", "steps": name} | words)
        void = f"the best step is at the edge of its grid for {', '.join(edges)}" if edges else ""
        return Outcome(rows, [*_kstar_claims(found, void), agreement(done)], partial(_draw_kstar, done), [
            f"rounds until f − f* ≤ {GOAL:g}, 8 random clients in 10 dimensions, μ = 0.02, β = 1; {EXACT}",
            "the update is (28), which the theorem is about: control variates are gradients at the last synchronized point "
            "(`fl.ScaffoldS`). It does not depend on G, which is 5 here, at all",
            f"tuned: the best of {len(STEPS)} steps from {STEPS[0]:g} to {STEPS[-1]:g}; the theorem's step is min(1/(10β), 1/(22δK), 1/(10μK))",
        ])  # fmt: skip


def _kstar_claims(found: dict[Any, float], void: str) -> list[Claim]:
    deltas = sorted({d for kind, d, _ in found if kind == "tuned" and d > 0})

    def ratios(kind: str, delta: float, low: float, high: float) -> list[tuple[int, float]]:
        """Rounds times K, relative to K = 1, for low ≤ K·δ/β ≤ high; a round more or less does not count."""
        one = found.get((kind, delta, 1), math.inf)
        mine = [(K, v) for (k, d, K), v in found.items() if (k, d) == (kind, delta) and K > 1]
        return [(K, max(v - 1, 1) * K / one) for K, v in mine if low <= K * delta <= high]

    def spread(kind: str, delta: float, low: float) -> float:
        flat = [v for (k, d, K), v in found.items() if (k, d) == (kind, delta) and K * delta >= low]
        return max(flat) / min(flat) if flat else math.nan

    claims = []
    for kind, name, high in (("theorem", "the theorem's steps", 0.45), ("tuned", "tuned", 1.0)):
        before = [r for d in deltas for _, r in ratios(kind, d, 0, high)]
        claims.append(judged(
            f"[{name}] rounds fall like 1/K while K < {'0.45' if high < 1 else ''}β/δ", [0.5 <= r <= 1.25 for r in before],
            f"K × rounds relative to K = 1 is between {min(before, default=math.nan):.2g} and {max(before, default=math.nan):.2g}",
            "" if kind == "tuned" else "the step size begins to shrink at 0.45β/δ, so the gain ends there and not at β/δ",
            void if kind == "tuned" else "",
        ))  # fmt: skip
        for low in (1.0,) if kind == "theorem" else (1.0, 4.0):
            spreads = {d: spread(kind, d, low) for d in deltas}
            claims.append(judged(
                f"[{name}] more local steps than {'4' if low > 1 else ''}β/δ change nothing", [v <= 1.5 for v in spreads.values()],
                "most over fewest rounds beyond it: " + ", ".join(f"{v:.2g} (δ = {d:g})" for d, v in spreads.items()),
                "tuned steps go on to gain beyond β/δ, which is right up to such a factor" if kind == "tuned" else "",
                void if kind == "tuned" else "",
            ))  # fmt: skip
    ends = {K: found[key] for K in (1, 10, 100) if (key := ("tuned", 0.0, K)) in found}
    claims.append(judged(
        "[tuned] with δ = 0 every local step counts like a round", [ends[b] <= ends[a] / 10 + 1 for a, b in pairwise(ends)],
        "rounds: " + ", ".join(f"{v:g} (K = {K})" for K, v in ends.items()), void=void,
    ))  # fmt: skip
    return claims


def _draw_kstar(done: Results, path: Path) -> None:
    from fairlead.figures.style import look, panels

    with panels(path, rows=1, columns=2, share_y=True) as axes:
        for panel, kind in zip(axes[0], ("theorem", "tuned"), strict=True):
            for k, (delta, some) in enumerate(done.by("delta").items()):
                K = [r.labels["K"] for r in some]
                panel.plot(K, [r.numbers[kind] for r in some], label=f"δ = {delta:g}", **look(k))
                if delta:
                    panel.axvline(1 / delta, color=look(k)["color"], linewidth=0.6)
            title = "the theorem's steps" if kind == "theorem" else "tuned steps"
            panel.set(title=title, xlabel="local steps K", xscale="log", yscale="log")
        axes[0][0].set_ylabel(f"rounds to f − f* ≤ {GOAL:g}")
        axes[0][1].legend(title="lines: K = β/δ")
