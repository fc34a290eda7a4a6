"""The rates of the saddle-point paper: rounds against the condition number and against heterogeneity, and Extra Step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.data.batches import Geometric
from fairlead.methods import Catalyst, ExtraStep, FedAvg, MirrorDescent, MirrorProx, ScaffoldS
from fairlead.study.reproduce import affine
from fairlead.study.reproduce.affine import agreement, said
from fairlead.study.reproduce.case import Case, Form, Results
from fairlead.study.reproduce.outcome import Claim, Outcome, judged
from fairlead.study.reproduce.recipe import Recipe
from fairlead.task.problems import bilinear_game, quadratic_game
from fairlead.task.task import Task
from fairlead.theory.saddle import catalyst_theta

TAU, GOAL, MOST = 5, 1e-4, 400_000
KAPPAS = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
ZETAS = (0.0, 1.0, 10.0, 100.0)
INNER = (1, 2, 5, 10)
CATALYST = "SCAFFOLD-Catalyst-S"
ROUNDS: dict[str, affine.Round] = {
    "mirror descent": affine.gradient_descent,
    "mirror-prox": affine.mirror_prox,
    "FedAvg-S": affine.fedavg,
    "SCAFFOLD-S": affine.scaffold_s,
}
SLOPES = {"mirror descent": 2.0, "mirror-prox": 1.0, "SCAFFOLD-S": 2.0, CATALYST: 1.0}
EXACT = "computed exactly, as matrices of rounds; `fl.train` gives the same points"


def game(kind: str, kappa: float, zeta: float, delta: float) -> Task:
    """A game with β = 1 and μ = 1/κ: random, or the hardest kind, bilinear with curvature μ everywhere and
    couplings from μ to β."""
    if kind == "random":
        return quadratic_game(mu=1 / kappa, zeta=zeta, delta=delta, pairwise=True)
    return bilinear_game(mu=1 / kappa, smallest=1 / kappa, zeta=zeta, delta=delta, pairwise=True)


def to_goal(
    kind: str,
    kappa: float,
    zeta: float,
    delta: float,
    method: str,
    tau: int,
    share: float,
    inners: Sequence[int],
) -> dict[str, Any]:
    """Communications until ‖z − z*‖ ≤ 1e-4·‖z⁰ − z*‖ with the best step size; Catalyst also with the best number
    of inner rounds."""
    task = game(kind, kappa, zeta, delta)
    clients = affine.Clients.of(task)
    goal = share * float(clients.distance(clients.start))
    grid = [float(f"{lr:.4g}") for lr in 2.0 ** np.arange(-3 - 2 * math.log2(kappa), 1.5, 0.5)]
    best: tuple[float, float, bool, int] = (math.inf, grid[0], False, 0)
    known = task.constants
    assert known is not None
    for inner in inners if method == CATALYST else (0,):
        if inner:
            theta = catalyst_theta(known)
            rounds = [affine.scaffold_s(clients.maps, lr, tau, theta) for lr in grid]
        else:
            rounds = [ROUNDS[method](clients.maps, lr, tau) for lr in grid]
        steady = [k for k, m in enumerate(rounds) if _shrink(m, inner) < 1]
        steady.sort(key=lambda k: _shrink(rounds[k], inner))
        tried = steady[:4]  # the others are slower
        if not tried:
            continue
        costs = affine.first_rounds(
            np.stack([rounds[k] for k in tried]), clients, clients.distance, goal,
            min(MOST, _enough(_shrink(rounds[tried[0]], inner))), inner,
        )  # fmt: skip
        at = int(np.argmin(costs))
        found = costs[at] * (2 if method == "mirror-prox" else 1)
        if found < best[0]:
            best = found, grid[tried[at]], tried[at] in (0, len(grid) - 1), inner
    return {"rounds": best[0], "lr": best[1], "edge": best[2], "inner": best[3]}


def _shrink(matrix: Any, inner: int) -> float:
    """The factor by which a round shrinks the slowest direction; with Catalyst, the mean over a cycle."""
    if not inner:
        return float(np.abs(np.linalg.eigvals(matrix[:-1, :-1])).max())
    size = len(matrix) // 2
    cycle = np.linalg.matrix_power(matrix, inner)[: size - 1]
    both = cycle[:, : size - 1] + cycle[:, size : 2 * size - 1]
    return float(np.abs(np.linalg.eigvals(both)).max()) ** (1 / inner)


def _enough(shrink: float) -> int:
    """Rounds after which a method that reaches the goal has reached it."""
    return int(3 * math.log(GOAL) / math.log(min(shrink, 1 - 1e-6))) + 50


def check_rates() -> dict[str, float]:
    """How far training is from the matrices, on a game with different clients."""
    task = game("random", 10.0, 10.0, 0.1)
    clients = affine.Clients.of(task)
    start, lr = np.r_[clients.start, 1.0], 0.05
    made = {
        "mirror descent": MirrorDescent(lr), "mirror-prox": MirrorProx(lr), "FedAvg-S": FedAvg(lr), "SCAFFOLD-S": ScaffoldS(lr),
    }  # fmt: skip
    found = {}
    for name, method in made.items():
        z = np.linalg.matrix_power(ROUNDS[name](clients.maps, lr, TAU), 4) @ start
        found[name] = affine.from_training(task, z[:-1], method, rounds=4, steps=TAU)
    z = np.linalg.matrix_power(affine.extra_step(clients.maps, lr, TAU), 4) @ start
    found["Extra Step"] = affine.from_training(task, z[:-1], ExtraStep(lr), rounds=4, steps=TAU)
    pair = np.r_[start, start]
    for k in range(4):
        pair = affine.scaffold_s(clients.maps, lr, TAU, 0.5) @ pair
        pair[len(start) :] = pair[: len(start)] if k % 2 else pair[len(start) :]
    held = Catalyst(ScaffoldS(lr), theta=0.5, inner_rounds=2)
    found[CATALYST] = affine.from_training(task, pair[: len(start) - 1], held, rounds=4, steps=TAU)
    return found


class SaddleTable1(Recipe):
    """Rounds against the condition number κ at fixed heterogeneity ζ, and against ζ at fixed κ: the paper's s changes both."""

    name = "saddle-table1"
    title = "Saddle points, table 1: measured rates"
    paper, item = "Saddle points", "Table 1"
    minutes = (3, 3)

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        settings = [(kind, kappa, 10.0, 0.0) for kind in ("random", "bilinear") for kappa in KAPPAS]
        settings += [("random", 10.0, zeta, delta) for delta in (0.0, 0.1) for zeta in ZETAS]
        for kind, kappa, zeta, delta in dict.fromkeys(settings):
            for method in (*ROUNDS, CATALYST):
                labels = {
                    "game": kind,
                    "kappa": kappa,
                    "zeta": zeta,
                    "delta": delta,
                    "method": method,
                }
                yield Case(
                    labels,
                    compute=partial(to_goal, kind, kappa, zeta, delta, method, TAU, GOAL, INNER),
                )
        yield Case({"what": "check"}, compute=check_rates)

    def conclude(self, form: Form, done: Results) -> Outcome:
        rows, slopes = [], {}
        for kind, group in done.where(zeta=10.0, delta=0.0).by("game").items():
            for method, some in group.by("method").items():
                rounds = {r.labels["kappa"]: r.numbers["rounds"] for r in some}
                slopes[kind, method] = slope(rounds)
                words = {f"κ = {k:g}": said(v) for k, v in rounds.items()}
                rows.append(
                    {"game": kind, "method": method} | words | {"slope": f"{slope(rounds):.2f}"}
                )
        for delta, group in done.where(game="random", kappa=10.0).by("delta").items():
            for method, some in group.by("method").items():
                row = {"game": f"random, κ = 10, δ = {delta:g}", "method": method}
                rows.append(
                    row
                    | {
                        f"ζ = {r.labels['zeta']:g}": said(r.numbers["rounds"])
                        for r in sorted(some, key=lambda r: r.labels["zeta"])
                    }
                )
        head = dict.fromkeys(key for row in rows for key in row)
        rows = [{key: row.get(key, "") for key in head} for row in rows]
        return Outcome(rows, [*_rate_claims(done, slopes), agreement(done)], partial(_draw_rates, done), [
            f"communication rounds (two for a round of mirror-prox) until ‖z − z*‖ ≤ {GOAL:g}·‖z⁰ − z*‖, τ = {TAU}, ζ = 10 unless named, best of a grid "
            f"of step sizes in ratios of √2 from 1/(8κ²) to 2; slope: of log rounds over log κ for κ ≥ 10; {EXACT}",
            f"θ = β − μ as in Theorem 9, centre moved after {', '.join(map(str, INNER))} rounds, whichever is best; the paper leaves open when",
            "random: A and C have eigenvalues from μ to β, of which rounds feel a mixture; bilinear: x'By + μ/2·(‖x‖² − ‖y‖²) with singular values of B from μ to β, the hard case: the largest make mirror descent slow, the smallest mirror-prox",
            "ζ bounds ‖G_i − G_j‖ everywhere only if all G_i have the same slope, δ = 0. Then local steps of affine clients drift apart, but "
            "their mean does not move: FedAvg-S cannot depend on ζ; with δ = 0.1 ζ is that at the saddle point",
        ])  # fmt: skip


def slope(rounds: dict[Any, float]) -> float:
    """Of log rounds over log κ, for κ of at least 10."""
    kept = {k: v for k, v in rounds.items() if k >= 10 and v < math.inf}
    if len(kept) < 2:
        return math.nan
    return float(np.polyfit(np.log(list(kept)), np.log(list(kept.values())), 1)[0])


def _rate_claims(done: Results, slopes: dict[Any, float]) -> list[Claim]:
    claims = []
    for kind in ("bilinear", "random"):
        edges = [
            str(r.labels["method"])
            for r in done.where(game=kind, zeta=10.0, delta=0.0)
            if r.numbers["edge"]
        ]
        void = (
            f"the best step is at the edge of its grid for {', '.join(sorted(set(edges)))}"
            if edges
            else ""
        )
        mine = {m: slopes.get((kind, m), math.nan) for m in SLOPES}
        claims.append(judged(
            f"[{kind} games] rounds grow like κ² for mirror descent and SCAFFOLD-S, like κ for mirror-prox and {CATALYST}, ± 0.3",
            [abs(mine[m] - want) <= 0.3 for m, want in SLOPES.items()], ", ".join(f"{m} {v:.2f}" for m, v in mine.items()),
            "nothing as upper bounds, which they are: random games have few directions with little curvature" if kind == "random" else "", void,
        ))  # fmt: skip
    for delta in (0.0, 0.1):
        some = done.where(game="random", kappa=10.0, delta=delta)
        costs = {
            m: [r.numbers["rounds"] for z in ZETAS for r in mine.where(zeta=z)]
            for m, mine in some.by("method").items()
        }
        others = [v for m, v in costs.items() if m != "FedAvg-S"]
        claims.append(judged(
            f"[δ = {delta:g}] FedAvg-S, and no other method, depends on ζ",
            [len(set(costs.get("FedAvg-S", []))) > 1, all(len(set(v)) == 1 for v in others)],
            f"rounds for ζ = {', '.join(f'{z:g}' for z in ZETAS)}: " + "; ".join(f"{m} {', '.join(map(said, v))}" for m, v in costs.items()),
            "clients with different slopes, or not affine ones" if not delta else "",
        ))  # fmt: skip
    return claims


def _draw_rates(done: Results, path: Path) -> None:
    from fairlead.figures.style import panels

    with panels(path, rows=1, columns=2, share_y=True) as axes:
        for panel, kind in zip(axes[0], ("bilinear", "random"), strict=True):
            for method, some in done.where(game=kind, zeta=10.0, delta=0.0).by("method").items():
                kappas = [r.labels["kappa"] for r in some]
                panel.plot(kappas, [r.numbers["rounds"] for r in some], label=method)
            panel.set(
                title=f"{kind} games, δ = 0, ζ = 10", xlabel="κ = β/μ", xscale="log", yscale="log"
            )
        axes[0][0].set_ylabel(f"rounds to {GOAL:g} of the distance")
        axes[0][0].legend()


# Extra Step ------------------------------------------------------------------------------------------------------

LOCAL = (1, 2, 5, 10, 20, 50)
LRS = (0.01, 0.03)
RUNS, STEPS = 200, 4000


def floors(zeta: float, tau: int, lr: float, runs: int, steps: int) -> dict[str, float]:
    """‖z − z*‖ where FedAvg-S and Extra Step end, after τ steps and after a random number with mean τ."""
    clients = affine.Clients.of(game("random", 10.0, zeta, 0.1))
    found = {}
    for name, of in (("FedAvg-S", affine.fedavg), ("Extra Step", affine.extra_step)):
        found[name] = float(clients.distance(affine.fixed_point(of(clients.maps, lr, tau))))
    return found | _random(clients, tau, lr, runs, steps)


def _random(
    clients: affine.Clients, tau: int, lr: float, runs: int, steps: int
) -> dict[str, float]:
    """FedAvg-S with p = 1/τ: the mean distance and the distance of the mean point at the end, over runs."""
    once = np.eye(clients.maps.shape[1]) - lr * clients.maps
    z = np.tile(np.r_[clients.start, 1.0], (runs, len(clients.maps), 1))
    rng = np.random.default_rng(0)
    for _ in range(steps):
        z = np.einsum("nij,rnj->rni", once, z)
        now = rng.random(runs) < 1 / tau
        z[now] = z[now].mean(1, keepdims=True)
    ends = z.mean(1)[:, :-1]
    return {
        "p = 1/τ": float(clients.distance(ends).mean()),
        "p = 1/τ, mean point": float(clients.distance(ends.mean(0))),
    }


def check_random() -> dict[str, float]:
    """How far training with random synchronization is from the product of the rounds' matrices."""
    task, sync = game("random", 10.0, 10.0, 0.1), Geometric(0.2)
    clients = affine.Clients.of(task)
    z = np.r_[clients.start, 1.0]
    for k in range(5):
        z = affine.fedavg(clients.maps, 0.03, sync.draw(0, k)) @ z
    return {
        "FedAvg-S, p = 0.2": affine.from_training(task, z[:-1], FedAvg(0.03), rounds=5, steps=sync)
    }


class SaddleExtra(Recipe):
    """FedAvg-S against Extra Step at the same step size and τ, and synchronization after τ steps against p = 1/τ."""

    name = "saddle-extra"
    title = "Saddle points, appendix A: Extra Step"
    paper, item = "Saddle points", "Appendix A"
    minutes = (2, 2)

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        for lr in LRS:
            for zeta in (1.0, 10.0, 100.0):
                for tau in LOCAL:
                    labels = {"lr": lr, "zeta": zeta, "tau": tau}
                    yield Case(labels, compute=partial(floors, zeta, tau, lr, RUNS, STEPS))
        yield Case({"what": "check"}, compute=check_rates)
        yield Case({"what": "check", "of": "p"}, compute=check_random)

    def conclude(self, form: Form, done: Results) -> Outcome:
        rows = []
        for lr, group in done.by("lr").items():
            for zeta, some in group.by("zeta").items():
                for name in ("FedAvg-S", "Extra Step", "p = 1/τ", "p = 1/τ, mean point"):
                    shown = f"FedAvg-S, {name}" if name.startswith("p") else name
                    row = {"γ": f"{lr:g}", "ζ": f"{zeta:g}", "‖z − z*‖ at the end": shown}
                    rows.append(
                        row | {f"τ = {r.labels['tau']}": f"{r.numbers[name]:.2e}" for r in some}
                    )
        return Outcome(rows, [*_extra_claims(done), agreement(done)], partial(_draw_extra, done), [
            f"random games with κ = 10, β = 1, δ = 0.1, and the same step γ for both methods; where rounds end, {EXACT}",
            f"p = 1/τ: {RUNS} runs that synchronize after every step with probability p, after {STEPS} steps; the mean of ‖z − z*‖, and ‖z − z*‖ of the mean point",
        ])  # fmt: skip


def _extra_claims(done: Results) -> list[Claim]:
    some = [r for r in done if "zeta" in r.labels and r.labels["tau"] != 1]
    larger = [r.numbers["Extra Step"] / r.numbers["FedAvg-S"] for r in some]
    largest = max(LOCAL)
    ends = {
        r.labels["lr"]: r.numbers
        for r in some
        if (r.labels["zeta"], r.labels["tau"]) == (10.0, largest)
    }
    firsts = {
        r.labels["lr"]: r.numbers
        for r in some
        if (r.labels["zeta"], r.labels["tau"]) == (10.0, LOCAL[1])
    }
    growth = {
        name: [ends[lr][name] / firsts[lr][name] for lr in ends if lr in firsts]
        for name in ("FedAvg-S", "Extra Step")
    }
    zetas = [
        abs(b.numbers[m] / a.numbers[m] / 10 - 1) < 1e-6
        for lr in LRS for tau in LOCAL[1:] for a, b in pairwise(done.where(lr=lr, tau=tau)) for m in growth
    ]  # fmt: skip
    both = [r.numbers["p = 1/τ"] / r.numbers["FedAvg-S"] for r in some]
    means = [r.numbers["p = 1/τ, mean point"] / r.numbers["FedAvg-S"] for r in some]
    return [
        judged("Extra Step's drift floor is above that of FedAvg-S at equal τ and γ", [v > 1 for v in larger],
               f"{_span(larger)} times FedAvg-S's", "the paper compares bounds, in which Extra Step loses a factor of τ; another step size for each"),
        judged("Extra Step's drift floor grows faster with τ", [b > a for a, b in zip(growth["FedAvg-S"], growth["Extra Step"], strict=True)],
               f"from τ = {LOCAL[1]} to {largest}: " + "; ".join(f"{m} {', '.join(f'{v:.3g} ×' for v in g)}" for m, g in growth.items())),
        judged("both floors are proportional to ζ", zetas, "ζ = 1, 10, 100"),
        judged("τ steps and p = 1/τ end at the same mean point, within a factor of 2", [0.5 <= v <= 2 for v in means], f"p = 1/τ is {_span(means)} times as far",
               "more runs; a random τ has E τ² = 2/p² − 1/p, which makes the drift about twice as large"),
        judged("τ steps and p = 1/τ have the same mean distance, within a factor of 2", [0.5 <= v <= 2 for v in both], f"p = 1/τ is {_span(both)} times as far",
               "the spread of the points counts here too"),
    ]  # fmt: skip


def _span(values: Sequence[float]) -> str:
    return f"{min(values, default=math.nan):.2g} to {max(values, default=math.nan):.2g}"


def _draw_extra(done: Results, path: Path) -> None:
    from fairlead.figures.style import panels

    with panels(path, rows=1, columns=2, share_y=True) as axes:
        for panel, (lr, some) in zip(axes[0], done.where(zeta=10.0).by("lr").items(), strict=False):
            for name in ("FedAvg-S", "Extra Step", "p = 1/τ", "p = 1/τ, mean point"):
                tau = [r.labels["tau"] for r in some if r.labels["tau"] != 1]
                floor = [r.numbers[name] for r in some if r.labels["tau"] != 1]
                panel.plot(tau, floor, label=f"FedAvg-S, {name}" if name.startswith("p") else name)
            panel.set(title=f"γ = {lr:g}, ζ = 10", xlabel="τ", xscale="log", yscale="log")
        axes[0][0].set_ylabel("‖z − z*‖ at the end")
        axes[0][0].legend()
