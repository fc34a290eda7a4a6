"""Whether float32 products may use TF32, a GPU's matrix units with 10 mantissa bits per factor."""

from __future__ import annotations

from typing import Any

import torch

from fairlead.errors import FairleadError
from fairlead.task.task import Task


def _switches() -> dict[str, tuple[Any, str, Any, Any]]:
    """Torch's switches: object, attribute, and its values for yes and no."""
    products: Any = torch.backends.cuda.matmul
    layers: Any = torch.backends.cudnn
    if hasattr(products, "fp32_precision"):
        return {
            "products": (products, "fp32_precision", "tf32", "ieee"),
            "convolutions": (layers.conv, "fp32_precision", "tf32", "ieee"),
        }
    return {
        "products": (products, "allow_tf32", True, False),
        "convolutions": (layers, "allow_tf32", True, False),
    }


def use_matrix_units(yes: bool, before: dict[str, Any]) -> None:
    """Allow or forbid TF32, saving the original setting in `before`."""
    for name, (where, field, allowed, forbidden) in _switches().items():
        before.setdefault(name, getattr(where, field))
        setattr(where, field, allowed if yes else forbidden)


def restore_units(before: dict[str, Any]) -> None:
    """Restore the saved setting."""
    for name, (where, field, _, _) in _switches().items():
        if name in before:
            setattr(where, field, before[name])
    before.clear()


def check_half(task: Task) -> None:
    """Raise an error if a task cannot be computed in bfloat16."""
    if task.dtype != torch.float32 or task.buffer_dim:
        raise FairleadError(
            'precision="bfloat16" needs a float32 task whose model has no BatchNorm: '
            'use norm="group", or precision="tf32"'
        )
