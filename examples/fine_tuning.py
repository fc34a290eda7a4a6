"""Fine-tuning a pretrained model: all of it, a frozen backbone with a new head, and LoRA.

Parameters with `requires_grad=False` are neither trained nor sent: only the others make up the vector that methods see
and that the ledger counts. The backbone here learned the digits 0 to 4, and clients who have only one or two of the digits
5 to 9 each fine-tune it together.

    python examples/fine_tuning.py
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import fairlead as fl

WIDTH = 128


class LoRA(nn.Module):
    """A frozen linear layer and a trained change of low rank: (W + B·A)·x, where B starts at zero."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.a.T @ self.b.T


def pretrained(data: fl.sources.Dataset) -> nn.Sequential:
    """A network that tells the digits 0 to 4 apart, trained in one place."""
    rows = (data.y < 5).nonzero()[:, 0]
    everyone = [range(len(rows))]
    task = fl.Task(
        fl.models.mlp(64, WIDTH, WIDTH, 5), "cross_entropy", (data.x[rows], data.y[rows]), everyone
    )
    model = fl.train(task, fl.FedAvg(lr=0.3), rounds=20, batch_size=32).model()
    assert isinstance(model, nn.Sequential)
    return model


def with_new_head(model: nn.Sequential) -> nn.Sequential:
    """A copy of the network whose last layer is new."""
    torch.manual_seed(0)
    body = list(copy.deepcopy(model))[:-1]
    return nn.Sequential(*body, nn.Linear(WIDTH, 5))


def frozen(model: nn.Sequential) -> nn.Sequential:
    """The network, of which only the head is trained."""
    model[:-1].requires_grad_(False)
    return model


def with_lora(model: nn.Sequential, rank: int = 4) -> nn.Sequential:
    """The network with a change of low rank in every layer but the head, which is trained whole."""
    *body, head = model
    return nn.Sequential(
        *(LoRA(layer, rank) if isinstance(layer, nn.Linear) else layer for layer in body), head
    )


def tasks() -> dict[str, fl.Task]:
    """The same clients and data with each way to fine-tune."""
    data = fl.sources.digits()
    base = pretrained(data)
    x, y = (t[data.y >= 5] for t in (data.x, data.y - 5))
    test = tuple(t[data.y_test >= 5] for t in (data.x_test, data.y_test - 5))
    split = fl.splits.shards(y, clients=10, per_client=2)
    models = {
        "all": with_new_head(base),
        "frozen": frozen(with_new_head(base)),
        "LoRA": with_lora(with_new_head(base)),
    }
    return {
        name: fl.Task(model, "cross_entropy", (x, y), split, test=test, name=name)
        for name, model in models.items()
    }


def main() -> None:
    print(f"{'trained':8} {'parameters':>10} {'accuracy':>9} {'megabits sent':>14}")
    for name, task in tasks().items():
        run = fl.train(task, fl.Scaffold(lr=0.1), rounds=30, cohort=5, batch_size=16)
        sent = run.history.last("bits") / 1e6
        print(f"{name:8} {task.dim:10,} {run.history.last('accuracy'):9.3f} {sent:14.2f}")


if __name__ == "__main__":
    main()
