"""Tables: any CSV file with a column that says whose row it is.

    python examples/tabular.py patients.csv ill hospital     # file, target, client column
    python examples/tabular.py                               # on a made-up table

Strings are one-hot encoded and numbers standardised; a fifth of every client's rows is held out for testing, and another fifth of the
rest chooses the step sizes.
"""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

import fairlead as fl


def made_up(path: Path) -> Path:
    """A table of patients of five hospitals, whose ages differ, and with them who falls ill."""
    rng = random.Random(0)
    rows: list[list[object]] = [["hospital", "age", "pressure", "smoker", "ill"]]
    for hospital, age in {"bern": 35, "lyon": 50, "oslo": 65, "rome": 75, "turin": 45}.items():
        for _ in range(150):
            years, smokes = rng.gauss(age, 8), rng.random() < 0.3
            pressure = rng.gauss(110 + 0.3 * years, 8)
            risk = 0.1 * (years - 55) + 0.05 * (pressure - 127) + 2 * smokes + rng.gauss(0, 1)
            smoker, ill = ("yes" if yes else "no" for yes in (smokes, risk > 0))
            rows.append([hospital, round(years, 1), round(pressure, 1), smoker, ill])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def main(file: str = "", target: str = "ill", client: str = "hospital", rounds: int = 20) -> None:
    path = file or made_up(Path("patients.csv"))
    task = fl.Task.from_csv(path, target=target, client=client, hold_out=0.2, valid=0.2)
    methods = [fl.FedSGD(lr=1.0), fl.FedAvg(lr=1.0), fl.Scaffold(lr=1.0)]
    result = fl.compare(task, methods, rounds=rounds, batch_size=0.2, grid=[3, 1, 0.3], seeds=2)
    print(result.to_markdown())
    best = result.entries["Scaffold"].runs[0]
    for name, value in best.per_client().values.items():
        print(name, value.round(3))


if __name__ == "__main__":
    main(*sys.argv[1:])
