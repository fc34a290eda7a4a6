"""A FedAvg loop as people write it by hand: one client after another, one optimizer step after another."""

from __future__ import annotations

import random
import time

import torch
from torch import Tensor, nn

from bench.peers.plain import Runner, Work, data, flat, held_out, model


def begin(work: Work) -> Runner:
    """Model, data and loop, on a device."""
    device = torch.device(work["device"])
    net = model(work).to(device)
    x, y = (t.to(device) for t in data(work))
    test = tuple(t.to(device) for t in held_out(work)) if work["test"] else None
    server = [p.detach().clone() for p in net.parameters()]

    def client(i: int) -> None:
        """Local steps from the server's weights."""
        load(net, server)
        optimizer = torch.optim.SGD(net.parameters(), lr=work["lr"])
        make = torch.arange if work.get("exact") else torch.randperm
        for rows in make(x.shape[1], device=device).split(work["batch"]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[i, rows]), y[i, rows]).backward()
            optimizer.step()

    def one_round() -> None:
        total = [torch.zeros_like(p) for p in server]
        count, everyone = work["clients"], range(work["population"])
        for i in everyone if count == len(everyone) else random.sample(everyone, count):
            client(i)
            with torch.no_grad():
                for t, p in zip(total, net.parameters(), strict=True):
                    t += p / count
        server[:] = total

    def run(rounds: int) -> list[float]:
        begin = time.perf_counter()
        for k in range(rounds):
            if test is not None and k % work["eval_every"] == 0:
                evaluate(net, server, *test)
            one_round()
        if test is not None:
            evaluate(net, server, *test)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return [(time.perf_counter() - begin) / rounds]

    return Runner(run, lambda: flat(server))


def load(net: nn.Module, weights: list[Tensor]) -> None:
    """Give a model weights."""
    with torch.no_grad():
        for p, w in zip(net.parameters(), weights, strict=True):
            p.copy_(w)


@torch.no_grad()
def evaluate(net: nn.Module, weights: list[Tensor], x: Tensor, y: Tensor) -> tuple[float, float]:
    """Loss and accuracy on held-out samples."""
    load(net, weights)
    loss = right = 0.0
    for a, b in zip(x.split(1000), y.split(1000), strict=True):
        out = net(a)
        loss += float(nn.functional.cross_entropy(out, b, reduction="sum"))
        right += float((out.argmax(1) == b).sum())
    return loss / len(y), right / len(y)
