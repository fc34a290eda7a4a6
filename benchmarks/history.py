"""What keeping a history costs: seconds to load 10,000 rounds × 20 columns, and the time to write one
round's row over the time of a round (softmax 784→62, 20 clients × 5 steps × 240, FedAvg, CPU).

    python benchmarks/history.py

Also measured beside it: the same rows as Parquet segments of 50 rounds and as lines of JSON.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fairlead as fl
from fairlead.run.history_file import HistoryFile, read_history
from many import workload

ROWS, COLUMNS = 10_000, 20


def timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    names = ["round", *(f"column {k}" for k in range(COLUMNS - 1))]
    values = np.random.default_rng(0).normal(size=(ROWS, COLUMNS - 1)).tolist()
    rows = [dict(zip(names, [k, *row], strict=True)) for k, row in enumerate(values)]

    file = HistoryFile(folder / "history.sqlite")
    file.begin(after=-1)
    write = timed(lambda: [file.append(row) for row in rows]) / ROWS
    file.end("rounds")
    load = statistics.median(
        timed(lambda: list(read_history(folder / "history.sqlite").values())) for _ in range(5)
    )
    lines = folder / "history.jsonl"
    with lines.open("w") as out:
        write_lines = timed(
            lambda: [(out.write(json.dumps(row) + "\n"), out.flush()) for row in rows]
        )
    load_lines = timed(lambda: list(fl.History.from_jsonl(lines).values()))
    task = workload("cpu")
    work = {"rounds": 10, "steps": 5, "batch_size": 240, "eval_every": 10, "progress": False}
    round_ = statistics.median(
        fl.train(task, fl.FedAvg(lr=0.1), **work).seconds / 10 for _ in range(3)
    )
    print(f"SQLite (WAL): load {load:.3f} s, write {1e6 * write:.0f} µs a row, "
          f"{100 * write / round_:.3f} % of a round of {1e3 * round_:.0f} ms")  # fmt: skip
    print(f"JSON lines:   load {load_lines:.3f} s, write {1e6 * write_lines / ROWS:.0f} µs a row")
    parquet(folder, rows)


def parquet(folder: Path, rows: list[dict[str, float]]) -> None:
    """Segments written when 50 rounds are full: a kill loses up to 49."""
    import pyarrow
    from pyarrow import parquet as files

    def write() -> None:
        for first in range(0, ROWS, 50):
            table = pyarrow.Table.from_pylist(rows[first : first + 50])
            files.write_table(table, folder / f"{first:06d}.parquet")

    cost = timed(write) / ROWS
    parts = sorted(folder.glob("*.parquet"))
    load = timed(lambda: pyarrow.concat_tables([files.read_table(p) for p in parts]).to_pydict())
    print(f"Parquet, segments of 50: load {load:.3f} s, write {1e6 * cost:.0f} µs a row")


if __name__ == "__main__":
    main()
