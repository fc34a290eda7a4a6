"""What measures found, for the report: heterogeneity over rounds, tables of clients, bounds, prediction sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.run.folder import StoredRun
from fairlead.run.measured_file import rounded
from fairlead.theory.dissimilarity import smallest_bounds

HETEROGENEITY = {
    "dissimilarity": "√(A − b)",
    "dissimilarity/zeta_max": "ζ_max",
    "dissimilarity/zeta_pair": "ζ_pair",
    "dissimilarity/A": "ζ̂ = √A",
    "dissimilarity/zeta_hat_rest": "ζ̂ outside the part",
    "dissimilarity/b": "‖∇f‖ = √b",
}
"""Columns of a history, and what their line is; all are lengths of gradients."""
SQUARES = ("dissimilarity", "dissimilarity/A", "dissimilarity/b")
SETS = ("threshold", "aps", "raps")
Groups = Mapping[str, Sequence[StoredRun]]


def measured(groups: Groups) -> dict[str, list[dict[str, Any]]]:
    """The parts of the report's data that show measures, by group of runs; lists are empty where nothing was measured."""
    return {
        "heterogeneity": [one for item in groups.items() if (one := _heterogeneity(*item))],
        "pairs": list(_found(groups, ("cka",), _pairs)),
        "bounds": list(_found(groups, ("bound",), _bound)),
        "coverage": list(_found(groups, SETS, _sets)),
    }


def _heterogeneity(label: str, runs: Sequence[StoredRun]) -> dict[str, Any] | None:
    """The lengths by round: means over seeds, up to the shortest run."""
    histories = [run.history for run in runs]
    names = [name for name in HETEROGENEITY if all(name in history for history in histories)]
    if not set(SQUARES) <= set(names):
        return None
    length = min(len(history.rows) for history in histories)
    kept = np.all([np.isfinite(h[names[0]][:length]) for h in histories], axis=0)
    if not kept.any():
        return None
    lines = []
    for name in names:
        values = np.mean([h[name][:length][kept] for h in histories], axis=0)
        if name in SQUARES:  # an estimate from samples can be negative
            values = np.sqrt(np.where(values >= 0, values, np.nan))
        lines.append({"key": name, "label": HETEROGENEITY[name], "values": values})
    rounds = histories[0]["round"][:length][kept].astype(int)
    one = {"label": label, "seeds": len(runs), "rounds": rounds, "lines": lines}
    roots = {line["key"]: line["values"] for line in lines}
    A, b = (np.square(roots[f"dissimilarity/{name}"]) for name in ("A", "b"))
    if np.isfinite(A).all() and np.isfinite(b).all():
        one |= dict(zip("GB", smallest_bounds(A, b), strict=True))
    return rounded(one)


def _found(
    groups: Groups, names: Sequence[str], shaped: Callable[[dict[str, Any]], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Of every group the findings of its first seed that has them; what is not in shape is left out."""
    for label, runs in groups.items():
        for name in names:
            for run in sorted(runs, key=lambda run: run.seed):
                entry = run.measured.get(name)
                try:
                    one = None if entry is None else shaped(entry)
                except (KeyError, TypeError, ValueError):  # changed by hand, or by another program
                    continue
                if one is not None:
                    about = {"label": label, "kind": name, "seed": run.seed, "seeds": len(runs)}
                    yield rounded({**about, **one})
                    break


def _pairs(entry: dict[str, Any]) -> dict[str, Any]:
    ids, layers = [int(i) for i in entry["clients"]], [str(n) for n in entry["layers"]]
    values = _numbers(entry["values"], (len(layers), len(ids), len(ids)))
    return {
        "clients": ids, "layers": layers, "values": values, "where": str(entry["where"]),
        "more": str(entry.get("more", "")),
    }  # fmt: skip


def _bound(entry: dict[str, Any]) -> dict[str, Any]:
    rounds = [int(r) for r in entry["rounds"]]
    curves = {name: _numbers(entry[name], (len(rounds),)) for name in ("bound", "mean", "error")}
    words = {name: [str(w) for w in entry.get(name, [])] for name in ("broken", "notes")}
    about = {name: str(entry[name]) for name in ("theorem", "of")}
    return {"rounds": rounds, **curves, **words, **about}


def _sets(entry: dict[str, Any]) -> dict[str, Any]:
    kappas = _numbers(entry["kappas"], (len(entry["kappas"]),))
    curves = {name: _numbers(entry[name], kappas.shape) for name in ("coverage", "size", "empty")}
    clients = _numbers(entry["by_client"], (len(kappas), len(entry["by_client"][0])))
    return {
        "kappas": kappas, **curves, "by_client": clients, "accuracy": float(entry["accuracy"]),
        "calibration": int(entry["calibration"]), "test": int(entry["test"]),
        "notes": [str(note) for note in entry.get("notes", [])], "more": str(entry.get("more", "")),
    }  # fmt: skip


def _numbers(values: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    found = np.array(values, dtype=float)
    if found.shape != shape or not found.size:
        raise ValueError(f"{found.shape} is not {shape}")
    return found
