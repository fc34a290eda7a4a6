"""The description of a run, for people and for files."""

from __future__ import annotations

import hashlib
import json
import platform
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairlead.data.split_plot import sentence, shown
from fairlead.describe import described
from fairlead.task.evaluation import directions, recorded
from fairlead.task.per_client import columns
from fairlead.task.task import Task
from fairlead.version import __version__


def about(run: Any) -> dict[str, Any]:
    """The description of a run: method, task, settings, versions."""
    task, plan, method = run.task, run.plan, run.algorithm
    config = run.config
    lr = getattr(method, "lr", None)
    ways = columns(task, plan.per_client)
    better = {**directions(task), **ways}
    measured = [*recorded(task, plan.weighting, plan.objective), *ways]
    return {
        "label": type(method).__name__,
        "paper": method.paper,
        "lr": _base(lr),
        "seed": plan.seed,
        "rounds": plan.rounds,
        "target": described(plan.target),
        "better": {name: better[name] for name in measured if name in better},
        "method": config["method"],
        "task": {
            "name": task.name, "clients": task.clients, "samples": int(task.sizes.sum()),
            "parameters": task.dim, "dtype": str(task.dtype).removeprefix("torch."),
            "device": str(task.device), "l2": task.l2, "noise": task.noise,
            **({} if task.valid is None else {"valid": len(task.valid[0])}),
        },
        "work": {
            **{name: _short(config[name]) for name in ("batches", "cohort", "dropout")},
            "weighting": _short(described(plan.weighting)), "eval_every": plan.eval_every,
            "objective": plan.objective, "measures": [m.name for m in plan.measures],
            **({} if plan.per_client is None else {"per_client": described(plan.per_client)}),
        },
        "split": _split(task),
        "engine": run.session.report,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "fairlead": __version__, "torch": torch.__version__, "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }  # fmt: skip


def _base(lr: Any) -> float | None:
    """The step size before any schedule."""
    value = getattr(lr, "lr", lr)
    return float(value) if isinstance(value, int | float) else None


def _short(value: Any) -> Any:
    """A value, or its digest if it is long."""
    text = json.dumps(value)
    return value if len(text) < 2000 else f"digest {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def class_labels(task: Task) -> NDArray[Any] | None:
    """The labels to describe a split by, if they are few."""
    targets = task.data[task.arrangement.count :] or task.data[1:]
    if not targets or targets[0].dim() != 1:
        return None
    labels = targets[0].cpu().numpy()
    return labels if len(np.unique(labels)) <= 100 else None


def _split(task: Task) -> dict[str, Any] | None:
    """The number of samples per client and class, if targets are classes."""
    labels = class_labels(task)
    if labels is None or bool((task.order < 0).any()):  # or samples are elsewhere
        return None
    counts, classes, notes = shown(task.split, labels)
    return {
        "sentence": sentence(task.split, labels), "classes": classes, "counts": counts.tolist(),
        "more": " ".join(notes),
    }  # fmt: skip
