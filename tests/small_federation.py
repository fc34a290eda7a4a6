"""A small federation in one process: the clients' data, their tasks, and what the simulation does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fairlead as fl
from fairlead.deploy import Agreement, InProcess, LocalClient, Patience, Server

SIZES = (9, 14, 11, 6)


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def _data(sizes: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    x = torch.randn(sum(sizes), 4, dtype=torch.float64)
    shift = torch.cat([torch.full((n,), float(i)) for i, n in enumerate(sizes)])
    return x + shift[:, None] / 3, (torch.arange(sum(sizes)) * 7 + shift.long()) % 3


def task_of(data: Any, split: Any = None, model: Any = None, **more: Any) -> fl.Task:
    one = [range(len(data[0]))] if split is None else split
    return fl.Task(model or _model(), "cross_entropy", data, one, dtype=torch.float64, **more)


class Federation:
    """Clients, their folders, and the whole task that a simulation has."""

    def __init__(
        self,
        folder: Path,
        method: fl.Algorithm[Any, Any],
        batches: fl.Batches | None = None,
        sizes: tuple[int, ...] = SIZES,
        measures: Sequence[Any] = (),
        **task: Any,
    ) -> None:
        self.folder, self.sizes, self.settings = folder, sizes, task
        self.agreement = Agreement(
            method, len(sizes), batches or fl.Batches(batch_size=4, steps=3), 2, tuple(measures)
        )
        self.data = _data(sizes)
        ends = np.cumsum(sizes)
        self.split = [np.arange(e - n, e) for e, n in zip(ends, sizes, strict=True)]
        self.clients: dict[int, LocalClient] = {}
        self.transport = InProcess({})
        for client in range(len(sizes)):
            self.start(client)

    def local(self, client: int) -> fl.Task:
        rows = torch.from_numpy(self.split[client])
        return task_of((self.data[0][rows], self.data[1][rows]), **self.settings)

    def whole(self) -> fl.Task:
        return task_of(self.data, self.split, **self.settings)

    def start(self, client: int) -> None:
        """Start a client, anew if it was there: all that it knows is in its folder."""
        made = LocalClient(self.local(client), self.agreement, client, self.folder)
        self.clients[client] = made
        self.transport.handlers[100 + client] = made.answer

    def server(self, **settings: Any) -> Server:
        torch.manual_seed(9)
        sample = (torch.randn(4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0]))
        patience = settings.pop("patience", Patience(deadline=10, limit=100))
        return Server(
            task_of(sample, **self.settings), self.agreement, self.transport, patience, **settings
        )

    def simulated(self, rounds: int, **settings: Any) -> fl.Run:
        agreed = self.agreement
        return fl.train(
            self.whole(), agreed.method, rounds=rounds,
            batches=agreed.batches, seed=agreed.seed, engine="loop", workers=1, **settings,
        )  # fmt: skip

    def states(self, server: Server) -> list[dict[str, torch.Tensor]]:
        """What counts of every client's state."""
        from fairlead.deploy.client_folder import ClientFolder

        return [
            ClientFolder(client.folder, server.book.run).state(server.book.base[number])
            for number, client in sorted(self.clients.items())
        ]
