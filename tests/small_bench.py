"""A tiny workload and a made-up report of the benchmark."""

from __future__ import annotations

from typing import Any

from bench import figure
from bench.workloads import Workload

TINY = Workload("T", "tiny", "mlp", (4, 3, 2), (4,), 2, 4, 3, 5, lr=0.1)


def contestant(group: str, median: float | None, **more: Any) -> dict[str, Any]:
    base = {"form": "1 process", "turns": [], "version": "1.0", "note": "loop", "failed": ""}
    return {"group": group, "median": median, **base, **more}


def small_report() -> dict[str, Any]:
    """What `bench` returns, made up."""
    row = {
        "name": "W1", "title": "softmax", "rounds": 0, "flops": 4e9, "three_passes": 6e9, "data": 1e8,
        "weights": 1e8, "floor": 0.05, "floor_arithmetic": 0.05, "floor_memory": 0.02,
        "contestants": [
            contestant("bare loop", 0.2), contestant("fairlead", 0.1), contestant("SCAFFOLD", 0.12),
            contestant("pfl", 0.4), contestant("pfl", 0.3, form="2 processes"),
            contestant("Flower", None, failed="Flower could not be installed: no wheel"),
        ],
    }  # fmt: skip
    machine = {
        "name": "2 cores", "device": "cpu", "threads": 2, "rate": 9e10, "convolution_rate": 9e10,
        "torch": "2.13.0", "copies": {"1000": 5e10, "100000": 1e10}, "load": 0.1,
    }  # fmt: skip
    points = [
        {"curve": name, "value": value, "floor": 0.001, "fairlead": 0.002, "SCAFFOLD": None,
         "bare loop": 0.004, "contestants": [contestant("SCAFFOLD", None, failed="SCAFFOLD failed")]}
        for name in figure.AXES for value in (1, 10)
    ]  # fmt: skip
    return {"machine": machine, "repeats": 5, "workloads": [row], "scaling": points}
