"""A task with the data of some of its clients only."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fairlead.task.samples import sample_bytes, taken
from fairlead.task.task import Task


def holding(task: Task, clients: NDArray[np.int64]) -> Task:
    """The task with the data of these clients only, on its device; clients keep their numbers."""
    other = task._changed()
    mine = np.isin(np.repeat(np.arange(task.clients), task.sizes), clients)
    rows = torch.from_numpy(task.split.order[mine])
    other.data = taken(task, task.data, rows)
    other.store, other.mapped, other.keep = task.device, False, "device"
    other.ahead, other.sample_bytes = False, sample_bytes(other.data)
    order = torch.full((len(mine),), -1)  # those of others are not here
    order[torch.from_numpy(mine)] = torch.arange(len(rows))
    other.order = order.to(task.device)
    other.first = task.first.to(task.device)
    # it follows from all labels, so it cannot be found again here
    other.test_clients = task.test_clients or task.memo.get("split_of_test")
    other._freeze()
    return other
