"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from bench.run import Report, best, by_turn

PEERS = ("pfl", "Flower", "FedLab")


def markdown(report: Report) -> str:
    """The machine, a table of workloads, notes, and the scaling curves."""
    parts = [_machine(report)]
    if report["workloads"]:
        parts += [workload_table(report["workloads"]), notes(report["workloads"])]
    if report["scaling"]:
        parts.append(scaling_table(report["scaling"]))
    return "\n\n".join(part for part in parts if part) + "\n"


def ms(seconds: float | None) -> str:
    """Milliseconds with three digits that count, or a dash.

    >>> ms(0.01234), ms(1.234), ms(None)
    ('12.3', '1,234', '–')
    """
    if seconds is None:
        return "–"
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def times(ratio: float) -> str:
    """How many times.

    >>> times(1.234), times(23.4)
    ('1.23 ×', '23 ×')
    """
    return f"{ratio:.0f} ×" if ratio >= 10 else f"{ratio:.2f} ×"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _machine(report: Report) -> str:
    m = report["machine"]
    far = max(m["copies"], key=int)
    rates = f"matmul {m['rate'] / 1e9:,.0f} GFLOP/s"
    if m["convolution_rate"] != m["rate"]:
        rates += f" (convolutions in TF32 {m['convolution_rate'] / 1e9:,.0f})"
    spun = " One core was kept busy by another process." if report.get("busy") else ""
    busy = (
        f" The machine was busy with other work (load {m['load']:.1f})." if m["load"] > 0.5 else ""
    )
    threads = f", {m['threads']} threads" if m["device"] == "cpu" else ""
    return (
        f"{m['name']}, torch {m['torch']}{threads}; {rates}, copies {m['copies'][far] / 1e9:,.1f} GB/s; "
        f"medians of {report['repeats']} turns, milliseconds per round.{busy}{spun}"
    )


def workload_table(rows: list[Report]) -> str:
    """Everybody's times, a line for each workload."""
    peers = [p for p in PEERS if any(best(row, p) for row in rows)]
    head = ["workload", "floor", "fairlead", "over the floor", "with SCAFFOLD", "bare loop", *peers]
    lines = []
    for row in rows:
        ours = _median(row, "fairlead")
        over = "–" if ours is None else times(ours / row["floor"])
        cells = [f"{row['name']} {row['title']}", ms(row["floor"]), ms(ours), over]
        cells.append(ms(_median(row, "SCAFFOLD")))
        for group in ("bare loop", *peers):
            theirs = _median(row, group)
            ratio = f" ({times(theirs / ours)})" if theirs and ours else ""
            cells.append(ms(theirs) + ratio)
        lines.append(cells)
    return grid(head, lines) + "\n\nIn brackets: how many times as long as fairlead takes."


def _median(row: Report, group: str) -> float | None:
    found = best(row, group)
    return None if found is None else found["median"]


def notes(rows: list[Report]) -> str:
    """How each of the fastest was run, and why there is a dash."""
    lines = []
    for row in rows:
        said = []
        for group in dict.fromkeys(c["group"] for c in row["contestants"]):
            found = best(row, group)
            if found is None or group == "bare loop":
                continue
            version = f" {found['version']}" if group in PEERS and found["version"] else ""
            if found["median"] is None:
                said.append(found["failed"])
            elif group in PEERS:
                ratios = by_turn(row, group)
                shown = f" ({_range(ratios)} of its time)" if ratios else ""
                said.append(f"{group}{version} by {found['form']}{shown}")
            else:
                said.append(f"{group}: {found['note']}")
        bound = "arithmetic" if row["floor_arithmetic"] >= row["floor_memory"] else "bytes"
        work = f"{row['flops'] / 1e9:,.3g} GFLOP ({row['three_passes'] / 1e9:,.3g} by three passes)"
        moved = f"{(row['data'] + row['weights']) / 1e9:,.2g} GB"
        whole = _median(row, "fairlead") if row["rounds"] else None
        run = "" if whole is None else f"; the run took fairlead {whole * row['rounds']:,.0f} s"
        lines.append(
            f"- {row['name']}: {work} and {moved} per round, the floor is of {bound}{run}. "
            + "; ".join(said) + "."
        )  # fmt: skip
    return "\n".join(lines)


def _range(ratios: Sequence[float]) -> str:
    return f"turn by turn fairlead takes {min(ratios):.2f} to {max(ratios):.2f}"


def scaling_table(points: list[Report]) -> str:
    """The points of all curves."""
    head = ["", "floor", "fairlead", "with SCAFFOLD", "bare loop", "bare loop / fairlead"]
    lines = []
    for p in points:
        ours, bare = p["fairlead"], p["bare loop"]
        ratio = times(bare / ours) if ours and bare else "–"
        label = f"{p['curve']} {p['value']:,}"
        lines.append([label, ms(p["floor"]), ms(ours), ms(p["SCAFFOLD"]), ms(bare), ratio])
    failed = {c["failed"] for p in points for c in p["contestants"] if c["failed"]}
    return "\n\n".join([grid(head, lines), *sorted(failed)])
