"""Clients masked by a random linear term, the remark on objective perturbation in SCAFFOLD's appendix F."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairlead.core.method import Algorithm
from fairlead.data import sources
from fairlead.data.splits import iid
from fairlead.methods import FedAvg, Scaffold
from fairlead.study.reproduce.case import Case, Form, Result, Results
from fairlead.study.reproduce.outcome import Claim, Outcome, judged
from fairlead.study.reproduce.recipe import Recipe
from fairlead.task.problems import logistic_regression
from fairlead.task.task import Task

CLIENTS = 10
NORMS = (0.0, 1.0, 10.0)
GRID = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 1.5)
L2 = 0.01
WARM = "SCAFFOLD, warm start"


def masks(norm: float, dim: int, seed: int = 0) -> NDArray[np.float64]:
    """Random vectors b_i, one per client, with mean zero and the given root mean square norm."""
    b = np.random.default_rng(seed).normal(size=(CLIENTS, dim))
    b -= b.mean(0)
    return b * (norm / math.sqrt((b**2).sum(1).mean()))


def masked(
    features: Any, labels: Any, norm: float, seed: int = 0, device: str | torch.device = "cpu"
) -> Task:
    """Logistic regression whose clients have b_i'x added. Neither the mean objective nor any Hessian changes."""
    a, y = torch.as_tensor(np.asarray(features, float)), torch.as_tensor(np.asarray(labels, float))
    split = iid(y.numpy(), CLIENTS, seed)
    plain = logistic_regression(a, y, split, L2)
    owner = torch.empty(len(y), dtype=torch.int64)
    owner[torch.from_numpy(split.order)] = torch.from_numpy(split.owners)
    table = torch.as_tensor(masks(norm, a.shape[1], seed)).to(device)

    def loss(x: Tensor, a: Tensor, y: Tensor, owner: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-y * (a @ x)) + (table @ x)[owner]

    return Task.from_function(
        loss, (a, y, owner), torch.zeros(a.shape[1], dtype=torch.float64), split, batched=True, l2=L2,
        optimum=plain.optimum, dtype=torch.float64, device=device, name="masked a9a",
    )  # fmt: skip


def a9a(norm: float, samples: int | None, device: str = "cpu") -> Task:
    """a9a, or so many of its samples."""
    found = sources.load("a9a", None)
    return masked(found.x[:samples], found.y[:samples], norm, device=device)


def methods(lr: float) -> dict[str, Algorithm[Any, Any]]:
    """The contestants; SCAFFOLD without the smallest steps, which only slow it down."""
    if lr < 0.3:
        return {"FedAvg": FedAvg(lr)}
    return {
        "FedAvg": FedAvg(lr),
        "SCAFFOLD": Scaffold(lr),
        WARM: Scaffold(lr, warm_start=True),
    }


class ScaffoldPrivacy(Recipe):
    """a9a with a random linear term per client: gradients differ as much as one likes, Hessians do not."""

    name = "scaffold-privacy"
    title = "SCAFFOLD, appendix F: clients masked by linear terms"
    paper, item = "SCAFFOLD", "Appendix F"
    data = "a9a"
    minutes = (1, 4)
    readings = {"samples": ("4000", "all")}
    columns = ("gap",)

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        samples = None if self.reading(form, "samples") == "all" else 1000 if form.quick else 4000
        rounds = 20 if form.quick else 50
        settings = {"rounds": rounds, "steps": 10}
        for norm in NORMS:
            for lr in GRID:
                for label, method in methods(lr).items():
                    labels = {"method": label, "norm": norm, "lr": lr}
                    yield Case(labels, partial(a9a, norm, samples), method, settings)

    def conclude(self, form: Form, done: Results) -> Outcome:
        rows, chosen = [], {}
        for method, mine in done.by("method").items():
            row = {"method": method}
            for norm, some in mine.by("norm").items():
                chosen[method, norm] = best = min(some, key=_end)
                row[f"‖b_i‖ = {norm:g}"] = f"{_end(best):.2e} at {best.labels['lr']:g}"
            rows.append(row)
        return Outcome(rows, _claims(done, chosen), partial(_draw, done), [
            f"f − f* after the last round with the best of {len(GRID)} step sizes; {CLIENTS} clients with equal shares drawn at random, "
            f"10 local steps with all data, l2 = {L2:g}",
            "a9a's first 4,000 samples (1,000 in the quick form) unless the reading samples is all",
            "‖b_i‖ is the root mean square over clients; Σb_i = 0, so the optimum and f are those without masks",
        ])  # fmt: skip


def _end(result: Result) -> float:
    value = result.end["gap"]
    return abs(value) if math.isfinite(value) and result.stopped != "diverged" else math.inf


def _largest_change(done: Results, method: str, norms: Sequence[float]) -> float:
    """By how much f − f* differs at most from the curve without masks, relative to its start, at any step size."""
    worst = 0.0
    for lr, some in done.where(method=method).by("lr").items():
        plain = some.where(norm=0.0)
        for r in some:
            if len(plain) and r.labels["norm"] in norms and lr:
                one, two = (np.asarray(c.curve["gap"]) for c in (plain[0], r))
                size = min(len(one), len(two))
                worst = max(worst, float(np.abs(one[:size] - two[:size]).max() / one[0]))
    return worst


def _claims(done: Results, chosen: dict[Any, Result]) -> list[Claim]:
    norms = [n for n in NORMS if ("FedAvg", n) in chosen]
    ends = [_end(chosen["FedAvg", n]) for n in norms]
    text = ", ".join(f"{v:.1e} (‖b_i‖ = {n:g})" for n, v in zip(norms, ends, strict=True))
    one = {n: [_end(r) for r in done.where(method="FedAvg", norm=n, lr=0.3)] for n in norms}
    same = [a < b for (a,), (b,) in pairwise([v for v in one.values() if len(v) == 1])]
    edge = [n for n in norms if chosen["FedAvg", n].labels["lr"] in (min(GRID), max(GRID))]
    change = {m: _largest_change(done, m, norms) for m in ("SCAFFOLD", WARM)}
    return [
        judged("FedAvg's final f − f* grows with the masks, at the same step 0.3", same,
               ", ".join(f"{v[0]:.1e} (‖b_i‖ = {n:g})" for n, v in one.items() if v)),
        judged("FedAvg's final f − f* grows with the masks, at the best step", [a < b for a, b in pairwise(ends)], text,
               void=f"the best step is at the edge of its grid for ‖b_i‖ = {', '.join(f'{n:g}' for n in edge)}" if edge else ""),
        judged("the masks do not move SCAFFOLD's curve, warm start", [change[WARM] < 1e-6],
               f"f − f* differs by at most {change[WARM]:.0e} of its start, at any step and in any round"),
        judged("the masks do not move SCAFFOLD's curve, c_i = 0 at the start", [change["SCAFFOLD"] < 1e-2],
               f"f − f* differs by at most {change['SCAFFOLD']:.0e} of its start",
               "a warm start: with c_i = 0 the first round is FedAvg's, and large masks throw it far"),
    ]  # fmt: skip


def _draw(done: Results, path: Path) -> None:
    from fairlead.figures.style import panels

    with panels(path, rows=1, columns=3, share_y=True) as axes:
        for panel, (method, some) in zip(axes[0], done.by("method").items(), strict=False):
            for r in some.where(lr=0.3):
                gap = np.abs(r.curve["gap"])
                panel.plot(r.curve["round"], gap, label=f"‖b_i‖ = {r.labels['norm']:g}")
            panel.set(title=f"{method}, step 0.3", xlabel="rounds", yscale="log")
            panel.set_ylim(1e-6, 10)
        axes[0][0].set_ylabel("f − f*")
        axes[0][0].legend()
