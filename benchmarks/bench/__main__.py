"""`python -m bench`: the same as `fairlead bench`, where typer and rich are not installed."""

from __future__ import annotations

import argparse
import sys

from bench import bench, markdown, write
from bench.stored import keep
from fairlead.errors import FairleadError


def main() -> None:
    """Read the command line, run, print the table."""
    parser = argparse.ArgumentParser("python -m bench")
    parser.add_argument("workloads", nargs="*", help="W1 … W6, W6run; by default W1 W2 W3")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engine", default="auto", help="auto, vmap, loop or distributed")
    parser.add_argument("--precision", default="float32", help="float32, tf32 or bfloat16")
    parser.add_argument("--compile", action="store_true", help="let torch.compile make the rounds")
    parser.add_argument("--tuned", action="store_true", help="and try kernels for each product")
    parser.add_argument("--scaling", action="store_true", help="the scaling curves, too or alone")
    parser.add_argument("--rounds", type=int, default=None, help="of a whole run")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a turn is")
    parser.add_argument("--busy", action="store_true", help="keep one core busy meanwhile")
    parser.add_argument("--out", default="out/bench", help="a folder for table, figures, numbers")
    parser.add_argument("--store", help="keep the numbers for docs/speed.md under this name")
    given = parser.parse_args()
    try:
        report = bench(
            given.workloads, device=given.device, peers=given.peers, repeats=given.repeats,
            engine=given.engine, precision=given.precision, compile="tuned" if given.tuned else given.compile,
            curves=given.scaling, rounds=given.rounds, seconds=given.seconds, busy=given.busy,
            say=lambda text: print(text, file=sys.stderr, flush=True),
            each=lambda report: write(report, given.out),
        )  # fmt: skip
        if given.store:
            keep(given.store, report, given.device)
        print(markdown(report))
        print(f"written: {given.out}/{', '.join(write(report, given.out))}")
    except FairleadError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
