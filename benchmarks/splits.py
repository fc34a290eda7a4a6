"""Seconds that each split takes for a million labels, and its label table.

python benchmarks/splits.py [--samples 1000000] [--repeats 3]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fairlead.data import splits

SETTINGS: list[tuple[str, dict[str, float]]] = [
    ("iid", {}),
    ("similarity", {"percent": 10}),
    ("shards", {"per_client": 2}),
    *[("dirichlet", {"alpha": alpha}) for alpha in (1e-3, 0.1, 1e3)],
    *[("dirichlet-balanced", {"alpha": alpha}) for alpha in (1e-3, 0.1, 1e3)],
    ("quantity", {"alpha": 0.5}),
    ("quantity", {"power": 1.0}),
]


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """The median time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, given.samples)
    print(f"{given.samples:,} labels of 10 classes, median of {given.repeats}\n")
    print("| split | clients | seconds | table, seconds |")
    print("|---|---|---|---|")
    for clients in (10_000, 100_000):
        ids = rng.integers(0, clients, given.samples)
        makers = [(name, splits.SPLITS[name], (labels, clients), more) for name, more in SETTINGS]
        for name, function, first, more in [*makers, ("by-id", splits.by_id, (ids,), {})]:
            make = partial(function, *first, **more)
            took = seconds(make, given.repeats)
            table = seconds(partial(make().table, labels), given.repeats)
            text = " ".join([name, *(f"{key} {value:g}" for key, value in more.items())])
            print(f"| {text} | {clients:,} | {took:.3f} | {table:.3f} |")


if __name__ == "__main__":
    main()
