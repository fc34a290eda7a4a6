"""SCAFFOLD with a few clients per round, on quadratics (Theorem III)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.data.sampling import Uniform
from fairlead.methods import FedAvg, MinibatchSGD, Scaffold
from fairlead.study.reproduce import affine
from fairlead.study.reproduce.affine import EXACT, agreement, said
from fairlead.study.reproduce.case import Case, Form, Result, Results
from fairlead.study.reproduce.outcome import Claim, Outcome, judged
from fairlead.study.reproduce.recipe import Recipe
from fairlead.task.problems import random_quadratics

GOALS = (1e-4, 1e-7, 1e-10)
GRID = (0.0003, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.3, 1.9, 2.5)
ROUNDS = 3000
METHODS = ("SGD", "FedAvg", "SCAFFOLD I", "SCAFFOLD II")
SAMPLED = (20, 5, 1)


def sampling(
    mu: float,
    S: int,
    method: str,
    seed: int,
    grid: Sequence[float],
    rounds: int,
    goals: Sequence[float],
) -> dict[str, Any]:
    """Rounds to the goals and the lowest f − f* with every step size."""
    task = random_quadratics(20, 10, mu=mu, delta=0.1, seed=seed)
    clients = affine.Clients.of(task, sign=-1)
    cohorts = Uniform(S).cohorts(seed, range(rounds), 20)
    points = np.stack(affine.sampled(clients, method, np.array(grid), 5, cohorts))
    errors = np.nan_to_num(clients.error(points), nan=math.inf)
    reached = [[_first(errors[:, k] <= goal) for goal in goals] for k in range(len(grid))]
    final = np.median(errors[-rounds // 10 :], 0)
    places = np.unique(np.geomspace(1, rounds + 1, 40).round().astype(int)) - 1
    at = min(range(len(grid)), key=lambda k: (reached[k][-1], final[k]))
    return {
        "reached": reached, "final": [float(f"{v:.4g}") for v in final], "best": at, "rounds": places.tolist(),
        "curve": [float(f"{v:.4g}") for v in errors[places, at]],
    }  # fmt: skip


def _first(good: Any) -> float:
    return float(np.argmax(good)) if good.any() else math.inf


def check_sampling() -> dict[str, float]:
    """How far training is from the recursion, and SCAFFOLD with option I and S = K = 1 from SAGA."""
    task = random_quadratics(20, 10, mu=0.1, delta=0.1)
    clients = affine.Clients.of(task, sign=-1)
    made = {
        "SGD": MinibatchSGD(0.05), "FedAvg": FedAvg(0.05), "SCAFFOLD I": Scaffold(0.05, option="I"),
        "SCAFFOLD II": Scaffold(0.05),
    }  # fmt: skip
    found = {}
    cohorts = Uniform(5).cohorts(0, range(10), 20)
    for name, method in made.items():
        x = affine.sampled(clients, name, np.array([0.05]), 5, cohorts)[-1][0]
        found[name] = affine.from_training(task, x, method, rounds=10, steps=5, cohort=5)
    return found


def saga() -> dict[str, float]:
    """The largest difference over 50 steps between SAGA and SCAFFOLD with option I and S = K = 1."""
    task = random_quadratics(20, 10, mu=0.1, delta=0.1)
    a, b = (part.numpy() for part in task.data)
    order = [int(ids[0]) for ids in Uniform(1).cohorts(0, range(50), 20)]
    x, table = task.start()[0].numpy(), np.zeros_like(b)
    for i in order:
        g = a[i] @ x - b[i]
        x = x - 0.1 * (g - table[i] + table.mean(0))
        table[i] = g
    return {
        "SAGA": affine.from_training(
            task, x, Scaffold(0.1, option="I"), rounds=50, steps=1, cohort=1
        )
    }


class ScaffoldSampling(Recipe):
    """A few of twenty clients per round on random quadratics: SCAFFOLD converges linearly, SGD and FedAvg stall."""

    name = "scaffold-sampling"
    title = "SCAFFOLD, Theorem III: sampled clients"
    paper, item = "SCAFFOLD", "Theorem III"
    minutes = (3, 3)

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        for seed in range(form.seeds or 3):
            for mu in (0.1, 0.02):
                for S in SAMPLED:
                    for method in METHODS:
                        labels = {"method": method, "S": S, "mu": mu, "seed": seed}
                        yield Case(
                            labels,
                            compute=partial(sampling, mu, S, method, seed, GRID, ROUNDS, GOALS),
                        )
        yield Case({"what": "check"}, compute=check_sampling)
        yield Case({"what": "SAGA"}, compute=saga)

    def conclude(self, form: Form, done: Results) -> Outcome:
        rows, found, final, edges = [], {}, {}, []
        for mu, group in done.by("mu").items():
            for method, mine in group.by("method").items():
                row = {"κ = β/μ": f"{1 / mu:g}", "method": method}
                for S, some in mine.by("S").items():
                    at, edge = _best(list(some))
                    here = np.mean([r.numbers["reached"][at] for r in some], 0)
                    found[mu, method, S] = here.tolist()
                    final[mu, method, S] = float(np.mean([r.numbers["final"][at] for r in some]))
                    if edge:
                        edges.append(f"{method}, S = {S}, κ = {1 / mu:g}")
                    text = (
                        f"({final[mu, method, S]:.0e})" if here[-1] == math.inf else said(here[-1])
                    )
                    row[f"S = {S}"] = f"{text} at {GRID[at]:g}"
                rows.append(row)
        claims = [*_sampling_claims(found, final, edges), agreement(done)]
        gaps = [r.numbers["SAGA"] for r in done.where(what="SAGA")]
        claims.append(judged(
            "with option I and S = K = 1 SCAFFOLD is SAGA, step for step", [v < 1e-12 for v in gaps],
            f"largest difference of a coordinate after 50 steps {max(gaps, default=math.nan):.0e}",
        ))  # fmt: skip
        return Outcome(rows, claims, partial(_draw_sampling, done), [
            f"mean rounds over seeds until f − f* ≤ {GOALS[-1]:g}, or the final f − f* after {ROUNDS} rounds in brackets, with the "
            f"best of {len(GRID)} step sizes from {GRID[0]:g} to {GRID[-1]:g}; 20 random clients, K = 5, δ = 0.1, G = 1, c_i = 0 at the start",
            f"{EXACT}, with the same sampled clients",
        ])  # fmt: skip


def _best(some: list[Result]) -> tuple[int, bool]:
    """The step size with the fewest rounds to the last goal on average, else with the lowest final error."""
    rounds = np.mean([[g[-1] for g in r.numbers["reached"]] for r in some], 0)
    last = np.mean([r.numbers["final"] for r in some], 0)
    at = min(range(len(GRID)), key=lambda k: (rounds[k], last[k]))
    return at, at in (0, len(GRID) - 1)


def _sampling_claims(
    found: dict[Any, Any], final: dict[Any, float], edges: list[str]
) -> list[Claim]:
    ours = [key for key in found if key[1].startswith("SCAFFOLD")]
    theirs = [key for key in found if key not in ours and (key[1] == "FedAvg" or key[2] < 20)]
    linear, ratios, fit = [], [], []
    for key in ours:
        one, two, three = found[key]
        ratio = (three - two) / max(two - one, 1)
        ratios.append(ratio)
        linear.append(three < math.inf and 0.4 <= ratio <= 2.5)
    shown, below = [], {}
    for mu, method, S in ours:
        below[mu, method, S] = found[mu, method, S][-1] / ((1 / mu + 20 / S) * -math.log(GOALS[-1]))
        if S < 20 and (mu, method, 20) in found:
            theory = (1 / mu + 20 / S) / (1 / mu + 1)
            measured = found[mu, method, S][-1] / found[mu, method, 20][-1]
            fit.append(0.5 <= measured / theory <= 2)
            shown.append(f"{measured:.2g} for {theory:.2g} ({method}, S = {S}, κ = {1 / mu:g})")

    def void(keys: list[Any]) -> str:
        mine = [e for e in edges if any(e == f"{m}, S = {S}, κ = {1 / mu:g}" for mu, m, S in keys)]
        return f"the best step is at the edge of its grid for {'; '.join(mine)}" if mine else ""

    floors = ", ".join(f"{final[k]:.0e} ({k[1]}, S = {k[2]})" for k in theirs if k[0] == 0.1)
    return [
        judged("SCAFFOLD converges linearly at every S, with either option", linear,
               f"rounds from 1e-7 to 1e-10 over rounds from 1e-4 to 1e-7: {min(ratios, default=math.nan):.2g} to {max(ratios, default=math.nan):.2g}",
               void=void(ours)),
        judged("FedAvg at every S and SGD with sampled clients stall", [found[k][-1] == math.inf for k in theirs],
               f"final f − f* with κ = 10: {floors}", "decaying step sizes, which the claim is not about", void(theirs)),
        judged("SCAFFOLD needs at most (β/μ + N/S)·ln(1/ε) rounds", [v <= 1 for v in below.values()],
               f"{min(below.values(), default=math.nan):.2g} to {max(below.values(), default=math.nan):.2g} of it", void=void(ours)),
        judged("its rounds grow like β/μ + N/S, within a factor of 2", fit, "rounds relative to S = 20: " + "; ".join(shown),
               "the theorem's steps: tuned ones gain from local steps when all clients take part, so that S = 20 needs far fewer rounds "
               "than β/μ", void(ours)),
    ]  # fmt: skip


def _draw_sampling(done: Results, path: Path) -> None:
    from fairlead.figures.style import panels

    with panels(path, rows=1, columns=3, share_y=True) as axes:
        for panel, S in zip(axes[0], SAMPLED, strict=True):
            for method in METHODS:
                some = done.where(S=S, method=method, mu=0.1, seed=0)
                if len(some):
                    curve = np.maximum(some[0].numbers["curve"], 1e-16)
                    panel.plot(some[0].numbers["rounds"], curve, label=method)
            panel.set(
                title=f"S = {S} of 20 clients, κ = 10", xlabel="rounds", yscale="log", xlim=(0, 600)
            )
            panel.set_ylim(1e-16, 10)
        axes[0][0].set_ylabel("f − f*")
        axes[0][0].legend()
