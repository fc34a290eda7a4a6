"""Which version of a lasting broadcast every client has."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Versions:
    """Versions by name and client, on the device, where versions are numbers too.

    >>> known = Versions(3, torch.device("cpu"))
    >>> one = np.array([0, 2])
    >>> known.missing("centre", torch.tensor(0.0), one, one).tolist()
    [1, 1]
    >>> known.missing("centre", torch.tensor(0.0), np.arange(3), np.arange(3)).tolist()
    [0, 1, 0]
    """

    def __init__(self, clients: int, device: torch.device) -> None:
        self.clients, self.device = clients, device
        self.tables: dict[str, Tensor] = {}

    def missing(
        self, name: str, version: Tensor, sampled: NDArray[np.int64], answered: NDArray[np.int64]
    ) -> Tensor:
        """1 for each sampled client that must be sent this version, otherwise 0. Clients that answer have it
        from now on."""
        if name not in self.tables:
            self.tables[name] = torch.full((self.clients,), -1, device=self.device)
        table = self.tables[name]
        asked = torch.from_numpy(sampled).to(self.device)
        now = version.to(table.dtype)
        missing = (table[asked] != now).long()
        table[torch.from_numpy(answered).to(self.device)] = now
        return missing

    def export(self) -> dict[str, Tensor]:
        """All versions, for a checkpoint."""
        return {name: t.cpu() for name, t in self.tables.items()}

    def load(self, saved: dict[str, Tensor]) -> None:
        """Load what `export` returned."""
        self.tables = {name: t.to(self.device, copy=True) for name, t in saved.items()}
