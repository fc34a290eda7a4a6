"""Samples of a task: rows of its data, on its device and as the model expects them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.func import functional_call

Block: TypeAlias = tuple[Tensor, ...]
"""Samples: inputs and targets, one row per sample."""


def taken(task: Any, data: Block, rows: Tensor) -> Block:
    """Some rows of data, copied to the task's device."""
    return tuple(task.cast(t.index_select(0, rows.to(t.device))) for t in data)


def prepared(task: Any, block: Block, keys: Tensor | None = None) -> Block:
    """Samples after the transform, which augments them if it gets `keys`."""
    if task.transform is None:
        return block
    return task.transform(block[0], task.dtype, keys), *block[1:]


def load(task: Any, data: Block, rows: Tensor) -> Block:
    """Some rows of data as the model expects them."""
    return prepared(task, taken(task, data, rows))


def output_of(task: Any, model: nn.Module, named: Mapping[str, Tensor], block: Block) -> Any:
    """The model's output for samples, with parameters and buffers by name."""
    return functional_call(model, dict(named), *task.arrangement.arguments(block))


def losses_of(task: Any, output: Any, block: Block) -> Tensor:
    """The loss of each sample, given the model's output."""
    return task.loss(output, *task.arrangement.of_loss(block))


def sample_bytes(data: Block) -> int:
    """Bytes of one sample where it is stored."""
    return max(1, sum(t.nbytes // max(1, len(t)) for t in data))
