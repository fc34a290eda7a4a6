"""SCAFFOLD's tables 3 to 5: rounds to an accuracy by epochs, similarity and sampling, and the accuracy of a small net."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.study.reproduce.case import Case, Form, Results, Tuned
from fairlead.study.reproduce.experiments.characters import (
    METHODS,
    ScaffoldTable,
    goal_on,
    key_name,
    rounds_to,
)  # fmt: skip
from fairlead.study.reproduce.outcome import Claim, Outcome, judged
from fairlead.study.reproduce.tables import Contest, interpolated, spread

EPOCHS = (1, 5, 10, 20)
PAPER3 = {  # rounds to 0.5 by epochs, at similarity 0, 10 and 100 %; inf: more than 1000
    "SGD": {0: (317,), 10: (365,), 100: (416,)},
    "SCAFFOLD": {0: (77, 152, 286, 266), 10: (62, 20, 16, 11), 100: (60, 10, 7, 4)},
    "FedAvg": {0: (258, 428, 711, math.inf), 10: (74, 34, 25, 18), 100: (83, 10, 6, 4)},
    "FedProx": {0: (math.inf,) * 4, 10: (979, 794, 894, 916), 100: (459, 351, 308, 351)},
}
PAPER4 = {  # rounds to 0.45 with 20, 5 and 1 % of the clients
    ("SCAFFOLD", 0): (143, 290, 790), ("SCAFFOLD", 10): (9, 13, 28),
    ("FedAvg", 0): (179, 334, math.inf), ("FedAvg", 10): (12, 17, 35),
}  # fmt: skip
PAPER5 = {  # best accuracy in 1000 rounds at 0 and 10 %
    "SGD": (0.766, 0.764), "FedAvg": (0.787, 0.828), "SCAFFOLD": (0.801, 0.842),
}  # fmt: skip


class ScaffoldTable3(ScaffoldTable):
    """Rounds to an accuracy of 0.5 with softmax regression: SGD, SCAFFOLD, FedAvg and FedProx, by epochs and similarity."""

    name, item = "scaffold-table3", "Table 3"
    title = "SCAFFOLD, table 3: epochs and similarity"
    minutes = (8, 40)

    def goal(self, form: Form) -> float:
        return goal_on(self.reading(form, "data"), 0.5)

    def settings(self, form: Form) -> Iterator[dict[str, Any]]:
        for percent in (0, 10, 100):
            for method in METHODS:
                for epochs in (1,) if method == "SGD" else EPOCHS[:2] if form.quick else EPOCHS:
                    yield {"method": method, "epochs": epochs, "similarity": percent, "clients": 20}

    def conclude(self, form: Form, done: Results) -> Outcome:
        found, goal = self.found(form, done), self.goal(form)
        contest = Contest(found, rounds_to(goal), key_name)
        rounds, rows = contest.values, []
        for (method, epochs, percent, clients), entry in found.items():
            key = (method, epochs, percent, clients)
            sgd = rounds.get(("SGD", 1, percent, 20), math.inf)
            paper = PAPER3[method][percent][EPOCHS.index(epochs)]
            row = {"method": method, "epochs": f"{epochs}", "similarity": f"{percent} %"}
            more = self.row(form, done, entry)
            first = next(iter(more))
            row[first] = more.pop(first)
            if self.reading(form, "data") == "emnist_byclass":
                row["paper"] = f"{paper:g}" if paper < math.inf else "1000+"
            ours = sgd / rounds[key] if max(sgd, rounds[key]) < math.inf else math.nan
            row["speed-up over SGD"] = "" if math.isnan(ours) else f"{ours:.2g} ×"
            said = PAPER3["SGD"][percent][0] / paper
            row["paper's speed-up"] = f"{said:.2g} ×" if paper < math.inf else "< 1 ×"
            rows.append(row | more)
        claims = self.claims(contest, form)
        return Outcome(rows, claims, partial(_draw3, self, form, done), self.notes(form, done))

    def claims(self, contest: Contest, form: Form) -> list[Claim]:
        """What must hold."""
        epochs = EPOCHS[:2] if form.quick else EPOCHS

        def key(method: str, number: int, percent: int) -> tuple[str, int, int, int]:
            return method, number, percent, 20

        def said(percents: Sequence[int], methods: Sequence[str] = tuple(METHODS)) -> str:
            parts = []
            for percent, method in product(percents, methods):
                keys = [key(method, e, percent) for e in epochs]
                shown = [_plain(contest.values[k]) for k in keys if k in contest.values]
                parts += [f"{method} at {percent} %: {', '.join(shown)}"] if shown else []
            return "; ".join(parts)

        claims = []
        for percent in (0, 10):
            for fast, slow in (("SCAFFOLD", "FedAvg"), ("FedAvg", "FedProx")):
                claims.append(contest.judged(
                    f"{fast} needs fewer rounds than {slow} at {percent} % similarity",
                    [(key(fast, e, percent), key(slow, e, percent)) for e in epochs],
                    f"rounds by epochs: {said([percent], [fast, slow])}",
                ))  # fmt: skip
        local = ("SCAFFOLD", "FedAvg")
        claims.append(contest.judged(
            "FedProx is the slowest of the local methods",
            [(key(m, e, p), key("FedProx", e, p)) for p in (0, 10, 100) for e in epochs for m in local],
            f"rounds by epochs: {said((0, 10, 100), ('FedProx',))}",
        ))  # fmt: skip
        claims.append(contest.judged(
            "FedAvg is slower than SGD at 0 % from 5 epochs on",
            [(key("SGD", 1, 0), key("FedAvg", e, 0)) for e in epochs if e >= 5],
            f"rounds: {said([0], ['SGD', 'FedAvg'])}",
        ))  # fmt: skip
        claims.append(contest.judged(
            "SCAFFOLD is never slower than SGD",
            [(key("SCAFFOLD", e, p), key("SGD", 1, p)) for p in (0, 10, 100) for e in epochs],
            f"rounds: {said((0, 10, 100), ['SGD', 'SCAFFOLD'])}", strict=False,
        ))  # fmt: skip
        claims.append(contest.judged(
            "SCAFFOLD and FedAvg gain with similarity",
            [(key(m, e, more), key(m, e, less)) for m in local for e in epochs for less, more in ((0, 10), (10, 100))],
            f"rounds by epochs: {said((0, 10, 100), local)}", strict=False,
        ))  # fmt: skip
        sgd = [
            contest.values[k]
            for k in (key("SGD", 1, p) for p in (0, 10, 100))
            if k in contest.values
        ]
        ratio = max(sgd) / min(sgd) if sgd and min(sgd) < math.inf else math.inf
        claims.append(judged(
            "SGD's rounds hardly depend on similarity (within 1.4 ×)", [ratio <= 1.4],
            f"rounds at 0, 10, 100 %: {', '.join(map(_plain, sgd))}",
            void="some of the cases have not run yet" if len(sgd) < 3 else
            "SGD did not reach the target everywhere" if max(sgd) == math.inf else "",
        ))  # fmt: skip
        return claims


def _plain(rounds: float) -> str:
    return f"{rounds:.3g}" if rounds < math.inf else "not reached"


def _draw3(recipe: ScaffoldTable3, form: Form, done: Results, path: Path) -> None:
    """Rounds to every share of centralised accuracy."""
    from fairlead.figures.style import panels

    shares, best = np.linspace(0.3, 0.95, 40), recipe.centralised(done)
    found = recipe.found(form, done)
    with panels(path, rows=1, columns=3, share_y=True) as axes:
        for panel, percent in zip(axes[0], (0, 10, 100), strict=True):
            for (method, epochs, here, _), entry in found.items():
                if here != percent:
                    continue
                rounds = [interpolated(entry.results[0], "accuracy", s * best) for s in shares]
                name = (
                    method if method == "SGD" else f"{method}, {epochs} epoch{'s' * (epochs > 1)}"
                )
                panel.plot(shares, np.where(np.isinf(rounds), np.nan, rounds), label=name)
            panel.set_yscale("log")
            panel.set_title(f"similarity {percent} %")
            panel.set_xlabel("share of centralised accuracy")
        axes[0][0].set_ylabel("rounds")
        axes[0][0].legend(fontsize=6)


class ScaffoldTable4(ScaffoldTable):
    """Rounds to an accuracy of 0.45 after 5 local epochs with fewer and fewer clients: SCAFFOLD and FedAvg."""

    name, item = "scaffold-table4", "Table 4"
    title = "SCAFFOLD, table 4: sampled clients"
    minutes = (5, 12)
    stops = 0.5

    def goal(self, form: Form) -> float:
        return goal_on(self.reading(form, "data"), 0.45)

    def settings(self, form: Form) -> Iterator[dict[str, Any]]:
        for percent in (0, 10):
            for method in ("SCAFFOLD", "FedAvg"):
                for clients in (20, 5, 1):
                    yield {"method": method, "epochs": 5, "similarity": percent, "clients": clients}

    def conclude(self, form: Form, done: Results) -> Outcome:
        found, goal = self.found(form, done), self.goal(form)
        contest = Contest(found, rounds_to(goal), key_name)
        rounds, rows = contest.values, []
        for (method, epochs, percent, clients), entry in found.items():
            base = rounds.get((method, epochs, percent, 20), math.inf)
            mine = rounds[method, epochs, percent, clients]
            paper = PAPER4[method, percent]
            here = paper[(20, 5, 1).index(clients)]
            row = {"method": method, "similarity": f"{percent} %", "sampled": f"{clients} %"}
            more = self.row(form, done, entry)
            first = next(iter(more))
            row[first] = more.pop(first)
            if self.reading(form, "data") == "emnist_byclass":
                row["paper"] = f"{here:g}" if here < math.inf else "1000+"
            slower = mine / base if max(mine, base) < math.inf else math.nan
            row["slow-down"] = "" if math.isnan(slower) else f"{slower:.2g} ×"
            said = here / paper[0] if here < math.inf else 1000 / paper[0]
            row["paper's slow-down"] = f"{'' if here < math.inf else '> '}{said:.2g} ×"
            rows.append(row | more)
        claims = [
            contest.judged(
                f"SCAFFOLD needs fewer rounds than FedAvg at {percent} % similarity, whatever the sampling",
                [(("SCAFFOLD", 5, percent, c), ("FedAvg", 5, percent, c)) for c in (20, 5, 1)],
                "rounds with 20, 5, 1 % of the clients: " + "; ".join(
                    f"{m} " + ", ".join(_plain(rounds[k]) if (k := (m, 5, percent, c)) in rounds else "not run" for c in (20, 5, 1))
                    for m in ("SCAFFOLD", "FedAvg")),
            )
            for percent in (0, 10)
        ]  # fmt: skip
        factors = {
            (m, p, c): rounds[m, 5, p, c] / rounds[m, 5, p, 20]
            for m, _, p, c in found if c < 20 and rounds.get((m, 5, p, 20), math.inf) < math.inf
        }  # fmt: skip
        edges = sorted({f"{m} at {p} % with {c} %" for m, _, p, c in contest.edges})
        claims.append(judged(
            "rounds grow by a smaller factor than the number of clients falls (4 and 20)",
            [f < 20 / c for (_, _, c), f in factors.items()],
            "slow-down " + "; ".join(f"{m} at {p} % with {c} %: {_plain(f)}" for (m, p, c), f in factors.items()),
            "a method that does not reach the target counts as slower",
            void=f"the best step size is at the edge of its grid for {'; '.join(edges)}" if edges else "",
        ))  # fmt: skip
        return Outcome(rows, claims, partial(_draw4, rounds), self.notes(form, done))


def _draw4(rounds: dict[Any, float], path: Path) -> None:
    from fairlead.figures.style import panels

    with panels(path, rows=1, columns=2, share_y=False) as axes:
        for panel, percent in zip(axes[0], (0, 10), strict=True):
            for method in ("SCAFFOLD", "FedAvg"):
                mine = {c: v for (m, _, p, c), v in rounds.items() if (m, p) == (method, percent)}
                base = mine.get(20, math.nan)
                panel.plot(list(mine), [v / base for v in mine.values()], "o-", label=method)
                paper = PAPER4[method, percent]
                panel.plot((20, 5, 1), [v / paper[0] for v in paper], ":", label=f"{method}, paper")
            panel.set_xscale("log")
            panel.set_yscale("log")
            panel.set_title(f"similarity {percent} %")
            panel.set_xlabel("sampled clients, %")
        axes[0][0].set_ylabel("rounds, relative to 20 %")
        axes[0][0].legend(fontsize=7)


class ScaffoldTable5(ScaffoldTable):
    """The best accuracy in 1000 rounds of a net with one hidden layer: SGD, FedAvg and SCAFFOLD at 0 and 10 % similarity."""

    name, item = "scaffold-table5", "Table 5"
    title = "SCAFFOLD, table 5: a net with one hidden layer"
    minutes = (8, 15)
    readings = {**ScaffoldTable.readings, "width": ("200", "100")}

    def goal(self, form: Form) -> None:
        return None

    def rounds(self, form: Form) -> int:
        return 100 if form.quick else 1000

    def settings(self, form: Form) -> Iterator[dict[str, Any]]:
        for percent in (0, 10):
            for method in PAPER5:
                epochs = 1 if method == "SGD" else 5
                yield {"method": method, "epochs": epochs, "similarity": percent, "clients": 20}

    def cases(self, form: Form, done: Results) -> Iterable[Case]:
        self.model = f"mlp:{self.reading(form, 'width')}"
        return super().cases(form, done)

    def conclude(self, form: Form, done: Results) -> Outcome:
        found = self.found(form, done)
        contest = Contest(found, lambda some: -some.mean(lambda r: r.best["accuracy"]), key_name)
        rows = []
        for (method, _, percent, _), entry in found.items():
            best = [r.best["accuracy"] for r in entry.results]
            row = {"method": method, "similarity": f"{percent} %", "best accuracy": spread(best)}
            row["paper"] = f"{PAPER5[method][(0, 10).index(percent)]}"
            rows.append(row | {"step size": f"{entry.lr:g}{' (edge)' if entry.edge else ''}"})

        def key(method: str, percent: int) -> tuple[str, int, int, int]:
            return method, 1 if method == "SGD" else 5, percent, 20

        said = ", ".join(f"{k[0]} at {k[2]} % {-v:.3f}" for k, v in contest.values.items())
        claims = [
            contest.judged(
                f"SGD is less accurate than FedAvg, and FedAvg than SCAFFOLD, at {p} % similarity",
                [(key("SCAFFOLD", p), key("FedAvg", p)), (key("FedAvg", p), key("SGD", p))], said,
            )
            for p in (0, 10)
        ]  # fmt: skip
        claims.append(contest.judged(
            "FedAvg and SCAFFOLD gain with similarity", [(key(m, 10), key(m, 0)) for m in ("FedAvg", "SCAFFOLD")], said,
        ))  # fmt: skip
        width = f"the paper does not give the width: {self.reading(form, 'width')} here"
        return Outcome(rows, claims, partial(_draw5, found), [*self.notes(form, done), width])


def _draw5(found: dict[Any, Tuned], path: Path) -> None:
    from fairlead.figures.style import panels

    with panels(path, rows=1, columns=2, share_y=True) as axes:
        for panel, percent in zip(axes[0], (0, 10), strict=True):
            for (method, _, here, _), entry in found.items():
                if here == percent:
                    curve = entry.results[0].curve
                    panel.plot(curve["round"], curve["accuracy"], label=method)
            panel.set_title(f"similarity {percent} %")
            panel.set_xlabel("rounds")
        axes[0][0].set_ylabel("test accuracy")
        axes[0][0].legend(fontsize=7)
