"""The toy problem of the FedAvg heterogeneity study: two Gaussians, one outlier among twenty clients."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.data.sampling import Always, Everyone
from fairlead.methods import FedAvg, FedProx
from fairlead.study.reproduce.affine import agreement, from_training
from fairlead.study.reproduce.case import Case, Form, Results, thinned
from fairlead.study.reproduce.outcome import Claim, Outcome, judged
from fairlead.study.reproduce.recipe import Recipe
from fairlead.task.problems import two_gaussians
from fairlead.task.task import Task
from fairlead.theory import Constants, Settings, fedavg_shadow

LR, ROUNDS, CLIENTS = 0.2, 50, 20
TAUS = (10, 50, 300, 1000)
PAIR = Always([CLIENTS - 1], more=1)
EXACT = "computed as a recursion on the bias, the only parameter; `fl.train` gives the same points"
SETTING = (
    "20 clients, clouds of standard deviation ¼ (the paper prints a variance of ¼, its L, ζ and D belong to this one), bias from 1, η = 0.2, "
    "whole local data; mean over data drawn with different seeds"
)


class Toy:
    """The problem by its sums: the gradient of every client at a bias of its own."""

    def __init__(self, task: Task) -> None:
        x, y = (part.numpy() for part in task.data)
        self.sums = x.sum(1)[task.order.numpy()].reshape(task.clients, -1)
        self.labels = y[task.order.numpy()].reshape(task.clients, -1)
        assert task.optimum is not None
        self.optimum, self.start = float(task.optimum), float(task.start()[0])
        assert task.test is not None
        self.test = [part.numpy() for part in task.test]

    def slopes(self, bias: Any, ids: Any = slice(None)) -> Any:
        """∇F_i, each at its own bias."""
        y = self.labels[ids]
        return (-y / (1 + np.exp(y * (self.sums[ids] + np.asarray(bias)[..., None])))).mean(-1)

    def slope(self, bias: Any) -> Any:
        """∇F at several points."""
        return np.stack([self.slopes(np.full(len(self.sums), b)).mean() for b in np.ravel(bias)])

    def loss(self, bias: float) -> float:
        """F."""
        return float(np.logaddexp(0, -self.labels * (self.sums + bias)).mean())

    def test_loss(self, bias: float) -> float:
        """The loss on test data."""
        x, y = self.test
        return float(np.logaddexp(0, -y * (x.sum(1) + bias)).mean())

    def smoothness(self) -> float:
        """L, the largest curvature of F."""
        grid = np.linspace(-8, 4, 1201)
        return float(np.gradient(self.slope(grid), grid).max())

    def ends(self, x: float, ids: Any, steps: int, lr: float, mu: float) -> tuple[Any, Any]:
        """Where local steps end, and the sum of F over the clients' mean points."""
        y, mean = np.full(len(ids), x), []
        for _ in range(steps):
            y = y - lr * (self.slopes(y, ids) + mu * (y - x))
            mean.append(y.mean())
        return y, mean


def problem(seed: int, iid_split: bool = False) -> Task:
    """The toy problem with the numbers of the paper."""
    return two_gaussians(CLIENTS, std=0.25, start=1.0, seed=seed, iid_split=iid_split)


def drifted(
    tau: int, sampled: bool, split: str, seed: int, rounds: int, lr: float, mu: float = 0.0
) -> dict[str, Any]:
    """The points of FedAvg, or FedProx with μ, and how far local gradients are from the mean one where local steps
    end."""
    toy = Toy(problem(seed, split == "iid"))
    cohorts = (PAIR if sampled else Everyone()).cohorts(seed, range(rounds), CLIENTS)
    x, points, apart, along = toy.start, [toy.start], [], []
    for ids in cohorts:
        y, mean = toy.ends(x, ids, tau, lr, mu)
        apart.append(float(np.abs(toy.slopes(y, ids) - toy.slope(y)).max()))
        along += mean[:: max(tau // 50, 1)]
        x = float(y.mean())
        points.append(x)
    least = toy.loss(toy.optimum)
    return {
        "bias": thinned(points), "loss": thinned([toy.test_loss(b) for b in points]), "gap": thinned([toy.loss(b) - least for b in points]),
        "apart": thinned(apart), "shadow": float(np.mean([toy.loss(b) for b in along])) - least,
        "L": toy.smoothness(), "D": abs(toy.start - toy.optimum), "optimum": toy.optimum,
    }  # fmt: skip


def check() -> dict[str, float]:
    """How far training is from the recursion."""
    task, ours = problem(0), drifted_points(3, 10, 0.1)
    made = {"FedAvg": FedAvg(LR), "FedProx": FedProx(LR, mu=0.1)}
    return {
        name: from_training(task, [ours[name]], method, rounds=3, steps=10, cohort=PAIR)
        for name, method in made.items()
    }


def drifted_points(rounds: int, tau: int, mu: float) -> dict[str, float]:
    """Where FedAvg and FedProx are after a few rounds."""
    toy, found = Toy(problem(0)), {}
    for name, pull in (("FedAvg", 0.0), ("FedProx", mu)):
        x = toy.start
        for ids in PAIR.cohorts(0, range(rounds), CLIENTS):
            x = float(toy.ends(x, ids, tau, LR, pull)[0].mean())
        found[name] = x
    return found


def mean(some: Results, value: Any) -> float:
    """The mean of a number over seeds."""
    return float(np.mean([value(r.numbers) for r in some]))


def floor(tau: int, n: dict[str, float]) -> float:
    """The bound 18τ²η²Lζ² that remains after many rounds."""
    known = Constants(beta=n["L"], sigma=0.0, zeta_max=n["zeta"], D=n["D"])
    settings = Settings(CLIENTS, steps=tau, lr=LR)
    return fedavg_shadow(known, settings, ROUNDS).terms["drift"]


class DriftToy(Recipe):
    """One outlier among twenty clients: what more local steps gain at first and cost at the end, and the bound."""

    name = "drift-toy"
    title = "FedAvg under heterogeneity, figures 2 and 5"
    paper, item = "FedAvg under heterogeneity", "Figure 2"
    minutes = (2, 2)

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        for seed in range(form.seeds or (1 if form.quick else 3)):
            for clients in ("two", "all"):
                for tau, split in [(tau, "by client") for tau in TAUS] + [(1000, "iid")]:
                    labels = {"tau": tau, "split": split, "clients": clients, "seed": seed}
                    made = partial(drifted, tau, clients == "two", split, seed, ROUNDS, LR)
                    yield Case(labels, compute=made)
        yield Case({"what": "check"}, compute=check)

    def conclude(self, form: Form, done: Results) -> Outcome:
        rows, found = [], {}
        for clients, group in done.by("clients").items():
            for split, some in group.by("split").items():
                for tau, mine in some.by("tau").items():
                    found[clients, split, tau] = n = _means(mine)
                    bound = floor(tau, n)
                    rows.append({
                        "clients": clients, "split": split, "τ": f"{tau}", "loss after 1": f"{n['first']:.3f}",
                        "5": f"{n['fifth']:.3f}", "50 rounds": f"{n['last']:.3f}", "settled": f"{n['settled']:.3g}", "bias": f"{n['bias']:.2f} ({n['optimum']:.2f})",
                        "max‖∇F_i − ∇F‖": f"{n['zeta']:.3f}", "F − F*": f"{n['gap']:.1e}", "mean F − F*": f"{n['shadow']:.1e}",
                        "bound": f"{bound:.1e}", "measured − bound": f"{n['gap'] - bound:.1e}",
                    })  # fmt: skip
        return Outcome(rows, [*_claims(found), agreement(done)], partial(_draw_toy, done), [
            f"{SETTING}; {EXACT}",
            "loss: on test data; settled: rounds until it stays within 5 % of its final value; bias: after the last round, in brackets the optimum; max‖∇F_i − ∇F‖: over the round's clients where their "
            "local steps end, largest over rounds; mean F − F*: over all rounds and local steps, which is what (1) bounds",
            "clients: two are the outlier and one of the others, as in the paper, for which (1) does not speak; all take part in the other rows",
            "the paper prints the floor as 18τ² + η²Lζ²; (1) has 18τ²η²Lζ², which is used here",
        ])  # fmt: skip


def _means(some: Results) -> dict[str, float]:
    """The numbers of a row."""
    found = {"first": ("loss", 1), "fifth": ("loss", 5), "last": ("loss", -1), "gap": ("gap", -1)}
    numbers = {k: mean(some, lambda n, a=a, at=at: n[a][at]) for k, (a, at) in found.items()}
    numbers["bias"] = mean(some, lambda n: n["bias"][-1])
    numbers["settled"] = mean(some, lambda n: settled(n["loss"]))
    numbers["zeta"] = mean(some, lambda n: max(n["apart"]))
    return numbers | {k: mean(some, lambda n, k=k: n[k]) for k in ("L", "D", "optimum", "shadow")}


def _claims(found: dict[Any, dict[str, float]]) -> list[Claim]:
    claims = []
    largest = found.get(("two", "by client", TAUS[-1]))
    if largest:
        read = {"zeta": (0.407, "ζ"), "L": (0.190, "L"), "D": (2.0, "D")}
        near = [abs(largest[k] / paper - 1) < 0.05 for k, (paper, _) in read.items()]
        claims.append(judged(
            "ζ, L and D are those of the paper, within 5 %", near,
            ", ".join(f"{word} = {largest[k]:.3f} (paper {paper:g})" for k, (paper, word) in read.items()),
            "the paper does not give its number of clients, starting point or data",
        ))  # fmt: skip
    for clients in ("two", "all"):
        mine = {
            tau: n for (c, split, tau), n in found.items() if (c, split) == (clients, "by client")
        }
        if len(mine) < len(TAUS) or (clients, "iid", 1000) not in found:
            continue  # only a part was run

        def told(key: str, mine: dict[int, dict[str, float]] = mine) -> str:
            return ", ".join(f"{n[key]:.3g} (τ = {tau})" for tau, n in mine.items())

        iid = found[clients, "iid", 1000]["last"]
        claims += [
            judged(f"[{clients}] more local steps converge in fewer rounds", [b["settled"] < a["settled"] for a, b in pairwise(mine.values())],
                   f"rounds until the loss stays within 5 % of its final value {told('settled')}", "where the plateaus differ, so does what is reached"),
            judged(f"[{clients}] more local steps have a lower loss after the first round", [b["first"] < a["first"] for a, b in pairwise(mine.values())],
                   told("first"), "large τ pass the optimum within one round" if clients == "two" else "all but the smallest τ are near the optimum after one round"),
            judged(f"[{clients}] more local steps are worse at the end", [b["gap"] > a["gap"] for a, b in pairwise(mine.values())],
                   f"F − F* after {ROUNDS} rounds {told('gap')}"),
            judged(f"[{clients}] local gradients diverge more with more local steps", [b["zeta"] > a["zeta"] for a, b in pairwise(mine.values())],
                   told("zeta")),
            judged(f"[{clients}] τ = 1000 on the same data dealt at random does not plateau high", [iid < n["last"] for n in mine.values()][2:],
                   f"loss {iid:.3g}"),
        ]  # fmt: skip
        loose = {tau: floor(tau, n) / n["gap"] for tau, n in mine.items()}
        claims.append(judged(
            f"[{clients}] the bound is loose by orders of magnitude for large τ", [loose[tau] > 100 for tau in TAUS[2:]],
            "bound over measured F − F*: " + ", ".join(f"{v:.1e} (τ = {tau})" for tau, v in loose.items()),
        ))  # fmt: skip
    return claims


def _draw_toy(done: Results, path: Path) -> None:
    from fairlead.figures.style import look, panels

    some = done.where(clients="two", seed=0)
    with panels(path, rows=2, columns=2, share_y=False) as axes:
        (loss, line), (apart, bound) = axes
        for k, r in enumerate(some):
            tau, n = int(r.labels["tau"]), r.numbers
            name = f"τ = {tau}" + (", iid" if r.labels["split"] == "iid" else "")
            loss.plot(n["loss"], label=name, **look(k))
            apart.plot(range(1, ROUNDS + 1), n["apart"], **look(k))
            line.axline((-n["bias"][-1] / 2,) * 2, slope=-1, label=name, **look(k))
            if r.labels["split"] != "iid":
                limit = floor(tau, _means(Results([r])))
                bound.plot([tau], [limit], "v", color=look(k)["color"])
                bound.plot([tau], [n["gap"][-1]], "o", color=look(k)["color"])
        _scatter(line)
        loss.set(title="loss on test data", xlabel="rounds", xscale="symlog")
        line.set(title="final separators", xlim=(-1, 5), ylim=(-1, 5))
        apart.set(title="max‖∇F_i − ∇F‖ where local steps end", xlabel="rounds")
        bound.set(
            title="F − F* (●) and the bound 18τ²η²Lζ² (▼)", xlabel="τ", xscale="log", yscale="log"
        )
        loss.legend()


def _scatter(panel: Any) -> None:
    """The points of the outlier and of one other client."""
    task = problem(0)
    x, y = (part.numpy() for part in task.data)
    for client, marker in ((0, "."), (CLIENTS - 1, "x")):
        mine = x[100 * client : 100 * (client + 1)]
        for sign, color in ((-1, "#999999"), (1, "#444444")):
            own = mine[y[100 * client : 100 * (client + 1)] == sign]
            panel.scatter(own[:, 0], own[:, 1], 6, color=color, marker=marker, linewidths=0.6)


# FedProx ---------------------------------------------------------------------------------------------------------


class DriftProx(Recipe):
    """FedProx against FedAvg on the toy problem with 3000 local steps."""

    name = "drift-prox"
    title = "FedAvg under heterogeneity, figure 3: FedProx"
    paper, item = "FedAvg under heterogeneity", "Figure 3"
    minutes = (2, 3)

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        for seed in range(form.seeds or (1 if form.quick else 3)):
            for mu in (0.0, 0.01, 0.1, 1.0) if not form.quick else (0.0, 0.1):
                made = partial(drifted, 3000, True, "by client", seed, ROUNDS, LR, mu)
                yield Case({"mu": mu, "seed": seed}, compute=made)
        yield Case({"what": "check"}, compute=check)

    def conclude(self, form: Form, done: Results) -> Outcome:
        found = {mu: _means(some) for mu, some in done.by("mu").items()}
        rows = []
        for mu, n in found.items():
            near = mean(done.where(mu=mu), lambda n: settled(n["loss"]))
            rows.append({
                "method": f"FedProx μ = {mu:g}" if mu else "FedAvg", "loss after 1": f"{n['first']:.3f}", "5": f"{n['fifth']:.3f}",
                "50 rounds": f"{n['last']:.3f}", "F − F*": f"{n['gap']:.1e}", "rounds until the loss settles": f"{near:.3g}",
            })  # fmt: skip
        claims = []
        if {0.0, 0.1} <= set(found):
            avg, prox = found[0.0], found[0.1]
            waits = [mean(done.where(mu=mu), lambda n: settled(n["loss"])) for mu in (0.0, 0.1)]
            claims = [
                judged("FedProx takes longer to converge", [waits[1] > waits[0]],
                       f"rounds until the loss stays within 5 % of its final value: {waits[1]:.3g} against {waits[0]:.3g}"),
                judged("FedProx is slower at first: its loss after the first round is higher", [prox["first"] > avg["first"]],
                       f"{prox['first']:.3f} against {avg['first']:.3f}",
                       "fewer local steps: with 3000 FedAvg has passed the optimum after one round"),
                judged("FedProx reaches a far lower plateau", [prox["gap"] < avg["gap"] / 2],
                       f"F − F* {prox['gap']:.2g} against {avg['gap']:.2g}, loss {prox['last']:.3f} against {avg['last']:.3f}"),
            ]  # fmt: skip
        return Outcome(rows, [*claims, agreement(done)], partial(_draw_prox, done), [
            f"τ = 3000, the outlier and one of the others take part; {SETTING}; {EXACT}",
            "the paper has μ = 0.1",
        ])  # fmt: skip


def settled(loss: list[float]) -> float:
    """The first round from which on the loss stays within 5 % of its final value."""
    far = [k for k, v in enumerate(loss) if abs(v / loss[-1] - 1) > 0.05]
    return float(far[-1] + 1) if far else 0.0


def _draw_prox(done: Results, path: Path) -> None:
    from fairlead.figures.style import panels

    with panels(path, rows=1, columns=1, share_y=False) as axes:
        for r in done.where(seed=0):
            mu = r.labels["mu"]
            axes[0][0].plot(r.numbers["loss"], label=f"FedProx, μ = {mu:g}" if mu else "FedAvg")
        axes[0][0].set(xlabel="rounds", ylabel="loss on test data", title="τ = 3000")
        axes[0][0].legend()
