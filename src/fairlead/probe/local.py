"""Measures of a trial round: the clients' local points, and their models after the local steps.

y_{i,k}: client i's point after its k-th step from x     ȳ_k: their mean, the shadow sequence
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairlead.core.records import Upload
from fairlead.errors import FairleadError
from fairlead.probe.place import Found, Place, Probe, ProbedClient
from fairlead.probe.trial import Ear

UNHEARD = "not measured inside rounds: the method does not mark its points with step.at(y)"


class Losses(Upload):
    """A client's loss at several points."""

    f: Tensor


@dataclass(frozen=True)
class LocalPoints(Probe):
    """Inside a trial round with all clients: client drift E_r = mean ‖y_{i,k} − x‖² (Karimireddy et al. 2020, (23)), shadow
    drift V = mean ‖y_{i,k} − ȳ_k‖² (the FedAvg study, (6)), the mean of f(ȳ_k) over k (the left side of their (1), less
    f*), and Ξ = mean ‖y_{i,k−1} − x⁺‖² (Karimireddy et al., (27)) for a round in which all take part.

    clients: how many clients to try it with; all by default. loss: whether to compute f(ȳ_k).
    """

    name: ClassVar[str] = "local"
    leaves: ClassVar[str] = (
        "its local points and the squares of their distances to x, summed with those of others; its losses at the "
        "clients' mean points, summed likewise"
    )
    clients: int | None = None
    loss: bool = True

    def hear(self, client: ProbedClient, ear: Ear, steps: int) -> tuple[dict[str, Tensor], bool]:
        y = ear.path(int(steps))
        if y is None:
            return {}, False
        moved = y - torch.as_tensor(ear.start).unsqueeze(-2)
        return {"moved": moved.flatten(-2), "squares": (moved * moved).sum(-1)}, False

    def losses(self, client: ProbedClient, points: Tensor) -> Losses:
        return Losses(f=torch.cat([client.loss(y) for y in points], -1))

    def take(self, at: Place) -> Found:
        ids = at.some(self.clients)
        after, heard = at.exchanges.trial(at.state, ids, self.hear, {})
        if "moved" not in heard:
            return Found({}, {}, [UNHEARD], len(ids))
        squares = heard["squares"].to(torch.float64)
        moved = heard["moved"].reshape(len(squares), -1)
        center = (moved * moved).sum(-1).to(torch.float64)
        values = {
            "client_drift": float(squares.mean()),
            "shadow_drift": max(0.0, float((squares - center).mean())),
        }
        step = after.x - at.state.x
        earlier = torch.cat([squares.new_zeros(1), squares[:-1]])
        along = torch.cat([squares.new_zeros(1), (moved[:-1] @ step).to(torch.float64)])
        values["xi"] = max(0.0, float((earlier - 2 * along).mean() + step @ step))
        if self.loss:
            points = at.state.x + moved
            values["shadow_loss"] = float(at.run(self.losses, ids, points=points).f.mean())
        some = len(ids) < at.clients
        notes = [f"from a round with {len(ids)} of {at.clients} clients"] if some else []
        return Found(values, {}, notes, len(ids), int(at.sizes[ids].sum()))


@dataclass(frozen=True)
class Alpha(Probe):
    """α = max over τ = 1 … E − 1 of ‖Σ ẽ_i‖²/Σ‖ẽ_i‖² with ẽ_i = ∇f_i(w_{i,τ}) − ∇f_i(w̄_τ) (Das et al. 2022, Assumption 4),
    over all clients in a trial round; α/n is recorded too. It needs rounds of at least two steps.
    """

    name: ClassVar[str] = "alpha"
    leaves: ClassVar[str] = (
        "its local points, and the differences of its gradients there and at the clients' mean points, summed with "
        "those of others; the squares of their norms, summed likewise"
    )

    def points(self, client: ProbedClient, ear: Ear, steps: int) -> tuple[dict[str, Tensor], bool]:
        y = ear.path(int(steps))
        return ({} if y is None else {"points": y[..., :-1, :].flatten(-2)}), False

    def errors(
        self, client: ProbedClient, ear: Ear, steps: int, mean: Tensor
    ) -> tuple[dict[str, Tensor], bool]:
        y = ear.path(int(steps))
        if y is None:
            return {}, False
        e = [client.grad(y[..., k, :]) - client.grad(mean[k]) for k in range(len(mean))]
        squares = torch.stack([(v * v).sum(-1) for v in e], -1)
        return {"e": torch.cat(e, -1), "squares": squares}, False

    def take(self, at: Place) -> Found:
        ids = at.some(None)
        _, heard = at.exchanges.trial(at.state, ids, self.points, {})
        if "points" not in heard:
            return Found({}, {}, [UNHEARD], len(ids))
        mean = heard["points"].reshape(-1, at.x.numel())
        if not len(mean):
            raise FairleadError(
                "alpha needs rounds of at least two local steps: with one it is 0/0"
            )
        _, heard = at.exchanges.trial(at.state, ids, self.errors, {"mean": mean})
        squares = heard["squares"].to(torch.float64)
        e = heard["e"].reshape(len(squares), -1)
        top = (e * e).sum(-1).to(torch.float64)  # of means: α/n
        share = float(torch.where(squares > 0, top / squares, 0.0).max())
        values = {"": share * len(ids), "share": share}
        return Found(values, {}, (), len(ids), int(at.sizes[ids].sum()))


@dataclass(frozen=True)
class CompressionError(Probe):
    """q = E‖Q(v) − v‖²/‖v‖² (Das et al. 2022, Assumption 3) of the method's compressor on the uploads of a trial round: in
    the mean over clients and vectors, and the largest."""

    name: ClassVar[str] = "compression"
    leaves: ClassVar[str] = "two numbers for each vector that it encodes"
    clients: int | None = None

    def hear(self, client: ProbedClient, ear: Ear, steps: int) -> tuple[dict[str, Tensor], bool]:
        found = []
        for before, after in ear.coded:
            seen = after.tensors()
            for name, v in before.tensors().items():
                if v.shape[-1] > 1:  # single numbers are sent as they are
                    w = seen[name]
                    found.append(((w - v) ** 2).sum(-1, keepdim=True))
                    found.append((v * v).sum(-1, keepdim=True).expand_as(found[-1]))
        return ({"squares": torch.cat(found, -1)} if found else {}), True

    def take(self, at: Place) -> Found:
        ids = at.some(self.clients)
        _, heard = at.exchanges.trial(at.state, ids, self.hear, {})
        if "squares" not in heard:
            raise FairleadError("the method has no compressor: there is no compression to measure")
        error, size = heard["squares"].to(torch.float64).reshape(len(ids), -1, 2).unbind(-1)
        q = torch.where(size > 0, error / size, 0.0)
        values = {"q": float(q.mean()), "q_max": float(q.max())}
        return Found(values, {}, (), len(ids))


@dataclass(frozen=True)
class CKA(Probe):
    """Linear CKA (Kornblith et al. 2019; Li et al. 2023, section 3.2) between the clients' models after their local steps, by
    layer, in the mean over pairs of clients, on held-out inputs.

    clients: how many clients to compare. samples: how many held-out inputs. layers: which layers; all that have
        parameters by default.
    """

    name: ClassVar[str] = "cka"
    leaves: ClassVar[str] = (
        "for each layer the products of the features of each two of m held-out inputs, m·m numbers"
    )
    clients: int | None = 10
    samples: int = 128
    layers: tuple[str, ...] | None = None

    def hear(
        self, client: ProbedClient, ear: Ear, steps: int, inputs: Tensor
    ) -> tuple[dict[str, Tensor], bool]:
        if not ear.points:
            return {}, True
        found = client.features(ear.points[-1], inputs)
        named = found if self.layers is None else {name: found[name] for name in self.layers}
        axes = client.ids.dim() - 1  # of clients
        flat = {name: value.flatten(axes + 1) for name, value in named.items()}
        return {name: centred_gram(value) for name, value in flat.items()}, True

    def take(self, at: Place) -> Found:
        if at.held_out is None:
            raise FairleadError("CKA needs held-out inputs: give the task test or validation data")
        ids, inputs = at.some(self.clients), at.held_out[: self.samples]
        if len(ids) < 2:
            raise FairleadError("CKA compares clients: it needs at least two")
        _, grams = at.exchanges.trial(at.state, ids, self.hear, {"inputs": inputs})
        if not grams:
            return Found({}, {}, [UNHEARD], len(ids))
        tables = alignment(torch.stack(list(grams.values())).to(torch.float64)).cpu()
        off = ~torch.eye(len(ids), dtype=torch.bool)
        values = dict(zip(grams, tables[:, off].mean(1).tolist(), strict=True))
        whole = {"": sum(values.values()) / len(values), **values}
        pairs = dict(zip(grams, tables.tolist(), strict=True))
        vectors = {"pairs": pairs, "clients": ids.tolist()}
        return Found(whole, {}, (), len(ids), len(inputs), vectors)


def centred_gram(features: Tensor) -> Tensor:
    """The products (…, m·m) of centred features (…, m, p)."""
    x = features - features.mean(-2, keepdim=True)
    return (x @ x.mT).flatten(-2)


def alignment(grams: Tensor) -> Tensor:
    """CKA of every pair of clients, from their centred products (…, S, m·m): in this form ‖Y'X‖² is ⟨XX', YY'⟩."""
    size = grams.norm(dim=-1, keepdim=True)
    unit = grams / torch.where(size > 0, size, torch.ones_like(size))
    return unit @ unit.mT


def linear_cka(x: Tensor, y: Tensor) -> float:
    """Linear CKA of two sets of features (m, p) and (m, q) of the same m inputs.

    >>> x = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]])
    >>> round(linear_cka(x, 3 * x), 6)
    1.0
    """
    if len(x) != len(y):
        raise FairleadError(
            f"the features are of {len(x)} and {len(y)} inputs: use the same inputs"
        )
    rows = torch.stack([centred_gram(v.flatten(1).to(torch.float64)) for v in (x, y)])
    found = float(alignment(rows)[0, 1])
    return found if math.isfinite(found) else 0.0
