"""A ledger as tensors of a checkpoint."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairlead.engine.accounting import Exchange, Ledger


def ledger_tensors(ledger: Ledger) -> dict[str, Tensor]:
    """All exchanges, one after another."""
    entries = ledger.exchanges
    flat = {
        "round": np.array([e.round for e in entries], dtype=np.int64),
        "down": np.array([e.down for e in entries], dtype=np.int64),
        "count": np.array([len(e.clients) for e in entries], dtype=np.int64),
        "clients": np.concatenate([e.clients for e in entries] or [np.zeros(0, np.int64)]),
        "up": np.concatenate([e.up for e in entries] or [np.zeros(0, np.int64)]),
        "measure": _joined([e.measure for e in entries]),
        "extra": np.concatenate([e.all_down - e.down for e in entries] or [np.zeros(0, np.int64)]),
    }
    return {name: torch.from_numpy(values) for name, values in flat.items()}


def ledger_of(tensors: dict[str, Tensor], nominal: list[float]) -> Ledger:
    """The ledger again; `nominal` has the nominal bits of every exchange."""
    ledger = Ledger()
    flat = {name: t.numpy() for name, t in tensors.items()}
    stored = flat.get("measure", np.zeros(0, np.uint8)).tobytes().decode()
    names = stored.split("\n") if stored else [""] * len(flat["count"])
    ends = np.cumsum(flat["count"])
    for k, end in enumerate(ends):
        part = slice(end - flat["count"][k], end)
        clients, up = flat["clients"][part], flat["up"][part]
        extra = flat["extra"][part]
        down = int(flat["down"][k])
        ledger.add(Exchange(int(flat["round"][k]), clients, down, up, nominal[k], extra, names[k]))
    return ledger


def _joined(names: list[str]) -> np.ndarray:
    """Names as bytes, with a line for each."""
    return np.frombuffer("\n".join(names).encode(), np.uint8).copy()
