"""Where the time of a round on a GPU goes: kernels by kind, beside the floor of the round's arithmetic and bytes.

    PYTHONPATH=src:benchmarks python benchmarks/kernels.py [W1 W2 W4 W5 W6]

A few captured, compiled rounds are traced by torch's profiler. Written to benchmarks/results/gpu_kernels.json.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import fairlead as fl
from bench.machine import FAR, Machine, matmul_rate
from bench.ours import METHODS
from bench.stored import keep
from bench.workloads import Workload, chosen
from gpu_rounds import BY_DEFAULT, settings

KINDS = {  # in this order: the first that matches
    "convolutions": r"^_(convolve|gradient_of_weights)",
    "norms": r"^_(forward|backward)$",
    "pools": r"^_(pool|gradient_of_pool)$",
    "products": r"^_multiply|gemm|gemv|nvjet|cublas",
    "copies": r"^Mem(cpy|set)|copy_kernel",
    "compiled": r"^triton_",
}
BEFORE, ROUNDS = 30, 5
TYPES = {"tf32": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}


class Traced(fl.Callback):
    """Profiles some rounds of a run."""

    def __init__(self) -> None:
        self.done = 0
        self.profiler = profile(activities=[ProfilerActivity.CUDA])

    def round(self, view: Any) -> None:
        """After each round."""
        self.done += 1
        if self.done == BEFORE:
            torch.cuda.synchronize()
            self.profiler.__enter__()
        if self.done == BEFORE + ROUNDS:
            torch.cuda.synchronize()
            self.profiler.__exit__(None, None, None)


def kind_of(kernel: str) -> str:
    """What a kernel does.

    >>> [kind_of(n) for n in ("_convolve", "_forward", "triton_poi_fused_add_0", "nvjet_sm90_tst", "Memcpy DtoD")]
    ['convolutions', 'norms', 'compiled', 'products', 'copies']
    """
    found = (kind for kind, pattern in KINDS.items() if re.search(pattern, kernel))
    return next(found, "other")


def profiled(work: Workload) -> dict[str, Any]:
    """The kernels of a round."""
    precision: Any
    method, precision = BY_DEFAULT.get(work.name, ("SCAFFOLD", "bfloat16"))
    traced, engine = Traced(), fl.Simulate(precision=precision, compile=True)
    run = fl.train(
        work.task("cuda"), METHODS[method](lr=work.lr), rounds=BEFORE + ROUNDS + 1, engine=engine,
        callbacks=[traced], **settings(work, 1000),
    )  # fmt: skip
    kinds: dict[str, float] = {}
    names: dict[str, float] = {}
    count = 0
    for event in traced.profiler.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            seconds = event.time_range.elapsed_us() / 1e6 / ROUNDS
            kinds[kind_of(event.name)] = kinds.get(kind_of(event.name), 0.0) + seconds
            names[event.name[:80]] = names.get(event.name[:80], 0.0) + seconds
            count += 1
    most = dict(sorted(names.items(), key=lambda item: -item[1])[:12])
    busy = sum(kinds.values())
    print(
        f"{work.name}: {1e3 * busy:.3g} ms of kernels per round, {count / ROUNDS:.0f} of them",
        flush=True,
    )
    for kind, seconds in sorted(kinds.items(), key=lambda item: -item[1]):
        print(f"  {1e3 * seconds:.3g} ms {kind}", flush=True)
    return {
        "name": work.name, "title": work.title, "method": method, "precision": precision,
        "flops": work.count.flops, "kernels": count / ROUNDS, "busy": busy, "kinds": kinds, "longest": most,
        "engine": run.engine,
    }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("workloads", nargs="*", default=["W1", "W2", "W4", "W5", "W6"])
    given = asked.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    rates = {name: matmul_rate("cuda", TYPES[name]) for name in ("tf32", "bfloat16")}
    machine = Machine("cuda", "", 1, rates["tf32"], rates["tf32"])
    found: dict[str, Any] = {"rates": rates, "bandwidth": machine.bandwidth(FAR), "rounds": []}
    for work in chosen(given.workloads, "cuda"):
        found["rounds"].append(profiled(work))
        keep("gpu_kernels", found, "cuda")


if __name__ == "__main__":
    main()
