"""The same task with all data in one place: what centralised training sees."""

from __future__ import annotations

import copy

from fairlead.data.splits import Split
from fairlead.task.task import Task


def pooled(task: Task) -> Task:
    """The task with one client that holds the data of all.

    >>> import fairlead as fl
    >>> task = fl.tasks.digits(clients=5)
    >>> pooled(task).clients, int(pooled(task).sizes[0]) == int(task.sizes.sum())
    (1, True)
    """
    other = task._changed()  # pyright: ignore[reportPrivateUsage]
    other.split, other.test_clients, other.valid_owners = Split.of([task.split.order]), None, None
    other._place(copy.deepcopy(task.model), task.dtype, task.device)  # pyright: ignore[reportPrivateUsage]
    other._freeze()  # pyright: ignore[reportPrivateUsage]
    return other
