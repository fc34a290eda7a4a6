"""Deployment: a server and three clients that keep their data, here in one process, and the same run simulated.

    python examples/deploy.py            # or: python examples/deploy.py 2  for two rounds

Over machines, Flower carries the bytes instead of `InProcess`: `fairlead deploy init my-federation` writes that project.
"""

from __future__ import annotations

import sys
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

import fairlead as fl
from fairlead.deploy import Agreement, InProcess, LocalClient, Patience, Server

SAMPLES, CLIENTS = 40, 3


def data_of(client: int) -> tuple[Tensor, Tensor]:
    """What only this client has."""
    x = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(client)).double()
    return x, (x[:, 0] + client * x[:, 1] > 0).long()


def task(data: tuple[Tensor, Tensor], clients: int = 1) -> fl.Task:
    """The model and the loss, on which all sides agree, with some data."""
    owners = [range(SAMPLES * k, SAMPLES * (k + 1)) for k in range(clients)]
    return fl.Task(lambda: nn.Linear(4, 2), "cross_entropy", data, owners, dtype=torch.float64)


def main(rounds: int = 20) -> None:
    batches = fl.Batches(batch_size=8, steps=5)
    agreement = Agreement(fl.Scaffold(lr=0.1), clients=CLIENTS, batches=batches)
    with TemporaryDirectory() as state:  # each client's c_i, which never leaves it
        clients = [LocalClient(task(data_of(k)), agreement, k, state) for k in range(CLIENTS)]
        transport = InProcess({k: client.answer for k, client in enumerate(clients)})
        made_up = task(data_of(99))  # the server has no data of its own
        deployed = Server(made_up, agreement, transport, Patience(deadline=60)).run(rounds=rounds)
    x, y = (torch.cat(parts) for parts in zip(*map(data_of, range(CLIENTS)), strict=True))
    whole = task((x, y), CLIENTS)
    simulated = fl.train(whole, fl.Scaffold(lr=0.1), rounds=rounds, batch_size=8, steps=5)
    apart = float((deployed.state.x - simulated.x).abs().max())
    print(f"deployed and simulated models differ by {apart:.1e} after {rounds} rounds")
    print(f"loss {simulated.history.last('loss'):.4f}, {simulated.ledger.up:,} bits up")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
