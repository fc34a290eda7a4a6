"""Passes over whole data sets: sums of losses and metrics, with the model in evaluation mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from fairlead.errors import FairleadError, unknown
from fairlead.losses import Metric, Whole

if TYPE_CHECKING:
    from fairlead.task import Block, Task


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
        raise FairleadError(f"client weights must be {len(sizes)} positive numbers, one a client")
    return raw / raw.sum()


def sums(
    task: Task,
    x: Tensor,
    buffers: Tensor | None,
    data: Block,
    rows: Tensor,
    weights: Tensor,
    metrics: Mapping[str, Metric | Whole],
    block: int = 4096,
) -> dict[str, Tensor]:
    """Weighted sums of the loss and of metrics over some rows, and the values of `Whole` metrics."""
    named = task.state_dict(x, buffers)
    found = {name: x.new_zeros(()) for name in ("loss", *metrics)}
    seen: list[tuple[Tensor, ...]] = []
    whole = {name: metric for name, metric in metrics.items() if isinstance(metric, Whole)}
    task.model.eval()
    for part, w in zip(rows.split(block), weights.split(block), strict=True):
        batch = task.prepared(task.taken(data, part))
        output = functional_call(task.model, named, batch[: task.inputs])
        targets = batch[task.inputs :]
        found["loss"] = found["loss"] + task.loss(output, *targets) @ w
        for name, metric in metrics.items():
            if not isinstance(metric, Whole):
                found[name] = found[name] + metric(output, *targets) @ w
        if whole:
            seen.append((output, *targets))
    task.model.train()
    if whole:
        everything = [torch.cat(parts) for parts in zip(*seen, strict=True)]
        found.update({name: metric.of(*everything).to(x.dtype) for name, metric in whole.items()})
    return found


def held_out(task: Task, x: Tensor, buffers: Tensor | None = None) -> dict[str, Tensor]:
    """The mean loss and the metrics on the test data, if there are any."""
    if task.test is None:
        return {}
    n = len(task.test[0])
    rows = torch.arange(n, device=task.device)
    weights = torch.full((n,), 1 / n, device=task.device, dtype=task.dtype)
    found = sums(task, x, buffers, task.test, rows, weights, task.metrics)
    return {"test_loss": found.pop("loss"), **found}


def client_losses(task: Task, x: Tensor, buffers: Tensor | None = None) -> Tensor:
    """f_i(x) of every client."""
    named = task.state_dict(x, buffers)
    task.model.eval()
    losses = []
    for rows in task.order.split(4096):
        batch = task.prepared(task.taken(task.data, rows))
        output = functional_call(task.model, named, batch[: task.inputs])
        losses.append(task.loss(output, *batch[task.inputs :]))
    task.model.train()
    sizes = torch.from_numpy(task.sizes).to(task.device)
    owner = torch.repeat_interleave(torch.arange(task.clients, device=task.device), sizes)
    total = x.new_zeros(task.clients).index_add(0, owner, torch.cat(losses))
    return total / sizes + task.l2 / 2 * (task.turned(x) @ x)
