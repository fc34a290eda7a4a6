"""Where the start of a run goes: what Python does until rounds are replayed, looked at fifty times a second.

    PYTHONPATH=src:benchmarks python benchmarks/start_up.py [W2 W5] [--compile true|false|auto] [--device cuda]

Each workload runs in a new process, as caches and imports of one would help the next: first without compilers' caches,
then with those of the first time. Written to benchmarks/results/start_up.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from bench.stored import keep
from bench.workloads import chosen

PLACES = {  # innermost frame that is one of these
    "imports": ("importlib",),
    "Triton": ("triton/", "stacked/lang.py"),
    "Inductor": ("torch/_inductor",),
    "Dynamo": ("torch/_dynamo",),
    "AOTAutograd": ("torch/_functorch",),
    "tracing": ("proxy_tensor.py", "fake_tensor.py", "engine/tracing.py"),
    "choosing": ("engine/autotune.py",),
    "data": ("bench/workloads.py", "task/"),
    "rounds": ("fairlead/",),
}
ROUNDS = 6


def place_of(frame: FrameType | None) -> str:
    """What the innermost frame that is known belongs to."""
    while frame is not None:
        file = frame.f_code.co_filename
        for place, parts in PLACES.items():
            if any(part in file for part in parts):
                return place
        frame = frame.f_back
    return "other"


class Sampler(threading.Thread):
    """Looks at where the main thread is."""

    def __init__(self, every: float = 0.02) -> None:
        super().__init__(daemon=True)
        self.every, self.seen = every, Counter[str]()
        self.ended = threading.Event()

    def run(self) -> None:
        """Until it is ended; a look counts for the time since the one before."""
        main, last = threading.main_thread().ident, time.perf_counter()
        while not self.ended.wait(self.every):
            now = time.perf_counter()
            self.seen[place_of(sys._current_frames().get(main or 0))] += now - last  # pyright: ignore[reportArgumentType]
            last = now


def started(name: str, device: str, how: str) -> dict[str, Any]:
    """One workload, in this process."""
    begin, sampler = time.perf_counter(), Sampler()
    sampler.start()
    import fairlead as fl
    from bench.ours import METHODS
    from gpu_rounds import BY_DEFAULT, COMPILE, settings

    work = chosen([name], device)[0]
    method, precision = BY_DEFAULT.get(name, ("SCAFFOLD", "bfloat16"))
    engine: Any = fl.Simulate(
        precision=precision if device == "cuda" else "auto", compile=COMPILE[how]
    )
    task = work.task(device)
    run = fl.train(
        task, METHODS[method](lr=work.lr), rounds=ROUNDS, engine=engine, **settings(work, ROUNDS)
    )
    sampler.ended.set()
    return {
        "name": name, "title": work.title, "compile": how, "wall": time.perf_counter() - begin,
        "places": dict(sampler.seen.most_common()), "engine": run.engine,
    }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("workloads", nargs="*", default=["W2", "W5"])
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--compile", default="true", choices=["auto", "true", "false"])
    asked.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.one:
        print(json.dumps(started(given.workloads[0], given.device, given.compile)))
        return
    rows: list[dict[str, Any]] = []
    for work in chosen(given.workloads, given.device):
        with tempfile.TemporaryDirectory() as caches:
            for known in (False, True):
                rows.append({"caches": known, **in_new_process(work.name, given, caches)})
                places = rows[-1]["places"].items()
                shown = ", ".join(f"{place} {seconds:.1f}" for place, seconds in places)
                print(f"{work.name}: {rows[-1]['wall']:.1f} s: {shown}", flush=True)
                keep("start_up", rows, given.device)


def in_new_process(name: str, given: argparse.Namespace, caches: str) -> dict[str, Any]:
    """`started` in a new process, with compilers' caches in this folder."""
    places = {
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
        "TRITON_CACHE_DIR": f"{caches}/triton",
        "FAIRLEAD_CACHE": caches,
    }
    command = [sys.executable, str(Path(__file__)), name, "--one", "--device", given.device]
    done = subprocess.run(
        [*command, "--compile", given.compile], check=True, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **places},
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
