"""Dense layers with weights of each client's own, on a GPU: their products by fairlead's kernel and by torch's.

    PYTHONPATH=src:benchmarks python benchmarks/dense.py [tune]

The layers of W1, W2, W5 and W6. Every product is compared with float64 and timed in a CUDA graph over several sets of operands,
so that they do not lie in the cache more than in a round. tune: other tiles too. Written to benchmarks/results/dense.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from itertools import product
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from bench.stored import keep
from fairlead.gradients.stacked.tiles import Tile, power_of_2, product_tile
from fairlead.gradients.stacked.triton_dense import multiply

LAYERS = {  # clients, batch, outputs, inputs, columns of the parameter vector, type
    "W1": (20, 240, 62, 784, 48_670, torch.float32),
    "W2, first": (25, 32, 300, 784, 328_810, torch.bfloat16),
    "W2, second": (25, 32, 300, 300, 328_810, torch.bfloat16),
    "W2, last": (25, 32, 10, 300, 328_810, torch.bfloat16),
    "W5, first": (10, 256, 512, 512, 9_750_922, torch.bfloat16),
    "W6, first": (50, 10, 512, 3136, 1_626_442, torch.bfloat16),
    "W6, last": (50, 10, 10, 512, 1_626_442, torch.bfloat16),
}
UNTUNED = ("W5, first",)
SETS, CALLS = 3, 24
START = time.perf_counter()


def operands(name: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Both sides of the three products of a layer. In float32 weights are views of the parameter vectors."""
    clients, batch, m, n, dim, dtype = LAYERS[name]
    x = torch.randn(clients, batch, n, device="cuda").to(dtype)
    g = torch.randn(clients, batch, m, device="cuda").to(dtype)
    if dtype == torch.float32:
        w = torch.randn(clients, dim, device="cuda")[:, : m * n].unflatten(1, (m, n))
    else:
        w = torch.randn(clients, m, n, device="cuda").to(dtype)
    return {"forward": (x, w.mT), "input": (g, w), "weight": (g.mT, x)}


def milliseconds(
    run: Callable[[Tensor, Tensor], Tensor], pairs: list[tuple[Tensor, Tensor]]
) -> float:
    """The median time of a product."""
    for a, b in pairs:
        run(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for k in range(CALLS):
            run(*pairs[k % len(pairs)])
    taken = []
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / CALLS)
    return statistics.median(taken)


def tiles(a: Tensor, b: Tensor) -> list[Tile]:
    """Tiles to try."""
    rows, columns, depth = (
        power_of_2(a.shape[1], 16),
        power_of_2(b.shape[2], 16),
        power_of_2(a.shape[2], 16),
    )
    deepest = 64 if a.element_size() == 4 else 128
    found = [
        Tile(m, n, k, 4 if m * n < 8192 else 8, stages)
        for m, n in product((16, 32, 64, 128), (16, 32, 64, 128))
        if m <= rows and n <= columns and 512 <= m * n <= 8192
        for k in {min(depth, deepest // 2), min(depth, deepest)}
        for stages in ((2,) if depth <= 2 * k else (3, 5))
    ]
    return found or [Tile(min(rows, 64), min(columns, 64), min(depth, 32))]


def compiled(work: tuple[str, str, int, int]) -> None:
    """Compile the kernels of a share of a product's tiles, for the processes after this one."""
    name, part, share, shares = work
    a, b = operands(name)[part]
    for t in tiles(a, b)[share::shares]:
        with suppress(Exception):  # too large a tile
            multiply(a, b, precision_of(a), t)


def precision_of(a: Tensor) -> str:
    """How its products are computed."""
    return "tf32" if a.dtype == torch.float32 else "ieee"


def torchs(a: Tensor, b: Tensor) -> Tensor:
    """torch's product, in the layout that is faster to use."""
    return torch.bmm(b.mT, a.mT).mT if b.stride(1) == 1 else torch.bmm(a, b)


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("tune", nargs="?", choices=["tune"])
    given = asked.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    rows: list[dict[str, Any]] = []
    if given.tune:
        work = [
            (n, p, k, 4) for n in LAYERS for p in ("forward", "input", "weight") for k in range(4)
        ]
        with ProcessPoolExecutor(15, mp_context=get_context("spawn")) as pool:
            list(pool.map(compiled, work))
        print(f"compiled after {time.perf_counter() - START:.0f} s", flush=True)
    for name in LAYERS:
        sets = [operands(name) for _ in range(SETS)]
        for part in sets[0]:
            pairs = [one[part] for one in sets]
            a, b = pairs[0]
            precision = precision_of(a)
            true = torch.bmm(a.double(), b.double())
            off = float((multiply(a, b, precision).double() - true).norm() / true.norm())
            moved = a.element_size() * (a.numel() + b.numel() + true.numel())
            row = {
                "layer": name, "part": part, "off": off, "bytes": moved,
                "torch": milliseconds(torchs, pairs),
                "ours": milliseconds(lambda a, b, p=precision: multiply(a, b, p), pairs),
            }  # fmt: skip
            shown = product_tile(
                a.shape[1], b.shape[2], a.shape[2], a.dtype, precision, b.stride(1) == 1
            )
            print(f"{name} {part}: torch {1e3 * row['torch']:.1f} µs, ours {1e3 * row['ours']:.1f} µs "
                  f"(floor {moved / 4.1e6:.1f}), off by {off:.1e}, {shown}", flush=True)  # fmt: skip
            if given.tune and name not in UNTUNED:
                timed = []
                for t in tiles(a, b):
                    try:
                        timed.append(
                            (
                                milliseconds(
                                    lambda a, b, t=t, p=precision: multiply(a, b, p, t), pairs
                                ),
                                t,
                            )
                        )
                    except Exception as error:
                        print("   ", t, type(error).__name__)
                timed.sort(key=lambda one: one[0])
                row["best"] = [asdict(timed[0][1]), timed[0][0]]
                for taken, t in timed[:5]:
                    print(f"    {1e3 * taken:.1f} µs {t}", flush=True)
            rows.append(row)
    keep("dense", rows, "cuda")


if __name__ == "__main__":
    main()
