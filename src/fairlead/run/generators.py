"""Torch's global generators."""

from __future__ import annotations

import torch


def seed_generators(value: int, device: torch.device) -> None:
    """Seed the generators in use; `torch.manual_seed` would look for all devices."""
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.default_generators[card_of(device)].manual_seed(value)


def card_of(device: torch.device) -> int:
    """The number of a GPU."""
    return torch.cuda.current_device() if device.index is None else device.index
