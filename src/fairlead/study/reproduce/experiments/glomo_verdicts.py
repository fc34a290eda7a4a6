"""What FedGLOMO's figures conclude from: tuned curves, costs to a test error on four axes, smoothness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.study.reproduce.case import Result, Results, Tuned
from fairlead.study.reproduce.outcome import Claim, Verdict, judged

AXES = {
    "nominal_up": "nominal bits up", "bits_up": "real bits up", "bits": "real bits in all", "gradients": "gradient evaluations",
}  # fmt: skip
LAST = 3
"""Evaluations whose mean is the final value."""
ROUGHLY = 1.15
"""How far above 'about a third' still is about a third."""


def curve(result: Result, name: str) -> NDArray[np.float64]:
    """A column of a result; "error" is one minus the accuracy."""
    if name == "error":
        return 1 - np.asarray(result.curve["accuracy"], float)
    return np.asarray(result.curve[name], float)


def end(result: Result, name: str = "error") -> float:
    """The mean of the last evaluations; infinite if the run diverged."""
    value = float(curve(result, name)[-LAST:].mean())
    return value if math.isfinite(value) and result.stopped != "diverged" else math.inf


@dataclass(frozen=True)
class Entry(Tuned):
    """A method's results with its best variant and step size."""

    variant: str

    @property
    def edged(self) -> str:
        """Why a comparison with it decides nothing."""
        method = self.results[0].labels["method"]
        if self.diverged:
            return f"{method} diverges with every step size"
        return f"the best step size of {method} lies at the edge of its grid" if self.edge else ""

    @property
    def diverged(self) -> bool:
        """Whether one of its runs diverged, as with every other step size."""
        return any(r.stopped == "diverged" for r in self.results)

    def mean(self, name: str) -> NDArray[np.float64]:
        """A column's mean over seeds."""
        columns = [curve(r, name) for r in self.results]
        return np.mean([c[: min(map(len, columns))] for c in columns], 0)

    def final(self, name: str) -> float:
        """The mean over seeds of a column's end."""
        return self.results.mean(lambda r: end(r, name))

    def spread(self, name: str) -> str:
        """A column's end in percent or as it is, with the standard deviation over seeds."""
        found = np.array([end(r, name) for r in self.results])
        if not np.isfinite(found).all():
            return "diverged"
        digits, unit = (1, 100) if name == "error" else (3, 1)
        deviation = f" ± {unit * found.std():.{digits}f}" if len(found) > 1 else ""
        return f"{unit * found.mean():.{digits}f}{deviation}"

    @cached_property
    def roughness(self) -> float:
        """Standard deviation of the changes of the test error between evaluations, in the second half."""
        halves = [np.diff(curve(r, "error")[len(r.curve["round"]) // 2 :]) for r in self.results]
        found = [np.std(h) for h in halves if len(h)]  # a run that diverges early has none
        return float(np.mean(found)) if found else math.nan

    def cost(self, error: float, axis: str) -> float:
        """What it took until the mean test error was at most this, which is infinite if there is nothing to reach."""
        good = np.flatnonzero(self.mean("error") <= error)
        return float(self.mean(axis)[good[0]]) if len(good) and error < math.inf else math.inf

    def per_round(self, axis: str) -> float:
        """What a round costs."""
        last = self.results[0].end
        return last[axis] / max(1.0, last["round"])


def ranked(results: Results) -> list[tuple[str, float]]:
    """The variants and step sizes of a method with which seed 0, or the first seed that has run, did not diverge; that with
    the lowest final test error first."""
    first = results.where(seed=min(int(r.labels["seed"]) for r in results))
    good = sorted(first, key=lambda r: (end(r), r.labels["variant"], r.labels["lr"]))
    return [(str(r.labels["variant"]), float(r.labels["lr"])) for r in good if end(r) < math.inf]


def best(results: Results) -> Entry:
    """The best variant and step size of a method with which no seed diverged; if there is none, the smallest one."""
    first = results.where(seed=min(int(r.labels["seed"]) for r in results))
    least = min((str(r.labels["variant"]), float(r.labels["lr"])) for r in first)
    kept = [(v, lr) for v, lr in ranked(results) if not failed(results, v, lr)]
    variant, lr = kept[0] if kept else least
    grid = [r.labels["lr"] for r in first.where(variant=variant)]
    edge = len(grid) > 2 and lr in (min(grid), max(grid))
    return Entry(lr, results.where(variant=variant, lr=lr), edge, variant)


def failed(results: Results, variant: str, lr: float) -> bool:
    """Whether a run with this variant and step size diverged."""
    return any(r.stopped == "diverged" for r in results.where(variant=variant, lr=lr))


def attained(place: str, name: str, base: Entry, mine: Entry, share: float) -> list[Claim]:
    """Whether FedGLOMO reaches the baseline's final test error at this share of its cost, on every axis: "in part" if
    at less than its cost, but more than the share."""
    error = base.final("error")
    claims = []
    for axis, what in AXES.items():
        whole = float(base.mean(axis)[-1]) or math.nan
        part = mine.cost(error, axis) / whole
        verdict: Verdict = (
            "holds" if part <= ROUGHLY * share else "in part" if part < 1 else "does not hold"
        )
        said = f"{part:.0%} of them" if part < math.inf else "it does not reach it"
        void = mine.edged or base.edged
        claims.append(Claim(
            f"[{place}] FedGLOMO reaches the final test error of {name} ({100 * error:.1f} %) with {_share(share)} its {what}",
            "open" if void else verdict, said, void or few_seeds(mine, base),
        ))  # fmt: skip
    return claims


def _share(share: float) -> str:
    return "less than" if share == 1 else f"about {share:.0%} of"


def few_seeds(*entries: Entry) -> str:
    """What might change a verdict of few seeds."""
    few = min(len(e.results) for e in entries)
    return f"more seeds than {few}, more step sizes" if few < 3 else ""


def smoother(place: str, base: Entry, mine: Entry) -> Claim:
    """Whether FedGLOMO's test error jumps less than the baseline's."""
    name = base.results[0].labels["method"]
    return judged(
        f"[{place}] FedGLOMO's test error is smoother than that of {name}", [mine.roughness < base.roughness],
        f"changes between evaluations deviate by {100 * mine.roughness:.2f} % against {100 * base.roughness:.2f} %",
        few_seeds(mine, base), void=mine.edged or base.edged,
    )  # fmt: skip


def ends(
    place: str, text: str, pairs: Sequence[tuple[str, str]], entries: Mapping[str, Entry]
) -> Claim:
    """Whether the first of each pair ends with lower test error and train loss than the second."""
    good = [
        entries[one].final(what) < entries[other].final(what)
        for one, other in pairs
        for what in ("error", "loss")
    ]
    named = list(dict.fromkeys(name for pair in pairs for name in pair))
    said = ", ".join(
        f"{m} {entries[m].spread('error')} % and {entries[m].spread('loss')}" for m in named
    )
    void = "; ".join(filter(None, (entries[m].edged for m in named)))
    few = few_seeds(*(entries[m] for m in named))
    return judged(f"[{place}] {text}", good, f"final test error and train loss: {said}", few, void)


def rows(
    place: str, entries: Mapping[str, Entry], baseline: str, bits: int
) -> list[dict[str, str]]:
    """The table of a setting. bits: nominal ones of a coordinate of the baseline."""
    base = entries.get(baseline)
    # coordinates times clients
    unit = 1.0 if base is None else base.per_round("nominal_up") / bits or math.inf
    error = math.inf if base is None else base.final("error")
    table = []
    for method, entry in entries.items():
        shown = f"{entry.lr:g}" + " (edge)" * entry.edge
        row = {
            "setting": place, "method": f"{method} {entry.variant}".strip(), "η_0": shown,
            "test error, %": entry.spread("error"), "train loss": entry.spread("loss"),
            "roughness, %": f"{100 * entry.roughness:.2f}",
        }  # fmt: skip
        if base is not None:
            row["reached in rounds"] = _cell(entry.cost(error, "round"))
            for axis in ("nominal_up", "bits_up", "bits"):
                row[f"{AXES[axis]}/(d·r)"] = _cell(entry.cost(error, axis) / unit)
            row["million gradients"] = _cell(entry.cost(error, "gradients") / 1e6)
        table.append(row)
    return table


def _cell(value: float) -> str:
    return f"{value:.4g}" if value < math.inf else "not reached"


def draw(found: Mapping[str, Mapping[str, Entry]], path: Path) -> None:
    """Test error against nominal bits, real bits in all and gradient evaluations, and train loss against nominal bits."""
    from fairlead.figures.style import panels

    kinds = (
        ("nominal_up", "loss"),
        ("nominal_up", "error"),
        ("bits", "error"),
        ("gradients", "error"),
    )
    with panels(path, rows=len(found), columns=len(kinds), share_y=False) as axes:
        for line, (place, entries) in zip(axes, found.items(), strict=True):
            for panel, (axis, what) in zip(line, kinds, strict=True):
                _panel(panel, entries, axis, what)
                panel.set_xlabel(AXES[axis])
                panel.set_ylabel("train loss" if what == "loss" else "test error")
            line[0].set_title(place)
            line[0].legend(fontsize=7)


def _panel(panel: Any, entries: Mapping[str, Entry], axis: str, what: str) -> None:
    for method, entry in entries.items():
        x, y = entry.mean(axis), entry.mean(what)
        (drawn,) = panel.plot(x, y, label=f"{method} {entry.variant}".strip())
        if len(entry.results) > 1:
            spread = np.std([curve(r, what)[: len(y)] for r in entry.results], 0)
            panel.fill_between(x, y - spread, y + spread, alpha=0.2, color=drawn.get_color())
    panel.set_yscale("log" if what == "loss" else "linear")
