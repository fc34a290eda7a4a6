"""Makes docs/speed.md from its template and the measurements in benchmarks/results.

    PYTHONPATH=src:benchmarks python benchmarks/page.py

Numbers come from files alone. Where none is kept, the page says which command makes one. If rounds and scaling curves on a CPU are kept and
matplotlib is installed, docs/speed.png and docs/scaling.png are drawn too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import stored
from bench.stored import Entry
from bench.table import grid, ms, notes, scaling_table, times, workload_table
from bench.workloads import WORKLOADS

ROOT = Path(__file__).parents[1]
TEMPLATE, PAGE = ROOT / "benchmarks" / "speed.template.md", ROOT / "docs" / "speed.md"
COMMANDS = {
    "cpu_rounds": "python -m bench W1 W2 W3 --peers --store cpu_rounds",
    "busy_rounds": "python -m bench W1 W2 --peers --busy --store busy_rounds",
    "busy_core": "python benchmarks/busy_core.py",
    "gpu_rounds": "python benchmarks/gpu_rounds.py",
    "five_methods": "python benchmarks/five_methods.py",
    "gpu_kernels": "python benchmarks/kernels.py",
    "dense": "python benchmarks/dense.py",
    "long_rounds": "python benchmarks/long_rounds.py",
    "many_runs": "python benchmarks/many.py",
    "measures": "python benchmarks/measures.py W2",
    "start_up": "python benchmarks/start_up.py",
    "scaling": "python -m bench --scaling --store scaling",
}


def page(results: Path = stored.RESULTS) -> str:
    """The whole page."""
    text = TEMPLATE.read_text().replace("{{workloads}}", workloads())
    text = text.replace("{{goals}}", goals(results))
    for kind, section in SECTIONS.items():
        text = text.replace("{{" + kind + "}}", _section(kind, section, results))
    return text


def _section(kind: str, section: Callable[[Entry], str], results: Path) -> str:
    found = [f"{source(entry)}\n\n{section(entry)}" for entry in stored.read(kind, results)]
    missing = f"No measurement is kept; `{COMMANDS[kind]}` makes one."
    return "\n\n".join(found) or missing


def source(entry: Entry) -> str:
    """What was run, where and when."""
    machine, torch = entry["machine"], entry["versions"]["torch"]
    command = entry["command"]
    command = f"python {command}" if command.startswith("benchmarks/") else f"python -m {command}"
    busy = ""
    if machine["device"] == "cpu" and entry["results"] and "machine" in entry["results"]:
        machine = {**machine, "load": entry["results"]["machine"]["load"]}  # when it began
        busy = f", load {machine['load']:.1f} from other work" if machine["load"] > 0.5 else ""
    return f"`{command}` on {entry['date']}: {machine['name']}, torch {torch}{busy}."


def workloads() -> str:
    """What is timed."""
    rows = []
    for w in WORKLOADS.values():
        small = "" if w.cpu_batch is None else f"batch {w.cpu_batch}"
        label = w.label
        if w.rounds:
            label += (
                f", {w.clients} of {w.population} clients, {w.rounds} rounds, evaluated on {w.test:,} samples every "
                f"{w.eval_every} rounds"
            )  # fmt: skip
        rows.append([w.name, label, f"{w.dim:,}", f"{w.clients} × {w.steps} × {w.batch}", small])
    return grid(["", "model", "parameters", "S × K × B", "on a CPU"], rows)


GOALS: dict[str, tuple[float, str]] = {
    "W1": (0.2e-3, "small kernels, half of their time in products whose weights do not begin at aligned addresses; beside them "
           "Python draws, asks and commits"),
    "W2": (1.0e-3, "weight gradients are products over 32 samples for each of 25 clients, far below the rate of large ones, and updates "
           "of the points are bound by memory"),
    "W4": (11e-3, "convolutions of 3 to 64 channels, which fill matrix units badly, then GroupNorm, which is bound by memory"),
    "W5": (30e-3, "convolutions, below the rate of large products"),
    "W6": (5e-3, "updates of the points and their bfloat16 copies are bound by memory"),
    "W6run": (12.0, "its rounds, then the start"),
}  # fmt: skip
"""Seconds that were wanted of a round on an H200, or of a whole run, and where the time goes."""


def goals(results: Path) -> str:
    """What was wanted beside what was measured last, and the kernels alone."""
    entries = sorted(stored.read("gpu_rounds", results), key=lambda entry: entry["date"])
    rounds = {row["name"]: row for entry in entries for row in entry["results"]}
    kernels = {row["name"]: row["busy"] for e in stored.read("gpu_kernels", results) for row in e["results"]["rounds"]}  # fmt: skip
    rows = []
    for name, (wanted, why) in GOALS.items():
        if name in rounds:
            found = rounds[name].get("round") or rounds[name]["wall"]
            shown = (lambda s: f"{s:.3g} s") if name == "W6run" else (lambda s: f"{ms(s)} ms")
            busy = f"{ms(kernels[name])} ms" if name in kernels else ""
            rows.append([name, shown(wanted), shown(found), times(found / wanted), busy, why])
    head = [
        "",
        "wanted",
        "measured",
        "measured over wanted",
        "kernels alone",
        "where the time goes",
    ]
    return grid(head, rows) if rows else "Nothing has been measured."


def cpu_rounds(entry: Entry) -> str:
    """Everybody's times for each workload."""
    rows = entry["results"]["workloads"]
    figure = "![Milliseconds per round of each library, and the floor](speed.png)\n\n"
    drawn = figure if entry["machine"]["device"] == "cpu" else ""
    return drawn + _everybody(rows)


def busy_rounds(entry: Entry) -> str:
    """The same beside a process that keeps a core busy."""
    return _everybody(entry["results"]["workloads"])


def _everybody(rows: list[Any]) -> str:
    return "Milliseconds per round.\n\n" + workload_table(rows) + "\n\n" + notes(rows)


def busy_core(entry: Entry) -> str:
    """Fixed shares beside turns."""
    rows = []
    for row in entry["results"]:
        for state, found in row["medians"].items():
            before, now = found["fixed shares"], found["turns"]
            rows.append(
                [f"{row['name']} {row['title']}", state, ms(before), ms(now), times(now / before)]
            )
    head = ["", "machine", "fixed shares", "turns", "turns over fixed"]
    return "Milliseconds per FedAvg round, medians.\n\n" + grid(head, rows)


def gpu_rounds(entry: Entry) -> str:
    """Rounds, and whole runs."""
    rows, runs = [], []
    for row in entry["results"]:
        how = f"{row['method']}, {row['precision']}, compile {row['compile']}"
        if "wall" in row:
            runs.append(
                f"- {row['name']}, {row['title']} ({how}): {row['wall']:.1f} s with an evaluation on {row['test']:,} samples "
                f"every {row['eval_every']} rounds; the first {row['eval_every']} rounds took {row['first_rounds']:.1f} s, all "
                f"rounds {row['in_rounds']:.1f} s."
            )  # fmt: skip
        else:
            ends = f"{ms(min(row['windows']))} to {ms(max(row['windows']))}"
            rows.append([f"{row['name']} {row['title']}", how, ms(row["round"]), ends, f"{row['start_up']:.1f} s"])  # fmt: skip
    head = ["", "settings", "ms per round", "range", "start-up"]
    return "\n\n".join(filter(None, [grid(head, rows) if rows else "", "\n".join(runs)]))


def gpu_kernels(entry: Entry) -> str:
    """Where the time of a round goes, by kind of kernel."""
    found = entry["results"]
    kinds = ["convolutions", "products", "norms", "pools", "compiled", "copies", "other"]
    rows = []
    for row in found["rounds"]:
        shares = [row["kinds"].get(kind, 0.0) for kind in kinds]
        least = row["flops"] / found["rates"][row["precision"]]
        cells = [ms(share) if share else "" for share in shares]
        rows.append(
            [
                f"{row['name']} {row['title']}",
                ms(row["busy"]),
                f"{row['kernels']:.0f}",
                *cells,
                ms(least),
            ]
        )
    said = (
        f"Milliseconds of kernels per round. A large product takes {found['rates']['bfloat16'] / 1e12:.0f} TFLOP/s in bfloat16 and "
        f"{found['rates']['tf32'] / 1e12:.0f} in TF32, a copy {found['bandwidth'] / 1e12:.1f} TB/s; at these rates the last column is "
        "the least time for the products and convolutions of a round."
    )  # fmt: skip
    return said + "\n\n" + grid(["", "all", "kernels", *kinds, "products at full rate"], rows)


def dense(entry: Entry) -> str:
    """Products of dense layers by both kernels."""
    layers: dict[str, dict[str, Any]] = {}
    for row in entry["results"]:
        layers.setdefault(row["layer"], {})[row["part"]] = row
    parts = {"forward": "forward", "input": "gradient of inputs", "weight": "gradient of weights"}
    rows = [
        [name, *(f"{1e3 * found[p]['torch']:.1f}, {1e3 * found[p]['ours']:.1f}" for p in parts)]
        for name, found in layers.items()
    ]
    return "Microseconds, torch's and fairlead's.\n\n" + grid(["", *parts.values()], rows)


def many_runs(entry: Entry) -> str:
    """Several runs at once beside one."""
    rows = [
        [f"{row['name']} {row['title']}", row["method"], str(row["runs"]), ms(row["one"]), ms(row["many"]),
         times(row["many"] / row["one"]), f"{row['difference']:.0e}"]
        for row in entry["results"]
    ]  # fmt: skip
    head = ["", "method", "runs", "one, ms per round", "all at once", "ratio", "largest difference"]
    return grid(head, rows)


def long_rounds(entry: Entry) -> str:
    """The time of a step over the number of steps."""
    rows = [
        [name, f"{row['steps']:,}", f"{ms(row['step'])} ms", f"{row['first_round']:.1f} s"]
        for name, found in entry["results"].items()
        for row in found
    ]
    return grid(["", "steps per round", "per step", "first round done after"], rows)


def start_up(entry: Entry) -> str:
    """Where the start of a run goes."""
    rows = [
        [f"{row['name']} {row['title']}", row["compile"], "from before" if row["caches"] else "empty", f"{row['wall']:.1f}",
         ", ".join(f"{place} {seconds:.1f}" for place, seconds in row["places"].items() if seconds >= 0.05)]
        for row in entry["results"]
    ]  # fmt: skip
    return grid(["", "compile", "compilers' caches", "seconds", "where Python is"], rows)


def five_methods(entry: Entry) -> str:
    """Whole runs to an accuracy."""
    rows = [
        [row["method"], f"{row['accuracy']:.1%}", str(row["rounds"]), f"{row['first_round']:.1f} s", f"{row['round']:.2f} s",
         f"{row['wall']:.0f} s"]
        for row in entry["results"]
    ]  # fmt: skip
    head = ["", "accuracy", "rounds", "first round after", "per round", "whole run"]
    total = sum(row["wall"] for row in entry["results"])
    return grid(head, rows) + f"\n\nAll together: {total:.0f} s."


def measures(entry: Entry) -> str:
    """What a measure adds to ten rounds."""
    parts = []
    for work in entry["results"]:
        by_name: dict[str, dict[str, Any]] = {}
        for row in work["rows"]:
            by_name.setdefault(row["measure"], {})[row["form"]] = row
        rows = []
        for name, forms in by_name.items():
            cells = [
                f"{ms(forms[form]['seconds'])} ms, {forms[form]['share']:.1%}" if form in forms else "not timed"
                for form in ("exact", "sampled")
            ]  # fmt: skip
            ratio = forms["sampled"]["ratios"].get(FIRST[name])
            rows.append([f"`{name}`", *cells, "" if ratio is None else f"{ratio:.2f}"])
        head = ["", "all clients and samples", "with a budget", "value, budget over all"]
        said = f"{work['name']} {work['title']}: ten rounds of FedAvg take {ms(work['rounds'])} ms; a measure adds"
        parts.append(f"{said}\n\n{grid(head, rows)}")
    return "\n\n".join(parts)


FIRST = {"dissimilarity": "zeta_hat", "noise": "sigma", "curvature": "beta", "local": "xi", "cka": "cka"}  # fmt: skip
"""The value of each measure that is compared."""


def scaling(entry: Entry) -> str:
    """The curves as a table, with a figure of those on a CPU."""
    figure = "![Round times over cohort, population, parameters and local steps](scaling.png)\n\n"
    drawn = figure if entry["machine"]["device"] == "cpu" else ""
    return drawn + "Milliseconds per round.\n\n" + scaling_table(entry["results"]["scaling"])


SECTIONS: dict[str, Callable[[Entry], Any]] = {
    "cpu_rounds": cpu_rounds, "busy_rounds": busy_rounds, "busy_core": busy_core, "gpu_rounds": gpu_rounds,
    "gpu_kernels": gpu_kernels, "dense": dense, "start_up": start_up, "many_runs": many_runs, "long_rounds": long_rounds,
    "five_methods": five_methods,
    "measures": measures, "scaling": scaling,
}  # fmt: skip


def main() -> None:
    text = page()
    left = re.findall(r"{{\w+}}", text)
    assert not left, f"the template has {left}, which nothing fills"
    PAGE.write_text(text)
    if find_spec("matplotlib"):
        from bench import figure

        for kind, draw, name in (
            ("cpu_rounds", figure.bars, "speed.png"), ("scaling", figure.curves, "scaling.png"),
        ):  # fmt: skip
            found = [e for e in stored.read(kind) if e["machine"]["device"] == "cpu"]
            if found:
                draw(found[0]["results"], PAGE.parent / name)
    print(f"written: {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
