"""What measures cost beside the training they belong to.

For each workload: the time of ten rounds of FedAvg, and of every measure once, exact and with a budget of clients, samples and
Hessian-vector products, in the same process, in turns; then the share of training time if it is taken every ten rounds, and how far
the sampled numbers are from the exact ones.

    python benchmarks/measures.py [W2 W4] [--repeats 7] [--device cpu] [--exact-curvature]

writes benchmarks/results/measures-DEVICE.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import fairlead as fl
from bench import WORKLOADS
from bench.stored import keep
from fairlead.run.measuring import take
from fairlead.run.train import planned, prepared

EVERY = 10
EXACT: dict[str, fl.measure.Probe] = {
    "dissimilarity": fl.measure.Dissimilarity(),
    "noise": fl.measure.GradientNoise(),
    "curvature": fl.measure.Curvature(steps=20),
    "local": fl.measure.LocalPoints(),
    "cka": fl.measure.CKA(clients=None),
}
SAMPLED: dict[str, fl.measure.Probe] = {
    "dissimilarity": fl.measure.Dissimilarity(clients=10, samples=64),
    "noise": fl.measure.GradientNoise(clients=4, samples=16),
    "curvature": fl.measure.Curvature(clients=4, samples=16, steps=5, delta=False),
    "local": fl.measure.LocalPoints(clients=5, loss=False),
    "cka": fl.measure.CKA(clients=5, samples=64),
}


def prepare(name: str, device: str) -> fl.run.loop.Loop:
    """A run before its first round."""
    workload = WORKLOADS[name].on(device)
    task = workload.task(device)
    test = fl.Task(
        workload.maker, "cross_entropy", task.data, task.split, device=device,
        test=tuple(t[:256] for t in task.data),
    )  # fmt: skip
    plan, local = planned(
        rounds=10**6, cohort=workload.clients, batch_size=workload.batch, steps=workload.steps,
        eval_every=10**6, objective=False,
    )  # fmt: skip
    return prepared(test, fl.FedAvg(lr=0.01), plan, local)


def timed(loop: fl.run.loop.Loop, probe: fl.measure.Probe | None) -> tuple[float, dict[str, float]]:
    """Seconds of ten rounds, or of a measure and what it found."""
    wait = torch.cuda.synchronize if loop.task.device.type == "cuda" else lambda: None
    wait()
    begin = time.perf_counter()
    found: dict[str, float] = {}
    if probe is None:
        for _ in range(EVERY):
            loop.round()
    else:
        found = dict(take(loop.session, loop.state, probe, loop.done).values)
    wait()
    return time.perf_counter() - begin, found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workloads", nargs="*", default=["W2"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--exact-curvature", action="store_true", help="also exact spectra: slow")
    given = parser.parse_args()
    results: list[dict[str, Any]] = []
    for name in given.workloads:
        loop = prepare(name, given.device)
        forms = {"exact": dict(EXACT), "sampled": SAMPLED}
        if not given.exact_curvature:
            del forms["exact"]["curvature"]
        probes = {(form, n): p for form, named in forms.items() for n, p in named.items()}
        with loop.going(loop.stop):
            loop.begin()
            turns: dict[tuple[str, str] | None, list[float]] = {None: [], **{k: [] for k in probes}}
            values: dict[tuple[str, str], dict[str, float]] = {}
            for turn in range(given.repeats + 1):
                for key, probe in (None, None), *probes.items():
                    seconds, found = timed(loop, probe)
                    if turn:  # the first warms up
                        turns[key].append(seconds)
                    if key is not None:
                        values[key] = found
        work = statistics.median(turns[None])
        rows = [row_of(key, times, work, values) for key, times in turns.items() if key is not None]
        results.append({"name": name, "title": WORKLOADS[name].on(given.device).title, "rounds": work, "rows": rows})  # fmt: skip
        print(f"{name}: ten rounds of FedAvg take {1000 * work:.1f} ms", flush=True)
        for row in rows:
            print(f"  {row['measure']}, {row['form']}: {1000 * row['seconds']:.1f} ms, {row['share']:.1%}")  # fmt: skip
    print(f"written: {keep(f'measures-{given.device}', results, given.device).name}")


def row_of(
    key: tuple[str, str],
    times: list[float],
    work: float,
    values: dict[tuple[str, str], dict[str, float]],
) -> dict[str, Any]:
    """One measure in one form: seconds, the share of the time of ten rounds, and sampled over exact values."""
    form, measure = key
    once, own = statistics.median(times), values[key]
    exact = values.get(("exact", measure), {}) if form == "sampled" else {}
    ratios = {k or measure: own[k] / exact[k] for k in own if exact.get(k)}
    return {"measure": measure, "form": form, "seconds": once, "share": once / work, "ratios": ratios}  # fmt: skip


if __name__ == "__main__":
    main()
