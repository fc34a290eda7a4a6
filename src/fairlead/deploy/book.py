"""The server's book: which state of each client counts. It is kept in the run's checkpoints."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from fairlead.deploy.wire import START
from fairlead.run.callbacks import Callback, RoundView

CHECKPOINTS = 3
"""How many checkpoints back clients keep the states of."""


class Book(Callback):
    """Which state of each client counts, and the number of the next order."""

    def __init__(self, clients: int) -> None:
        self.run = secrets.token_hex(16)
        self.secret = secrets.randbits(62)
        """The seed of the noise that the server adds, which no client knows."""
        self.base = [START] * clients
        self._saved: list[list[str]] = []
        self._started, self._orders = time.time_ns(), 0

    def number(self) -> tuple[int, int]:
        """The number of the next order. It rises, also when the server starts again."""
        self._orders += 1
        return self._started, self._orders

    def counts(self, client: int, tag: str) -> None:
        """A client's new state counts from now on."""
        self.base[client] = tag

    def keep(self, client: int) -> tuple[str, ...]:
        """The states of a client that the server may go back to."""
        return tuple({tags[client] for tags in self._saved if tags[client] != START})

    # -- in checkpoints -------------------------------------------------------------------------

    def saved(self) -> dict[str, Tensor]:
        self._saved = [*self._saved[1 - CHECKPOINTS :], list(self.base)]
        # the newest last; tags are hexadecimal, and a start is all zeros
        rows = [[_bytes(tag) for tag in tags] for tags in self._saved]
        return {
            "run": torch.tensor(list(bytes.fromhex(self.run)), dtype=torch.uint8),
            "base": torch.tensor(rows, dtype=torch.uint8),
            "secret": torch.tensor([self.secret]),
        }

    def restore(self, saved: Mapping[str, Tensor], view: RoundView) -> None:
        self.run = bytes(saved["run"].tolist()).hex()
        view.session.noise_seed = self.secret = int(saved["secret"])
        self._saved = [[_tag(row) for row in tags] for tags in saved["base"].tolist()]
        self.base = list(self._saved[-1])


def _bytes(tag: str) -> list[int]:
    return list(bytes.fromhex(tag)) if tag != START else [0] * 16


def _tag(row: list[int]) -> str:
    return bytes(row).hex() if any(row) else START
