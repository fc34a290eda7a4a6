"""Collecting a report's data from run folders: groups of seeds, splits, drift, step sizes, papers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.errors import FairleadError
from fairlead.figures.places import places
from fairlead.figures.plots import MAIN
from fairlead.methods.citations import PAPERS
from fairlead.report.measures import measured
from fairlead.report.readings import READINGS
from fairlead.run.folder import COMPARISON, TRIALS, StoredRun, find, flat
from fairlead.run.history import History
from fairlead.task.metrics import known, sign
from fairlead.task.per_client import CLIENT, PERSONAL, is_histogram
from fairlead.version import __version__

AXES = {
    "round": "rounds", "communications": "communication rounds", "exchanges": "exchanges",
    "bits": "bits up and down", "bits_up": "bits up", "bits_down": "bits down",
    "nominal_up": "nominal bits up", "gradients": "sample gradients", "seconds": "seconds in rounds",
}  # fmt: skip
PER_RUN = ("seed", "began", "after", "engine", "versions", "split", "settings", "command", "better")
TASK_SETTINGS = ("split", "split_value", "model", "task_set", "valid")
"""Command settings that change the task but not its name."""
CLIENTS = 5000
"""The most clients that are shown one by one."""
BY_LAYER = ("drift/", "cka/")
"""Columns that are shown as a map of layers and rounds."""


def gather(folders: Sequence[str | Path], title: str | None = None) -> dict[str, Any]:
    """Everything the page shows, ready for JSON; see `fairlead.report.html`."""
    stored, problems = readable(shown(folders))
    tuned = _tuning(folders)
    if not stored and not tuned:
        names = ", ".join(map(str, folders))
        raise FairleadError(
            *problems[:1] or [f"there is no run in {names}: train with --out first"]
        )
    groups = grouped(stored)
    metrics = _metrics(run.history for run in stored)
    goal = _goal(stored, tuned)
    first = goal["metric"] if goal and goal["metric"] in metrics else next(iter(metrics), "loss")
    return {
        "title": title or _title(stored, tuned),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "fairlead": __version__,
        "axes": [{"key": k, "label": v} for k, v in AXES.items() if any(k in r.history for r in stored)],
        "metrics": [
            {
                "key": name, "label": _label(name), "larger": _larger(stored, name),
                "reading": READINGS.get(name, ""),
            }
            for name in metrics
        ],
        "first": {"metric": first, "axis": "round"},
        "target": goal,
        "tuned": [_tuned_for(one) for one in tuned if any(len(m["lr"]) > 1 for m in one["methods"].values())],
        "groups": [
            {**_group(label, runs, metrics), "look": look}
            for (label, runs), look in zip(groups.items(), places(list(groups)), strict=True)
        ],
        "clients": [found for label, runs in groups.items() if (found := _clients(label, runs))],
        "splits": _splits(stored),
        "drift": [
            found
            for label, runs in groups.items()
            for measure in BY_LAYER
            if (found := _by_layer(label, runs, measure)) is not None
        ],
        **measured(groups),
        "sensitivity": _sensitivity(stored, tuned, goal, first),
        "notes": [
            *(note for one in tuned for note in one.get("notes", [])), *_notes(stored), *problems,
        ],
        "citations": _citations(stored),
    }  # fmt: skip


def shown(folders: Sequence[str | Path]) -> list[StoredRun]:
    """The runs in folders; of a method in a comparison those with the chosen step size, once there are some,
    and until then those it tries."""
    found = find(folders)
    chosen = {(run.folder.parent, run.label) for run in found}
    return [
        run
        for run in found
        if run.folder.parent.name != TRIALS
        or (run.folder.parents[1], run.label) not in chosen
        or not (run.folder.parents[1] / COMPARISON).is_file()
    ]


def _title(stored: Sequence[StoredRun], tuned: Sequence[Mapping[str, Any]]) -> str:
    if not stored:
        return f"Step sizes of {', '.join(label for one in tuned for label in one['methods'])}"
    tasks = sorted({str(run.about.get("task", {}).get("name")) for run in stored})
    return f"{', '.join(dict.fromkeys(run.label for run in stored))} on {', '.join(tasks)}"


def readable(stored: Sequence[StoredRun]) -> tuple[list[StoredRun], list[str]]:
    """The runs whose history can be read, and what is wrong with the others."""
    fine, problems = [], []
    for run in stored:
        try:
            _ = run.history, run.status  # both are cached
            fine.append(run)
        except FairleadError as error:
            problems.append(str(error))
    return fine, problems


def grouped(stored: Sequence[StoredRun]) -> dict[str, list[StoredRun]]:
    """Runs that differ only in their seed, by label: the method, and if several groups share it, the
    settings in which they differ."""
    alike: dict[str, list[StoredRun]] = {}
    for run in stored:
        own = {k: v for k, v in run.about.items() if k not in PER_RUN}
        alike.setdefault(_key([own, _task_settings(run)]), []).append(run)
    groups: dict[str, list[StoredRun]] = {}
    for key, runs in alike.items():
        repeated = len({run.seed for run in runs}) < len(runs)  # a split may depend on its seed
        for run in runs:
            groups.setdefault(key + _key(run.about.get("split")) * repeated, []).append(run)
    return dict(zip(_labels(list(groups.values())), groups.values(), strict=True))


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _task_settings(run: StoredRun) -> dict[str, Any]:
    settings = run.about.get("settings")
    return {k: settings.get(k) for k in TASK_SETTINGS} if isinstance(settings, dict) else {}


def _labels(groups: Sequence[Sequence[StoredRun]]) -> list[str]:
    labels = []
    for runs in groups:
        run = runs[0]
        twins = [other[0] for other in groups if other[0].label == run.label]
        if len(twins) == 1:
            labels.append(run.label)
            continue
        mine, others = _distinguishing(run), [_distinguishing(twin) for twin in twins]
        different = [n for n in mine if any(o.get(n) != mine[n] for o in others)]
        named = [
            f"{n.rpartition('.')[2].replace('_', ' ')} {_brief(mine[n])}"
            for n in different
            if n != "label" and mine[n] is not None
        ]
        labels.append(", ".join([run.label, *named[:3]]))
    uses: dict[str, int] = {}
    for index, label in enumerate(labels):
        uses[label] = uses.get(label, 0) + 1
        if uses[label] > 1:
            labels[index] = f"{label} ({uses[label]})"
    return labels


def _distinguishing(run: StoredRun) -> dict[str, Any]:
    """The settings in which groups can differ, the step size first."""
    own = {k: v for k, v in run.about.items() if k not in (*PER_RUN, "lr", "target")}
    rest = {k: v for k, v in flat(own).items() if k not in ("method.lr", "method.lr.lr")}
    return {"lr": run.lr, **_task_settings(run), **rest}


def _brief(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _metrics(histories: Iterable[History]) -> list[str]:
    names = dict.fromkeys(name for history in histories for name in history)
    hidden = (*AXES, "clients")
    known = [n for n in names if not (n in hidden or n.startswith(BY_LAYER) or is_histogram(n))]
    return sorted(known, key=lambda n: MAIN.index(n) if n in MAIN else len(MAIN))


def _label(metric: str) -> str:
    """A metric in words.

    >>> _label("test_loss"), _label("client_accuracy_worst")
    ('test loss', 'client accuracy, worst tenth')
    """
    words = metric.replace("_", " ")
    if metric.startswith((CLIENT, PERSONAL)):
        words = words.removesuffix(" mean").replace(" worst", ", worst tenth")
        words = words.replace(" std", ", deviation")
    return words


def _group(label: str, runs: Sequence[StoredRun], metrics: Sequence[str]) -> dict[str, Any]:
    about = runs[0].about
    settings = {k: about[k] for k in ("method", "task", "work", "engine", "versions") if k in about}
    return {
        "label": label, "method": runs[0].label, "lr": runs[0].lr, "paper": about.get("paper", ""),
        "settings": settings,
        "runs": [
            {
                "seed": run.seed, "folder": str(run.folder), "status": _status(run.status),
                "rounds": int(run.history.rows[-1]["round"]) if run.history.rows else 0,
                "columns": {
                    name: _numbers(run.history[name]) for name in (*AXES, *metrics) if name in run.history
                },
            }
            for run in sorted(runs, key=lambda run: run.seed)
        ],
    }  # fmt: skip


def _status(status: str) -> str:
    return "finished" if status == "rounds" else status


def _numbers(values: Iterable[float]) -> list[float | int | None]:
    """Numbers in short form, null if not finite."""
    return [_short(float(v)) if math.isfinite(v) else None for v in values]


def _short(value: float) -> float | int:
    return int(value) if value == int(value) else float(f"{value:.7g}")


def _splits(stored: Sequence[StoredRun]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for run in stored:
        split = run.about.get("split")
        if split:
            name = str(run.about.get("task", {}).get("name"))
            found.setdefault(json.dumps(split, sort_keys=True), {"label": name, **split})
    return list(found.values())


def _by_layer(label: str, runs: Sequence[StoredRun], measure: str) -> dict[str, Any] | None:
    """A measure by layer and round: the mean over seeds, up to the shortest run."""
    histories = [run.history for run in runs]
    layers = [name for name in histories[0] if name.startswith(measure)]
    if not layers:
        return None
    length = min(len(history.rows) for history in histories)
    rounds = histories[0]["round"][:length]
    kept = np.isfinite(histories[0][layers[0]][:length])
    values = [np.mean([h[n][:length][kept] for h in histories if n in h], axis=0) for n in layers]
    return {
        "label": label if measure == BY_LAYER[0] else f"{label}, CKA", "measure": measure[:-1],
        "rounds": _numbers(rounds[kept]), "layers": [name.removeprefix(measure) for name in layers],
        "values": [_numbers(row) for row in values],
    }  # fmt: skip


def _clients(label: str, runs: Sequence[StoredRun]) -> dict[str, Any] | None:
    """The metrics of every client at the last evaluation, as means over the seeds that recorded them."""
    found = [clients for run in runs if (clients := run.clients)]
    shape = {len(clients["samples"]) for clients in found}
    if len(shape) != 1:
        return None
    better = runs[0].about.get("better") or {}
    names = [name for name in found[0] if all(name in one for one in found) and name != "samples"]
    values = {name: np.mean([one[name] for one in found], axis=0)[:CLIENTS] for name in names}
    return {
        "label": label, "count": shape.pop(), "seeds": len(found), "samples": found[0]["samples"][:CLIENTS].tolist(),
        "metrics": [
            {"key": n, "larger": better.get(f"{n}_mean") != "lower", "values": _numbers(values[n])}
            for n in names
        ],
    }  # fmt: skip


def _tuning(folders: Sequence[str | Path]) -> list[dict[str, Any]]:
    """The tuning.json files that comparisons and tunings wrote next to their runs."""
    found = []
    for folder in map(Path, folders):
        for path in sorted({folder / "tuning.json", *folder.glob("*/tuning.json")}):
            if path.is_file():
                try:
                    one = json.loads(path.read_text(encoding="utf-8"))
                    sizes = [len(method["lr"]) for method in one["methods"].values()]
                except (OSError, ValueError) as error:
                    raise FairleadError(f"{path} cannot be read: {error}") from error
                except (TypeError, KeyError, AttributeError):  # from another program
                    continue
                found += [one] * bool(sizes)
    return found


def _goal(stored: Sequence[StoredRun], tuned: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    for run in stored:
        for name, value in (run.about.get("target") or {}).items():
            return {"metric": name, "value": value}
    for one in tuned:
        if one.get("target") is not None:
            return {"metric": one["metric"], "value": one["target"]}
    return None


def _larger(stored: Sequence[StoredRun], metric: str) -> bool | None:
    """Whether a metric is better when larger; None if no run says."""
    ways = {run.history.direction(metric) for run in stored if metric in run.history} - {None}
    return ways == {"higher"} if len(ways) == 1 else None


def _larger_in(one: Mapping[str, Any]) -> bool:
    return (one.get("better") or known(str(one["metric"]))) != "lower"


def _tuned_for(one: Mapping[str, Any]) -> dict[str, Any]:
    """What a tuning chose settings for, and in words."""
    metric, goal = str(one["metric"]), one.get("target")
    by, better = one.get("objective", "rounds"), one.get("better") or known(metric)
    if not isinstance(goal, int | float) or by in ("final", "best"):
        words = f"the best {'final ' * (by == 'final')}{metric.replace('_', ' ')}"
        goal = None
    else:
        at = sign(better) if better in ("lower", "higher") else "="
        words = f"the fewest {by} to {metric.replace('_', ' ')} {at} {goal:g}"
    held = {"test": " on the test set", "valid": " on validation data"}
    keys = [metric, str(one.get("reported") or metric)]
    return {"keys": keys, "value": goal, "words": words + held.get(str(one.get("on")), "")}


def _sensitivity(
    stored: Sequence[StoredRun],
    tuned: Sequence[Mapping[str, Any]],
    goal: Mapping[str, Any] | None,
    metric: str,
) -> list[dict[str, Any]]:
    """Rounds to the target and the final metric per step size, from tunings or else from the runs."""
    curves = [
        {"label": label, "metric": one["metric"], "larger": _larger_in(one), **found}
        for one in tuned
        for label, found in one["methods"].items()
        if len(found["lr"]) > 1
    ]
    if curves:
        return curves
    alike: dict[str, dict[float, list[StoredRun]]] = {}
    for run in stored:
        if run.lr is not None and metric in run.history:
            rest = _key({k: v for k, v in _distinguishing(run).items() if k != "lr"})
            alike.setdefault(rest, {}).setdefault(run.lr, []).append(run)
    return [_curve(sizes, goal, metric) for sizes in alike.values() if len(sizes) > 1]


def _curve(
    sizes: Mapping[float, Sequence[StoredRun]],
    goal: Mapping[str, Any] | None,
    metric: str,
) -> dict[str, Any]:
    rounds, finals = [], []
    for lr in sorted(sizes):
        histories = [run.history for run in sizes[lr]]
        diverged = any(run.status == "diverged" for run in sizes[lr])
        finals.append(math.nan if diverged else float(np.mean([h.last(metric) for h in histories])))
        reached = [
            h.first_reach(goal["metric"], goal["value"])
            if goal and goal["metric"] in h and h.direction(goal["metric"])
            else None
            for h in histories
        ]
        got = [k for k in reached if k is not None]
        rounds.append(float(np.mean(got)) if len(got) == len(reached) else math.nan)
    order = np.array(rounds if np.isfinite(rounds).any() else finals)
    first = next(iter(sizes.values()))[0]
    larger = first.history.direction(metric) == "higher"
    turned = larger and not np.isfinite(rounds).any()
    ranked = np.where(np.isfinite(order), -order if turned else order, np.inf)
    return {
        "label": first.label, "metric": metric, "larger": larger, "lr": sorted(sizes), "rounds": _numbers(rounds),
        "final": _numbers(finals), "best": sorted(sizes)[int(ranked.argmin())],
    }  # fmt: skip


def _notes(stored: Sequence[StoredRun]) -> list[str]:
    notes = []
    for run in stored:
        if run.status == "diverged":
            notes.append(f"{run.label} with seed {run.seed} and step size {run.lr} diverged.")
        elif run.status == "broken off" or run.status.startswith("failed"):
            notes.append(f"{run.folder} did not finish: {run.status}.")
    return notes


def _citations(stored: Sequence[StoredRun]) -> list[dict[str, str]]:
    keys = dict.fromkeys(run.about.get("paper", "") for run in stored)
    return [
        {"key": key, "short": PAPERS[key].short, "bibtex": PAPERS[key].bibtex}
        for key in keys
        if key in PAPERS
    ]
