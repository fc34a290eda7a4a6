"""How good is the advice of `fairlead diagnose`?

    python benchmarks/advice.py [--developed]       all pairs, one after the other
    python benchmarks/advice.py --pair NAME         one pair (part of its name), so that many can run at once
    python benchmarks/advice.py --list              the names
    python benchmarks/advice.py --merge             what pairs have left behind, into benchmarks/results/advice.jsonl
    python benchmarks/advice.py --page              put the tables into docs/diagnose.md

For each pair (advice_pairs.py) a grid of methods × local steps × step sizes is run with a seed that the diagnosis does not
see. Metrics are read as means over five rounds, as single rounds depend on who took part, and a peak says nothing. The
target is the best of them that FedAvg has in the grid at half of the planned rounds. A recommendation is judged by its
rounds (or bits) to the target over those of the best of the grid. Its rivals have the same budget, a tenth of the
gradients of the planned run: SCAFFOLD with ten local steps and a tuned step size, random search, and successive halving
over the grid. The ablation is the diagnosis without measured constants.

Each pair writes a file of its own, and again after each of its parts, so that one that is cut off leaves what it has.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))

import fairlead as fl
from advice_page import write_page
from advice_pairs import DEVELOPED_ON, JUDGED_ON, Pair
from fairlead.study.diagnose.answers import drifts
from fairlead.study.diagnose.race import Race, work_of
from fairlead.study.diagnose.rule import FAMILIES, PACKED, Candidate
from fairlead.task.metrics import Better, reaches
from fairlead.task.pooled import pooled

RATES = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
LARGER = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
"""Those of FedSGD, whose one step stands for many."""
FEW, MANY = 5, 20
WINDOW = 5
"""Rounds over which a metric is averaged."""
SEED = 2
"""The seed of the judge; the diagnosis sees 0 and 1."""
LATE = 3
"""Runs are given up after so many times the planned rounds."""
CHUNK = 20
"""Rounds after which those that have reached the target stop."""
EARLY = ("SCAFFOLD", "SCAFFOLD with server momentum", PACKED, "FedAvg with server momentum")
"""Often the best: others with many local steps are given up after half as many rounds more than the best so far."""
FILES = Path(__file__).parent / "results"


def averaged(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over the last five rounds, from the first round that has them on.

    >>> averaged(np.arange(8.0)).tolist()
    [nan, nan, nan, nan, nan, 3.0, 4.0, 5.0]
    """
    found = np.full(len(values), math.nan)
    if len(values) > WINDOW:
        means = np.lib.stride_tricks.sliding_window_view(values[1:], WINDOW).mean(axis=1)
        found[WINDOW:] = np.round(
            means, 9
        )  # equal means are equal whatever the order of their rounds
    return found


class Judge:
    """The grid of a pair, its target, and what any configuration needs to reach it."""

    def __init__(self, pair: Pair) -> None:
        self.pair, self.task = pair, pair.make()
        several = len({name.rpartition(".")[0] for name in self.task.layers}) > 1
        self.better: Better = "higher" if pair.metric == "accuracy" else "lower"
        self.race = Race(self.task, pair.settings, math.inf, pair.metric)
        self.target = math.nan
        names = [n for n in FAMILIES if (several or n != "FedPVR") and n != "minibatch SGD"]
        self.grid = [
            Candidate(name, steps, lr)
            for name in names
            for steps in ((FEW,) if name == "FedSGD" else (FEW, MANY))
            for lr in (LARGER if name == "FedSGD" else RATES)
        ]
        half = pair.rounds // 2
        fedavg = [one for one in self.grid if one.family == "FedAvg"]
        self.race.advance(fedavg, half, seed=SEED)
        ends = {
            one: float(averaged(self.race.runs[one, SEED].history[pair.metric])[half])
            for one in fedavg
            if not self.race.is_lost(one, SEED)
        }
        pick = max if self.better == "higher" else min
        best = pick((one for one in ends if math.isfinite(ends[one])), key=lambda one: ends[one])
        self.target = ends[best]
        self.layers = {}
        if several:
            run = fl.train(
                self.task, best.method, rounds=half, steps=best.steps, seed=SEED, drift=True, progress=False,
                **pair.settings,
            )  # fmt: skip
            self.layers = drifts([run])
        for name in sorted(names, key=lambda name: name not in EARLY):
            for steps in (FEW, MANY):
                mine = [o for o in self.grid if (o.family, o.steps) == (name, steps)]
                most = 1.5 * self.best("rounds") if steps == MANY else half
                self.need(mine, math.ceil(min(most, 2 * half)))

    def need(self, some: Sequence[Candidate], rounds: int, race: Race | None = None) -> None:
        """Run configurations until they have reached the target, or for so many rounds."""
        race = race or self.race
        for steps in sorted({one.steps for one in some}):
            left = [one for one in some if one.steps == steps]
            at = min((race.done(one, SEED) for one in left), default=0)
            while left and at < rounds:
                at = min(at + CHUNK, rounds)
                race.advance(left, at, seed=SEED)
                left = [
                    one
                    for one in left
                    if not race.is_lost(one, SEED) and math.isinf(self.known(one, "rounds", race))
                ]

    def known(self, one: Candidate, unit: str, race: Race | None = None) -> float:
        """The rounds or bits of a configuration to the target; infinite if it has not reached it."""
        race = race or self.race
        run = race.runs.get((one, SEED))
        if run is None or race.is_lost(one, SEED):
            return math.inf
        good = reaches(averaged(run.history[self.pair.metric]), self.target, self.better)
        if not good.any():
            return math.inf
        k = int(good.argmax())
        return float(k if unit == "rounds" else run.history["bits"][k])

    def best(self, unit: str, *families: str, steps: int | None = None) -> float:
        """The least that the grid needs."""
        found = [
            self.known(one, unit)
            for one in self.grid
            if (not families or one.family in families) and steps in (None, one.steps)
        ]
        return min(found, default=math.inf)

    def judged(self, one: Candidate, unit: str) -> dict[str, Any]:
        """What a recommendation needs, over the best of the grid."""
        mine, best = self.known(one, unit), self.best(unit)
        return {
            "what": str(one),
            "ratio": mine / best if math.isfinite(best) else math.inf,
            unit: mine,
            "diverged": self.race.is_lost(one, SEED),
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


def judged(name: str, pair: Pair) -> Iterator[dict[str, Any]]:
    """A line of the results, first with the rounds, and then with the bits as well."""
    begin = time.perf_counter()
    judge = Judge(pair)
    line: dict[str, Any] = {"pair": name, "target": judge.target, "metric": pair.metric}
    line["grid"] = {unit: judge.best(unit) for unit in ("rounds", "bits")}
    line["best"] = {
        unit: str(min(judge.grid, key=lambda one: judge.known(one, unit)))
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
        judge.need(list(dict.fromkeys(advised.values())), LATE * pair.rounds)
        line[unit] = {who: judge.judged(one, unit) for who, one in advised.items()}
        if unit == "rounds":
            line["answers"] = checked(judge, found["rule"])
            line["spent"] = found["rule"].race.spent / found["rule"].planned
        line["seconds"] = round(time.perf_counter() - begin)
        yield line


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
    judge.need([best], LATE * judge.pair.rounds)
    rows = [
        (judge.best("rounds", "FedSGD") / judge.best("rounds", *local), None),
        (family / judge.best("rounds"), family <= 1.1 * judge.best("rounds")),
        _true_steps(judge, best, answers[2].number),
        _true_rate(judge, best, answers[3].number),
        (judge.best("bits", "FedAvg") / judge.best("bits", "FedAvg in 4 bits"), None),
        (judge.known(best, "rounds"), None),
        _true_gap(judge, found),
        _true_layer(judge, found),
        _true_half(judge, best),
    ]
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


def _true_rate(judge: Judge, best: Candidate, said: Any) -> tuple[float, bool | None]:
    mine = [o for o in judge.grid if (o.family, o.steps) == (best.family, best.steps)]
    least = min((judge.known(one, "rounds") for one in mine), default=math.inf)
    good = [one.lr for one in mine if judge.known(one, "rounds") <= 1.1 * least]
    if math.isinf(least):
        return math.nan, None
    return good[0], any(said.low * 0.95 <= lr <= said.high * 1.05 for lr in good)


def _true_gap(judge: Judge, found: fl.Diagnosis) -> tuple[float, None]:
    """The gap to centralised training at the end of the planned run."""
    pair, best, metric = judge.pair, found.best, found.metric.by
    judge.race.advance([best], pair.rounds, seed=SEED)
    mine = judge.race.runs[best, SEED]
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
    here = float(mine.history[metric][pair.rounds])
    return (1 if judge.better == "higher" else -1) * (there - here), None


def _true_layer(judge: Judge, found: fl.Diagnosis) -> tuple[float, bool | None]:
    said = found.answers[7]
    if not judge.layers or not said.rows or said.number is None:
        return math.nan, None
    top = max(judge.layers, key=lambda name: judge.layers[name].value)
    return judge.layers[top].value, top in said.words


def _true_half(judge: Judge, best: Candidate) -> tuple[float, None]:
    usual = judge.known(best, "rounds")
    if math.isinf(usual):
        return math.nan, None
    few = Race(judge.task, {**judge.pair.settings, "dropout": 0.5}, math.inf, judge.pair.metric)
    judge.need([best], LATE * judge.pair.rounds, few)
    late = judge.known(best, "rounds", few)
    return (late / usual if math.isfinite(late) else math.nan), None


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


def own_file(name: str) -> Path:
    """The file of a pair."""
    return FILES / "advice-pairs" / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".json")


def merged(file: Path, pairs: Mapping[str, Pair]) -> list[dict[str, Any]]:
    """Lines that are stored and those of the files of pairs, which replace older ones, in the order of the pairs."""
    found = {line["pair"]: line for line in stored(file)}
    for name in pairs:
        if own_file(name).exists():
            found[name] = json.loads(own_file(name).read_text())
    return [found[name] for name in pairs if name in found]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--developed", action="store_true", help="the pairs that the rule was developed on"
    )
    parser.add_argument("--pair", default="", help="part of the name of the pairs to run")
    parser.add_argument("--list", action="store_true", help="print the names of the pairs")
    parser.add_argument(
        "--merge", action="store_true", help="collect the files of pairs in one with a line each"
    )
    parser.add_argument(
        "--page", action="store_true", help="put the tables of what is stored into the docs"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    pairs = DEVELOPED_ON if given.developed else JUDGED_ON
    file = FILES / ("advice-developed.jsonl" if given.developed else "advice.jsonl")
    if given.list:
        print("\n".join(pairs))
    elif given.merge:
        lines = [json.dumps(line) + "\n" for line in merged(file, pairs)]
        file.write_text("".join(lines), encoding="utf-8")
        print(f"{file}: {len(lines)} of {len(pairs)} pairs")
    elif given.page:
        write_page([line for line in stored(file) if line["pair"] in pairs], len(pairs))
    else:
        for name, pair in pairs.items():
            if given.pair in name:
                _run(name, pair)


def _run(name: str, pair: Pair) -> None:
    file = own_file(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    for line in judged(name, pair):
        file.write_text(json.dumps(_plain(line)) + "\n", encoding="utf-8")
        unit = "bits" if "bits" in line else "rounds"
        ratios = {who: cell["ratio"] for who, cell in _plain(line)[unit].items()}
        print(f"{name}: {unit} {json.dumps(ratios)}, {line['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
