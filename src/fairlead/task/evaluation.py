"""Passes over whole data sets: sums of losses and metrics, with the model in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from fairlead.errors import FairleadError, unknown
from fairlead.task.losses import LOSSES, METRICS
from fairlead.task.metrics import (
    BETTER,
    VALID,
    AnyMetric,
    Better,
    Metric,
    Whole,
    direction,
    on_valid,
)
from fairlead.task.samples import load, losses_of, output_of

DENSE = (nn.Sequential, nn.Linear, nn.Flatten, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Identity)


def client_weights(
    sizes: NDArray[np.int64], weighting: str | Sequence[float]
) -> NDArray[np.float64]:
    """The weight of every client in the objective; they sum to one.

    >>> client_weights(np.array([1, 3]), "size")
    array([0.25, 0.75])
    """
    if isinstance(weighting, str):
        if weighting not in ("uniform", "size"):
            raise unknown("weighting", weighting, ["uniform", "size"])
        raw = np.ones(len(sizes)) if weighting == "uniform" else sizes.astype(float)
    else:
        raw = np.asarray(weighting, dtype=float)
    if raw.shape != sizes.shape or not np.isfinite(raw).all() or (raw <= 0).any():
        raise FairleadError(f"client weights must be {len(sizes)} positive numbers, one per client")
    return raw / raw.sum()


def knows_optimum(task: Any, weighting: str | Sequence[float]) -> bool:
    """Whether the task's optimum is that of the objective with these weights."""
    if task.optimum is None:
        return False
    if task.weighting is not None:  # the only one allowed
        return True
    return np.allclose(task.client_weights(weighting), task.client_weights())


def recorded(task: Any, weighting: str | Sequence[float], objective: bool) -> list[str]:
    """The names of what `Task.evaluate` measures."""
    names = ["loss"] * objective + held_out_names(task)
    names += ["distance", "gap"][: 1 + objective] * knows_optimum(task, weighting)
    return task._with_own_measures(names, objective)


def names_on_test(task: Any) -> list[str]:
    """The names of what is measured on test data."""
    judge = judge_of(task)
    return ["test_loss", *judge.metrics] if judge.test is not None else []


def held_out_names(task: Any) -> list[str]:
    """The names of what is measured on the task's own test and validation data."""
    test = ["test_loss", *task.metrics] * (task.test is not None)
    valid = [VALID + name for name in ("loss", *task.metrics)] * (task.valid is not None)
    return test + valid


def directions(task: Any) -> dict[str, Better]:
    """Which way is better, for everything that `Task.evaluate` may measure."""
    found: dict[str, Better] = dict(BETTER)
    for name, metric in {**task.metrics, **judge_of(task).metrics}.items():
        found[name] = direction(name, metric)
    for name in list(found):
        found[on_valid(name)] = found[name]
    return found


def judge_of(task: Any) -> Any:
    """The task whose held-out data count: for a saddle task the one that judges its first player."""
    return getattr(task, "judge", None) or task


def turned(task: Any, v: Any) -> Any:
    """The vector with its sign flipped where the objective is maximized."""
    return v if task.flip is None else v * task.flip


class Processes(Protocol):
    """What an evaluation requires of the processes that share it."""

    rank: int
    size: int

    def sum_(self, t: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        ...


class Spread:
    """Evaluations split across processes: each covers its own clients' samples if it holds no others,
    otherwise an even share."""

    def __init__(self, ranks: Processes, positions: NDArray[np.int64] | None) -> None:
        self.ranks, self.positions = ranks, positions

    def part(self, rows: int, training: bool) -> Tensor:
        """The rows that this process evaluates."""
        if training and self.positions is not None:
            return torch.from_numpy(self.positions)
        ends = np.linspace(0, rows, self.ranks.size + 1).astype(int)
        return torch.arange(ends[self.ranks.rank], ends[self.ranks.rank + 1])


def sums(
    task: Any,
    x: Tensor,
    buffers: Tensor | None,
    data: tuple[Tensor, ...],
    rows: Tensor,
    weights: Tensor,
    metrics: Mapping[str, AnyMetric],
    block: int = 4096,
    spread: Spread | None = None,
) -> dict[str, Tensor]:
    """Weighted sums of the loss and of metrics over some rows, and the values of `Whole` metrics."""
    named = task.state_dict(x, buffers)
    found = {name: x.new_zeros(()) for name in ("loss", *metrics)}
    seen: list[tuple[Any, ...]] = []
    whole = {name: metric for name, metric in metrics.items() if isinstance(metric, Whole)}
    # a `Whole` metric needs all outputs in one process, and gradients do not cross processes
    spread = None if whole or x.requires_grad else spread
    if spread is not None:
        mine = spread.part(len(rows), data is task.data)
        rows, weights = rows[mine], weights[mine.to(weights.device)]
    for part, w in zip(rows.split(block), weights.split(block), strict=True):
        if not len(part):
            continue
        batch = load(task, data, part)
        output = output_of(task, task.evaluation_model, named, batch)
        targets = task.arrangement.of_loss(batch)
        found["loss"] = found["loss"] + task.loss(output, *targets) @ w
        for name, metric in metrics.items():
            if not isinstance(metric, Whole):
                found[name] = found[name] + metric(output, *targets) @ w
        if whole:
            seen.append((output, *targets))
    if whole:
        everything = tree_map(lambda *parts: _joined(parts), *seen)
        found.update({name: metric.of(*everything).to(x.dtype) for name, metric in whole.items()})
    if spread is not None:
        total = spread.ranks.sum_(torch.stack(list(found.values())))
        found = dict(zip(found, total, strict=True))
    return found


def _joined(parts: tuple[Any, ...]) -> Any:
    """The outputs of several batches together; what is no tensor is the first batch's."""
    return torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0]


def held_out(
    task: Any, x: Tensor, buffers: Tensor | None = None, spread: Spread | None = None
) -> dict[str, Tensor]:
    """The mean loss and the metrics on the test and validation data, where there are any."""
    values: dict[str, Tensor] = {}
    for data, named in _held_out_sets(task):
        rows, weights = _even(task, data)
        found = sums(task, x, buffers, data, rows, weights, task.metrics, spread=spread)
        values.update({named(name): value for name, value in found.items()})
    return values


def _held_out_sets(task: Any) -> list[tuple[tuple[Tensor, ...], Callable[[str], str]]]:
    """The test and validation data, and how the columns of each are named."""
    sets = [
        (task.test, lambda name: "test_loss" if name == "loss" else name),
        (task.valid, lambda name: VALID + name),
    ]
    return [(data, named) for data, named in sets if data is not None]


def _even(task: Any, data: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """All rows of some data, with equal weights."""
    n = len(data[0])
    rows = torch.arange(n, device=task.device)
    return rows, torch.full((n,), 1 / n, device=task.device, dtype=task.dtype)


def objective_of(
    task: Any,
    x: Tensor,
    weighting: str | Sequence[float],
    buffers: Tensor | None,
    block: int = 4096,
    spread: Spread | None = None,
) -> Tensor:
    """f(x) = Σ p_i f_i(x) over all clients' data."""
    weights = _sample_weights(task, weighting)
    total = sums(task, x, buffers, task.data, task.order, weights, {}, block, spread)["loss"]
    return total + task.l2 / 2 * (turned(task, x) @ x) if task.l2 else total


def _sample_weights(task: Any, weighting: str | Sequence[float]) -> Tensor:
    """The weight of every sample in the objective, in the order of clients."""
    key = weighting if isinstance(weighting, str) else np.asarray(weighting, float).tobytes()
    if task.memo.get("weighting") != key:
        share = task.client_weights(weighting) / task.sizes
        weights = torch.from_numpy(np.repeat(share, task.sizes)).to(task.device, task.dtype)
        task.memo.update(weighting=key, sample_weights=weights)
    return task.memo["sample_weights"]


def evaluated(
    task: Any,
    x: Tensor,
    buffers: Tensor | None,
    weighting: str | Sequence[float],
    objective: bool,
    spread: Spread | None = None,
) -> dict[str, float]:
    """The result of `Task.evaluate`."""
    values = measured(task, x, buffers, weighting, objective, spread)
    if not values:
        return {}
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))


def measured(
    task: Any,
    x: Tensor,
    buffers: Tensor | None,
    weighting: str | Sequence[float],
    objective: bool,
    spread: Spread | None = None,
) -> dict[str, Tensor]:
    """The values of `evaluated` as tensors on the task's device."""
    values: dict[str, Tensor] = {}
    with torch.no_grad():
        if objective:
            values["loss"] = objective_of(task, x, weighting, buffers, spread=spread)
        values.update(held_out(task, x, buffers, spread))
        if task.optimum is not None and knows_optimum(task, weighting):
            values["distance"] = (x - task.optimum).norm()
            if objective:
                values["gap"] = values["loss"] - _least(task, task.optimum, weighting, buffers)
    return values


def _least(
    task: Any, at: Tensor, weighting: str | Sequence[float], buffers: Tensor | None
) -> Tensor:
    """The objective at the optimum, cached if it does not depend on buffers."""
    if task.buffer_dim:
        return task.objective(at, weighting, buffers)
    if "least" not in task.memo:
        task.memo["least"] = task.objective(at, weighting)
    return task.memo["least"]


def evaluate_many(
    task: Any,
    x: Tensor,
    buffers: Tensor,
    weighting: str | Sequence[float],
    objective: bool,
) -> list[dict[str, float]]:
    """`Task.evaluate` at several points (R, d), in one pass if its losses and metrics allow it."""
    if not _stacks(task):
        pairs = zip(x, buffers, strict=True)
        return [task.evaluate(at, own, weighting, objective) for at, own in pairs]
    values: dict[str, Tensor] = {}
    with torch.no_grad():
        if objective:
            weights = _sample_weights(task, weighting)
            loss = _stacked_sums(task, x, buffers, task.data, task.order, weights, {})["loss"]
            values["loss"] = loss + task.l2 / 2 * (x * x).sum(1) if task.l2 else loss
        for data, named in _held_out_sets(task):
            found = _stacked_sums(task, x, buffers, data, *_even(task, data), task.metrics)
            values.update({named(name): value for name, value in found.items()})
        if task.optimum is not None and knows_optimum(task, weighting):
            values["distance"] = (x - task.optimum).norm(dim=1)
            if objective:
                values["gap"] = values["loss"] - _least(task, task.optimum, weighting, buffers[0])
    table = torch.stack(list(values.values()), 1).tolist() if values else [[] for _ in x]
    return [dict(zip(values, row, strict=True)) for row in table]


def _stacks(task: Any) -> bool:
    """Whether to evaluate several points in one pass: dense models with the named losses and metrics."""
    known = {metric for named in METRICS.values() for metric in named.values()}
    plain = [m.of if isinstance(m, Metric) else m for m in task.metrics.values()]
    named = task.loss in LOSSES.values() and all(m in known for m in plain)
    usual = task.flip is None and not task.buffer_dim
    return named and usual and all(isinstance(m, DENSE) for m in task.model.modules())


def _stacked_sums(
    task: Any,
    x: Tensor,
    buffers: Tensor,
    data: tuple[Tensor, ...],
    rows: Tensor,
    weights: Tensor,
    metrics: Mapping[str, AnyMetric],
    block: int = 4096,
) -> dict[str, Tensor]:
    """`sums` at several points."""
    total = x.new_zeros(len(x), 1 + len(metrics))
    for part, w in zip(rows.split(block), weights.split(block), strict=True):
        batch = load(task, data, part)
        targets = task.arrangement.of_loss(batch)

        def at(
            x: Tensor, own: Tensor, w: Tensor = w, batch: Any = batch, t: Any = targets
        ) -> Tensor:
            output = output_of(task, task.evaluation_model, task.state_dict(x, own), batch)
            measures = [task.loss, *(m for m in metrics.values() if not isinstance(m, Whole))]
            return torch.stack([measure(output, *t) @ w for measure in measures])

        total = total + vmap(at)(x, buffers)
    return dict(zip(("loss", *metrics), total.T, strict=True))


def client_losses(task: Any, x: Tensor, buffers: Tensor | None = None) -> Tensor:
    """f_i(x) of every client."""
    named = task.state_dict(x, buffers)
    losses = []
    for rows in task.order.split(4096):
        batch = load(task, task.data, rows)
        output = output_of(task, task.evaluation_model, named, batch)
        losses.append(losses_of(task, output, batch))
    sizes = torch.from_numpy(task.sizes).to(task.device)
    owner = torch.repeat_interleave(torch.arange(task.clients, device=task.device), sizes)
    total = x.new_zeros(task.clients).index_add(0, owner, torch.cat(losses))
    return total / sizes + task.l2 / 2 * (turned(task, x) @ x)
