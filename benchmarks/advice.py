"""How good is the advice of `fairlead diagnose`?

    python benchmarks/advice.py [--developed] [--part 0/2]      one line per pair in benchmarks/results/advice.jsonl
    python benchmarks/advice.py --page                          put the tables into docs/diagnose.md

For each pair (advice_pairs.py) a grid of methods × local steps × step sizes is run with a seed that the diagnosis does not
see. The target is what the best FedAvg of the grid reaches in half of the planned rounds. A recommendation is judged by
its rounds (or bits) to the target over those of the best of the grid. Its rivals have the same budget, a tenth of the
gradients of the planned run: SCAFFOLD with ten local steps and a tuned step size, random search, and successive halving
over the grid. The ablation is the diagnosis without measured constants.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

import fairlead as fl
from advice_page import write_page
from advice_pairs import DEVELOPED_ON, JUDGED_ON, Pair
from fairlead.study.diagnose.answers import drifts
from fairlead.study.diagnose.race import Race, work_of
from fairlead.study.diagnose.rule import FAMILIES, Candidate
from fairlead.task.metrics import Better, reaches
from fairlead.task.pooled import pooled

RATES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
FEW, MANY = 5, 20
SEED = 2
"""The seed of the judge; the diagnosis sees 0 and 1."""
LATE = 3
"""Runs are given up after so many times the planned rounds."""
EARLY = ("SCAFFOLD", "FedAvg with server momentum")
"""Often the best: others with many local steps are given up after half as many rounds more than the best so far."""
FILES = Path(__file__).parent / "results"


class Judge:
    """The grid of a pair, its target, and what any configuration needs to reach it."""

    def __init__(self, pair: Pair) -> None:
        self.pair, self.task = pair, pair.make()
        several = len({name.rpartition(".")[0] for name in self.task.layers}) > 1
        self.better: Better = "higher" if pair.metric == "accuracy" else "lower"
        self.known: dict[Candidate, dict[str, float]] = {}
        names = [n for n in FAMILIES if (several or n != "FedPVR") and n != "minibatch SGD"]
        self.grid = [
            Candidate(name, steps, lr)
            for name in names
            for steps in ((FEW,) if name == "FedSGD" else (FEW, MANY))
            for lr in RATES
        ]
        fedavg = [one for one in self.grid if one.family == "FedAvg"]
        self.target = math.nan
        half = pair.rounds // 2
        runs = self._runs(fedavg, half)
        curves = {
            one: run.history[pair.metric][: half + 1]
            for one, run in runs.items()
            if run.stopped != "diverged"
        }
        best = np.nanmax if self.better == "higher" else np.nanmin
        self.target = float(best([best(curve) for curve in curves.values()]))
        for one, run in runs.items():
            self._keep(one, run)
        self.layers = {}
        if several:
            alive = {one: curve[-1] for one, curve in curves.items()}
            pick = max if self.better == "higher" else min
            top = pick(alive, key=lambda one: alive[one])
            self.layers = drifts([runs[top]])
        for name in sorted(names, key=lambda name: name not in EARLY):
            for steps in (FEW, MANY):
                mine = [
                    o
                    for o in self.grid
                    if o.family == name and o.steps == steps and o not in self.known
                ]
                most = 1.5 * self.best("rounds") if steps == MANY else half
                self.need(mine, math.ceil(most))

    def _runs(self, some: Sequence[Candidate], rounds: int, **more: Any) -> dict[Candidate, fl.Run]:
        found: dict[Candidate, fl.Run] = {}
        target = {} if math.isnan(self.target) else {"target": {self.pair.metric: self.target}}
        for steps in sorted({one.steps for one in some}):
            mine = [one for one in some if one.steps == steps]
            settings = {**self.pair.settings, **target, "drift": math.isnan(self.target), **more}
            runs = fl.train_many(
                self.task,
                [(one.method, SEED) for one in mine],
                rounds=rounds,
                steps=steps,
                progress=False,
                **settings,
            )
            found |= dict(zip(mine, runs, strict=True))
        return found

    def _keep(self, one: Candidate, run: fl.Run) -> None:
        good = reaches(run.history[self.pair.metric], self.target, self.better) & (
            run.stopped != "diverged"
        )
        k = int(good.argmax()) if good.any() else None
        value = {"rounds": math.inf, "bits": math.inf, "diverged": float(run.stopped == "diverged")}
        if k is not None:
            value |= {"rounds": float(k), "bits": float(run.history["bits"][k])}
        self.known[one] = value

    def need(self, some: Sequence[Candidate], rounds: int) -> None:
        """Run configurations to the target."""
        for one, run in self._runs(some, rounds).items():
            self._keep(one, run)

    def best(self, unit: str, *families: str, steps: int | None = None) -> float:
        """The least that the grid needs."""
        found = [
            self.known[one][unit]
            for one in self.grid
            if one in self.known
            and (not families or one.family in families) and steps in (None, one.steps)
        ]  # fmt: skip
        return min(found, default=math.inf)

    def judged(self, one: Candidate, unit: str) -> dict[str, Any]:
        """What a recommendation needs, over the best of the grid."""
        if one not in self.known or math.isinf(self.known[one]["rounds"]):
            self.need([one], LATE * self.pair.rounds)
        mine = self.known[one]
        best = self.best(unit)
        ratio = mine[unit] / best if best > 0 else (1.0 if mine[unit] == 0 else math.inf)
        return {
            "what": str(one),
            "ratio": ratio,
            unit: mine[unit],
            "diverged": bool(mine["diverged"]),
        }


# -- rivals -----------------------------------------------------------------------------------------


def _race(judge: Judge, unit: str) -> Race:
    pair = judge.pair
    one = Race(judge.task, pair.settings, 0.0, "loss", by=unit)
    one.budget = 0.1 * pair.rounds * one.price(Candidate("FedAvg", pair.steps, 1.0))
    return one


def fixed(judge: Judge, unit: str) -> Candidate:
    """SCAFFOLD with ten local steps; the budget goes to its step size."""
    race = _race(judge, unit)
    return race.halve(
        [Candidate("SCAFFOLD", 10, lr) for lr in _shuffled(RATES, 1)], 1.0, "race", keep=1
    )[0]


def random_search(judge: Judge, unit: str, rounds: int = 8) -> Candidate:
    """Configurations of the grid at random, for eight rounds each."""
    race, tried = _race(judge, unit), []
    for one in _shuffled(judge.grid, 2):
        if race.spent + race.cost([one], rounds) > race.budget:
            break
        race.advance([one], rounds)
        tried.append(one)
    return race.ranked(tried)[0] if tried else _shuffled(judge.grid, 2)[0]


def halving(judge: Judge, unit: str) -> Candidate:
    """Successive halving over the grid: as many at random as leave each rung its share of the budget."""
    race, order = _race(judge, unit), _shuffled(judge.grid, 3)
    count = len(order)
    while count > 2 and race.cost(order[:count], 1) * math.ceil(math.log2(count)) > race.budget:
        count -= 1
    return race.halve(order[:count], 1.0, "race", keep=1)[0]


def _shuffled(values: Sequence[Any], seed: int) -> list[Any]:
    return [values[k] for k in np.random.default_rng(seed).permutation(len(values))]


# -- one pair ---------------------------------------------------------------------------------------


def judged(name: str, pair: Pair) -> dict[str, Any]:
    """A line of the results."""
    begin = time.perf_counter()
    judge = Judge(pair)
    line: dict[str, Any] = {"pair": name, "target": judge.target, "metric": pair.metric}
    line["grid"] = {unit: judge.best(unit) for unit in ("rounds", "bits")}
    line["best"] = {
        unit: str(min(judge.grid, key=lambda one: judge.known[one][unit]))
        for unit in ("rounds", "bits")
    }
    goal = {pair.metric: judge.target}
    for unit in ("rounds", "bits"):
        found = {"rule": _diagnosed(judge, goal, unit, True)}
        if unit == "rounds":
            found["without constants"] = _diagnosed(judge, goal, unit, False)
        advised = {who: one.best for who, one in found.items()}
        rivals = {"fixed": fixed, "random": random_search, "halving": halving}
        advised |= {who: rival(judge, unit) for who, rival in rivals.items()}
        line[unit] = {who: judge.judged(one, unit) for who, one in advised.items()}
        if unit == "rounds":
            line["answers"] = checked(judge, found["rule"])
            line["spent"] = found["rule"].race.spent / found["rule"].planned
    line["seconds"] = round(time.perf_counter() - begin)
    return line


def _diagnosed(judge: Judge, goal: Mapping[str, float], unit: str, measure: bool) -> fl.Diagnosis:
    pair = judge.pair
    return fl.diagnose(
        judge.task,
        rounds=pair.rounds,
        steps=pair.steps,
        target=goal,
        by=unit,
        measure=measure,
        **pair.settings,
    )


# -- the nine answers -------------------------------------------------------------------------------


def checked(judge: Judge, found: fl.Diagnosis) -> list[dict[str, Any]]:
    """Each answer beside what the grid says: whether the true number lies in its range, and whether the answer settles
    the question."""
    best, answers = found.best, found.answers
    local = [name for name in FAMILIES if name != "FedSGD"]
    family = judge.best("rounds", best.family)
    rows = [
        (judge.best("rounds", "FedSGD") / judge.best("rounds", *local), None),
        (family / judge.best("rounds"), family <= 1.1 * judge.best("rounds")),
        _true_steps(judge, best, answers[2].number),
        _true_rate(judge, best, answers[3].number),
        (judge.best("bits", "FedAvg") / judge.best("bits", "FedAvg in 4 bits"), None),
        (judge.known.get(best, {}).get("rounds", math.inf), None),
        _true_gap(judge, found),
        _true_layer(judge, found),
        _true_half(judge, best),
    ]
    if best not in judge.known or math.isinf(judge.known[best]["rounds"]):
        judge.need([best], LATE * judge.pair.rounds)
    rows[5] = (judge.known[best]["rounds"], None)
    lines = []
    for answer, (truth, right) in zip(answers, rows, strict=True):
        number = answer.number
        if (
            right is None
            and number is not None
            and not (isinstance(truth, float) and math.isnan(truth))
        ):
            right = bool(number.low * 0.999 <= truth <= number.high * 1.001)
        value = None if number is None else [number.value, number.low, number.high]
        lines.append({"truth": truth, "said": value, "right": right, "clear": answer.clear})
    return lines


def _true_steps(judge: Judge, best: Candidate, said: Any) -> tuple[float, bool]:
    each = {k: judge.best("rounds", best.family, steps=k) for k in (FEW, MANY)}
    true = min(each, key=lambda k: each[k])
    if best.family == "FedSGD":
        return 1.0, judge.best("rounds", "FedSGD") <= 1.1 * judge.best("rounds")
    good = [k for k in each if each[k] <= 1.1 * each[true]]
    return float(true), any(said is not None and said.low <= k <= said.high for k in good)


def _true_rate(judge: Judge, best: Candidate, said: Any) -> tuple[float, bool]:
    mine = [o for o in judge.grid if (o.family, o.steps) == (best.family, best.steps)]
    least = min(judge.known[one]["rounds"] for one in mine)
    good = [one.lr for one in mine if judge.known[one]["rounds"] <= 1.1 * least]
    return good[0], any(said.low * 0.95 <= lr <= said.high * 1.05 for lr in good)


def _true_gap(judge: Judge, found: fl.Diagnosis) -> tuple[float, None]:
    """The gap to centralised training at the end of the planned run."""
    pair, best, metric = judge.pair, found.best, found.metric.by
    mine = judge._runs([best], pair.rounds, target=None, drift=False)[best]
    plan, local = work_of(pair.settings)
    batch = float(np.minimum(local.sizes_of(judge.task.sizes), judge.task.sizes).mean())
    together = max(1, round(batch * len(plan.sampler.cohort(0, 0, judge.task.clients))))
    work: dict[str, Any] = (
        {} if best.family == "FedSGD" else {"steps": best.steps, "batch_size": together}
    )
    central = fl.train(
        pooled(judge.task), best.method, rounds=pair.rounds, seed=SEED, progress=False, **work
    )
    if "diverged" in (mine.stopped, central.stopped):
        return math.nan, None
    there = judge.task.evaluate(central.x)[metric]
    return (1 if judge.better == "higher" else -1) * (there - mine.history.last(metric)), None


def _true_layer(judge: Judge, found: fl.Diagnosis) -> tuple[float, bool | None]:
    said = found.answers[7]
    if not judge.layers or not said.rows or said.number is None:
        return math.nan, None
    top = max(judge.layers, key=lambda name: judge.layers[name].value)
    return judge.layers[top].value, top in said.words


def _true_half(judge: Judge, best: Candidate) -> tuple[float, None]:
    runs = judge._runs([best], LATE * judge.pair.rounds, dropout=0.5)
    good = reaches(runs[best].history[judge.pair.metric], judge.target, judge.better)
    usual = judge.known.get(best, {}).get("rounds", math.inf)
    if not good.any() or math.isinf(usual) or usual == 0:
        return math.nan, None
    return float(good.argmax()) / usual, None


def stored(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--developed", action="store_true", help="the pairs that the rule was developed on"
    )
    parser.add_argument("--only", default="", help="part of the name of the pairs")
    parser.add_argument(
        "--page", action="store_true", help="put the tables of what is stored into the docs"
    )
    parser.add_argument("--part", default="0/1", help="1/3 for the second third of the pairs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    pairs, file = (
        (DEVELOPED_ON, "advice-developed.jsonl") if given.developed else (JUDGED_ON, "advice.jsonl")
    )
    file = FILES / file
    done = stored(file)
    if given.page:
        order = list(pairs)
        write_page(sorted(done, key=lambda line: order.index(line["pair"])), len(pairs))
        return
    part, parts = map(int, given.part.split("/"))
    for name, pair in list(pairs.items())[part::parts]:
        if given.only in name and name not in {line["pair"] for line in done}:
            line = judged(name, pair)
            FILES.mkdir(exist_ok=True)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(_plain(line)) + "\n")
            print(name, json.dumps(_plain(line["rounds"])), f"{line['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
