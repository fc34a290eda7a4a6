"""Evaluation on the clients: their losses and metrics, on data that stay where they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairlead.core.records import Upload
from fairlead.probe.place import Found, Place, Probe, ProbedClient


class Evaluated(Upload):
    """A client's loss, its number of test samples, and the sums of its test loss and metrics over them."""

    each: ClassVar[tuple[str, ...]] = ("loss", "count", "sums")
    loss: Tensor
    count: Tensor
    sums: Tensor


@dataclass(frozen=True)
class OnClients(Probe):
    """The objective f(x) = Σ p_i f_i(x) on the clients' own data and the largest f_i(x); where clients have test data of their own, the
    test loss and the metrics over all of their test samples together.

    clients: how many clients to ask; all by default.

    >>> import fairlead as fl
    >>> task = fl.problems.random_quadratics(clients=4)
    >>> found = fl.measure.take(task, OnClients())
    >>> sorted(found.values), found.clients
    (['loss', 'worst_loss'], 4)
    """

    name: ClassVar[str] = "on_clients"
    leaves: ClassVar[str] = (
        "its loss, its number of test samples, and the sums of the loss and of each metric over them"
    )
    clients: int | None = None

    def evaluate(self, client: ProbedClient, x: Tensor) -> Evaluated:
        count, sums = client.tested(x)
        return Evaluated(loss=client.loss(x), count=count, sums=sums)

    def take(self, at: Place) -> Found:
        ids = at.some(self.clients)
        up = at.run(self.evaluate, ids, x=at.x)
        p = torch.from_numpy(at.weights[ids] / at.weights[ids].sum())
        loss, count = (v[:, 0].to("cpu", torch.float64) for v in (up.loss, up.count))
        sums, tested = up.sums.to("cpu", torch.float64), float(count.sum())
        values = {"loss": float(p @ loss), "worst_loss": float(loss.max())}
        vectors = {"clients": ids.tolist(), "loss": loss.tolist(), "test_samples": count.tolist()}
        if tested:
            values |= dict(zip(at.tests, (sums.sum(0) / tested).tolist(), strict=True))
            values["test_samples"] = tested
            own = (sums / count[:, None]).T.tolist()  # NaN for a client without test data
            vectors |= dict(zip(at.tests, own, strict=True))
        some = len(ids) < at.clients
        notes = [f"from {len(ids)} of {at.clients} clients"] if some else []
        return Found(values, {}, notes, len(ids), int(at.sizes[ids].sum()), vectors)
